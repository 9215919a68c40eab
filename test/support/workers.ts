import { deviceMemory } from './device-memory.js';
import { type ProcessEnd, runModule, wholePackage } from './run-module.js';

const names = `const {
  CallbackMemoryResource, CudaAsyncMemoryResource, CudaMemoryResource, Device, DeviceBuffer, GlobalArenaMemoryResource, KiB,
  LimitingResourceAdaptor, MiB, PoolMemoryResource, StatisticsResourceAdaptor, Stream, ThreadSafeArenaMemoryResource, attachBuffer,
  checkOrder, detachBuffer, discardBuffer, set, shareBuffer, wrapMemory,
} = cistern;`;

/** Options of {@link runWithWorkers}. */
interface WorkerOptions {
  /** What the module and each worker begin with. */
  readonly everywhere?: string;
  /** Mebibytes of memory of a software device. */
  readonly deviceMebibytes?: number;
  readonly timeoutMilliseconds?: number | undefined;
}

/**
 * Runs a module in which `start(text, n)` starts workers that run a text, each with a `number` from 0
 * on. In all of them, `cistern` is the package, and `cells` are shared. In a worker, `received()` is the
 * next message, and `post` answers. In the module, `show` prints, and `free()` is the free memory of
 * the device once orphans were freed.
 */
export function runWithWorkers(
  body: string,
  { everywhere = '', deviceMebibytes = 256, timeoutMilliseconds }: WorkerOptions = {},
): ProcessEnd {
  return runModule(
    `
    import { once } from 'node:events';
    import { setTimeout } from 'node:timers/promises';
    import { Worker } from 'node:worker_threads';
    import * as cistern from '${wholePackage}';
    ${names}
    const cells = new Int32Array(new SharedArrayBuffer(64));
    const start = (text, count = 1) => Array.from({ length: count }, (_, number) => new Worker(\`
      const { once } = require('node:events');
      const { parentPort, workerData: { number, cells } } = require('node:worker_threads');
      const post = (message) => parentPort.postMessage(message);
      const received = async () => (await once(parentPort, 'message'))[0];
      import('${wholePackage}').then(async (cistern) => {
        ${names}
        ${everywhere}
        \${text}
      });\`, { eval: true, execArgv: [], workerData: { number, cells } }));
    const received = async (worker) => (await once(worker, 'message'))[0];
    const show = (...values) => console.log(...values);
    const free = () => {
      new Stream().dispose();
      Device.get().synchronizeSync();
      return Device.get().memoryInfo().freeBytes;
    };
    ${everywhere}
    ${body}
  `,
    deviceMemory(deviceMebibytes),
    timeoutMilliseconds,
  );
}
