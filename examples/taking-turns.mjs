// Two models that do not fit on the device together take turns: one sleeps while the other works. Each keeps
// its weights on the host meanwhile, and drops its cache. Every pointer stays as it is.
//
//     node examples/taking-turns.mjs [turns]
import { once } from 'node:events';
import process from 'node:process';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import {
  configureSoftwareDevice,
  Device,
  DeviceBuffer,
  formatBytes,
  MiB,
  PoolMemoryResource,
  Stream,
  VirtualMemoryResource,
} from 'cistern';
import { sleepResource, wakeResource } from 'cistern/serving';

const deviceBytes = 64 * MiB;
const weightBytes = 32 * MiB;
const cacheBytes = 16 * MiB;

// A GPU has more memory than these models need.
if (process.env.CISTERN_DEVICE === 'software' && isMainThread) configureSoftwareDevice({ totalBytes: deviceBytes });

if (isMainThread) {
  const turns = Number(process.argv[2] ?? 6);
  const before = Device.get().memoryInfo().freeBytes;
  const models = [];
  for (const name of ['first', 'second']) {
    const model = new Worker(new URL(import.meta.url), { workerData: name });
    // It loads its weights, and sleeps.
    await once(model, 'message');
    models.push(model);
  }
  const leftBytes = before - Device.get().memoryInfo().freeBytes;
  console.log(`both sleep: ${formatBytes(leftBytes)} of the device in use, by models of ${formatBytes(weightBytes + cacheBytes)} each`);

  let correct = 0;
  for (let turn = 0; turn < turns; turn++) {
    const model = models[turn % models.length];
    model.postMessage(turn);
    const [{ isRight, wakeMilliseconds, sleepMilliseconds }] = await once(model, 'message');
    if (isRight) correct++;
    if (turn === 0)
      console.log(`a turn: awake after ${wakeMilliseconds.toFixed(1)} ms, asleep again after ${sleepMilliseconds.toFixed(1)} ms`);
  }
  console.log(`${turns} turns, ${correct} of them with the right weights`);
  for (const model of models) await model.terminate();
} else {
  const weights = new PoolMemoryResource(new VirtualMemoryResource());
  const cache = new PoolMemoryResource(new VirtualMemoryResource());
  const stream = new Stream({ nonBlocking: true });
  const value = workerData === 'first' ? 1 : 2;
  const model = new DeviceBuffer(weightBytes, { resource: weights, stream });
  model.fill(value);
  const keys = new DeviceBuffer(cacheBytes, { resource: cache, stream });
  const { ptr } = model;

  const sleep = async () => {
    const [kept, dropped] = [await sleepResource(weights, { keep: 'host' }), await sleepResource(cache, { keep: 'nothing' })];
    return kept.elapsedMilliseconds + dropped.elapsedMilliseconds;
  };
  await sleep();
  parentPort.postMessage('loaded');

  parentPort.on('message', async () => {
    const woken = await wakeResource(weights);
    await wakeResource(cache);
    // The work: on a GPU, kernels and graphs with the addresses from before.
    keys.fill(0);
    const isRight = model.ptr === ptr && (await model.toHost()).every((byte) => byte === value);
    parentPort.postMessage({ isRight, wakeMilliseconds: woken.elapsedMilliseconds, sleepMilliseconds: await sleep() });
  });
}
