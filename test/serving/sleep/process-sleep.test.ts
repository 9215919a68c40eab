import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkOrder } from '../../../src/checking/index.js';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  Device,
  DeviceBuffer,
  Event,
  KiB,
  type MemoryResource,
  MiB,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  type ProcessSleepError,
  Stream,
  VirtualMemoryResource,
} from '../../../src/index.js';
import { processState, sleepProcess, wakeProcess } from '../../../src/serving/index.js';
import { failCall } from '../../../src/tools/testing/index.js';
import { needMemoryPools } from '../../support/device-memory.js';
import { caught, code } from '../../support/errors.js';
import { startKeep } from '../../support/keep.js';
import { isSoftwareDevice, isStrictDriver, runProcesses } from '../../support/processes.js';
import { needFaults } from '../../support/real-gpu.js';
import { printed, runModule, wholePackage } from '../../support/run-module.js';

const asleep = code('ERR_CISTERN_ASLEEP');
const refusedFor = (reason: string) => expect.objectContaining({ code: 'ERR_CISTERN_PROCESS_SLEEP', reason, pid: process.pid });
/** CUDA's numbers. */
const outOfMemory = 2;
const notSupported = 801;
/** An id that no process has: above the largest that Linux gives. */
const noProcess = 2 ** 22 + 1;

const isLinux = process.platform === 'linux';
/** More: SLEEP_CYCLES=1000 npx vitest run --project unit test/serving/sleep/process-sleep.test.ts -t load */
const cycles = Number(process.env['SLEEP_CYCLES'] ?? 5);
const longEnough = { timeout: 60_000 + 1000 * cycles };

describe.runIf(isLinux)('a process that puts itself to sleep', () => {
  let stream: Stream;

  beforeEach(() => {
    stream = new Stream();
  });

  afterEach(async () => {
    await wakeProcess();
    stream.dispose();
  });

  const numbers = Uint32Array.from({ length: 100_000 }, (_, i) => i);
  const hasNumbers = async (buffer: DeviceBuffer) => {
    const found = new Uint32Array((await buffer.toHost()).buffer);
    return numbers.every((number, i) => found[i] === number);
  };

  test('has the same contents at the same addresses when it wakes', async () => {
    needMemoryPools();
    const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 4 * MiB });
    const resources: MemoryResource[] = [pool, new CudaMemoryResource(), new CudaAsyncMemoryResource(), new VirtualMemoryResource()];
    const buffers = resources.map((resource) => new DeviceBuffer(numbers, { resource, stream }));
    const addresses = buffers.map(({ ptr }) => ptr);
    using pinned = new DeviceBuffer(KiB, { resource: new PinnedHostMemoryResource(), stream });
    pinned.fill(5);
    await stream.synchronize();

    const slept = await sleepProcess();
    expect(await processState()).toBe('checkpointed');
    expect(slept).toMatchObject({ pid: process.pid, resources: [] });
    if (isSoftwareDevice) expect(slept.releasedBytes).toBeGreaterThanOrEqual(4 * MiB + 3 * numbers.byteLength);

    const woken = await wakeProcess();
    expect(await processState()).toBe('running');
    expect(woken.takenBytes).toBe(slept.releasedBytes);
    expect(buffers.map(({ ptr }) => ptr)).toEqual(addresses);
    for (const buffer of buffers) expect(await hasNumbers(buffer)).toBe(true);
    expect([...new Set(await pinned.toHost())]).toEqual([5]);
    for (const buffer of buffers) buffer.dispose();
    pool.dispose();
  });

  test('refuses what needs the device, instead of waiting for ever', async () => {
    const resource = new CudaMemoryResource();
    using buffer = new DeviceBuffer(KiB, { resource, stream });
    await sleepProcess();
    expect(caught(() => resource.allocate(KiB, stream))).toEqual(asleep);
    expect(caught(() => buffer.fill(1))).toEqual(asleep);
    expect(caught(() => new Stream())).toEqual(asleep);
    expect(caught(() => Device.get().memoryInfo())).toEqual(asleep);
    await expect(buffer.toHost()).rejects.toEqual(asleep);
    expect(caught(() => buffer.toHostSync())).toHaveProperty(
      'message',
      expect.stringContaining('this process is asleep; await wakeProcess() first'),
    );
    // What was queued is done, and nothing can be queued.
    expect(stream.query()).toBe(true);
    stream.synchronizeSync();
    await stream.synchronize();
  });

  test('makes frees, ends of objects and records of events once it wakes', async () => {
    const resource = new CudaMemoryResource();
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, deallocationEvents: 'deferred' });
    const freeBefore = Device.get().memoryInfo().freeBytes;
    const buffer = new DeviceBuffer(8 * MiB, { resource, stream });
    const pooled = new DeviceBuffer(KiB, { resource: pool, stream });
    const other = new Stream();
    const event = new Event();
    await sleepProcess();
    buffer.dispose();
    pooled.dispose();
    event.record(stream);
    expect(event.query()).toBe(true);
    other.wait(event);
    other.dispose();
    event.dispose();
    await wakeProcess();
    expect(Device.get().memoryInfo().freeBytes).toBe(freeBefore);
    // The pool serves the memory again, for another stream.
    using again = new DeviceBuffer(KiB, { resource: pool, stream: new Stream() });
    again.fill(3);
    expect([...new Set(await again.toHost())]).toEqual([3]);
  });

  test('leaves memory where it is whose free needs a new event', async () => {
    const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, deallocationEvents: 'eager' });
    const buffer = new DeviceBuffer(numbers, { resource: pool, stream });
    await sleepProcess();
    expect(caught(() => buffer.dispose())).toEqual(asleep);
    await wakeProcess();
    expect(await hasNumbers(buffer)).toBe(true);
    buffer.dispose();
    pool.dispose();
  });

  test('under load: what was queued is done, and goes on after it wakes', longEnough, async () => {
    using buffer = new DeviceBuffer(MiB, { resource: new CudaMemoryResource(), stream });
    const address = buffer.ptr;
    let value = 0;
    let refusals = 0;
    let isOver = false;
    const load = async () => {
      while (!isOver) {
        try {
          for (let i = 0; i < 10; i++) {
            buffer.fill((value + 1) % 251);
            value++;
          }
        } catch (error) {
          expect(error).toEqual(asleep);
          refusals++;
        }
        await new Promise((resolve) => setTimeout(resolve));
      }
    };
    const loads = load();
    for (let cycle = 0; cycle < cycles; cycle++) {
      await sleepProcess();
      await expect.poll(() => refusals).toBeGreaterThan(0);
      await wakeProcess();
      refusals = 0;
      const from = value;
      await expect.poll(() => value).toBeGreaterThan(from);
    }
    isOver = true;
    await loads;
    expect([buffer.ptr, ...new Set(await buffer.toHost())]).toEqual([address, value % 251]);
  });

  test('twenty times', async () => {
    using buffer = new DeviceBuffer(numbers, { resource: new CudaMemoryResource(), stream });
    for (let cycle = 0; cycle < 20; cycle++) {
      await sleepProcess();
      await wakeProcess();
    }
    expect(await hasNumbers(buffer)).toBe(true);
  });

  test('stays as it is if it is asleep, or awake', async () => {
    expect(await wakeProcess()).toMatchObject({ takenBytes: 0, resources: [] });
    await sleepProcess();
    expect(await sleepProcess()).toMatchObject({ releasedBytes: 0 });
    expect(await processState()).toBe('checkpointed');
  });

  test('returns the free memory of its pools first', async () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource());
    const resource = pool;
    new DeviceBuffer(16 * MiB, { resource, stream }).dispose();
    expect(pool.statistics().reservedBytes).toBeGreaterThanOrEqual(16 * MiB);
    await sleepProcess();
    expect(pool.statistics().reservedBytes).toBe(0);
  });

  test('sleeps after its resources, and wakes before them in reverse order', async () => {
    needFaults();
    using weights = new VirtualMemoryResource();
    using cache = new VirtualMemoryResource();
    using model = new DeviceBuffer(numbers, { resource: weights, stream });
    using keys = new DeviceBuffer(2 * MiB, { resource: cache, stream });
    const { resources } = await sleepProcess({
      resources: [
        { resource: cache, keep: 'nothing' },
        { resource: weights, keep: 'host' },
      ],
    });
    expect(resources).toMatchObject([{ keptBytes: 0 }, { keptBytes: expect.any(Number) }]);
    // The second one that wakes is the cache.
    failCall('cuMemCreate', 2, outOfMemory);
    await expect(wakeProcess()).rejects.toEqual(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(await processState()).toBe('running');
    expect(await hasNumbers(model)).toBe(true);
    expect(caught(() => keys.ptr)).toEqual(asleep);
    const woken = await wakeProcess();
    expect(woken.resources).toMatchObject([{ mappedBytes: 2 * MiB }]);
    keys.fill(1);
  });

  test('wakes its resources if the driver refuses to put it to sleep', async () => {
    needFaults();
    using resource = new VirtualMemoryResource();
    using model = new DeviceBuffer(numbers, { resource, stream });
    failCall('cuCheckpointProcessCheckpoint', 1, notSupported);
    await expect(sleepProcess({ resources: [{ resource, keep: 'host' }] })).rejects.toEqual(refusedFor('refused'));
    expect(await hasNumbers(model)).toBe(true);
  });

  test.each(['cuCheckpointProcessLock', 'cuCheckpointProcessCheckpoint'] as const)('runs on if the driver refuses %s', async (call) => {
    needFaults();
    using buffer = new DeviceBuffer(numbers, { resource: new CudaMemoryResource(), stream });
    failCall(call, 1, notSupported);
    const error = await sleepProcess().catch((reason: unknown) => reason as ProcessSleepError);
    expect(error).toEqual(refusedFor('refused'));
    expect(error).toMatchObject({ cause: expect.objectContaining({ driverName: 'CUDA_ERROR_NOT_SUPPORTED' }) });
    expect((error as Error).message).toMatch(
      /^this process did not change its state: the driver refuses to .* with CUDA_ERROR_NOT_SUPPORTED/,
    );
    expect(await processState()).toBe('running');
    expect(await hasNumbers(buffer)).toBe(true);
    await sleepProcess();
  });

  test('sleeps on if the driver refuses to restore it, and nothing is lost', async () => {
    needFaults();
    using buffer = new DeviceBuffer(numbers, { resource: new CudaMemoryResource(), stream });
    await sleepProcess();
    failCall('cuCheckpointProcessRestore', 1, outOfMemory);
    await expect(wakeProcess()).rejects.toEqual(refusedFor('refused'));
    expect(await processState()).toBe('checkpointed');
    expect(caught(() => buffer.fill(1))).toEqual(asleep);
    await wakeProcess();
    expect(await hasNumbers(buffer)).toBe(true);
  });

  test('can be unlocked later if the driver refuses to unlock it', async () => {
    needFaults();
    using buffer = new DeviceBuffer(numbers, { resource: new CudaMemoryResource(), stream });
    failCall('cuCheckpointProcessCheckpoint', 1, notSupported);
    failCall('cuCheckpointProcessUnlock', 1, notSupported);
    await expect(sleepProcess()).rejects.toEqual(refusedFor('refused'));
    expect(await processState()).toBe('locked');
    // Not a call that waits in the driver.
    expect(caught(() => buffer.fill(1))).toEqual(asleep);
    await wakeProcess();
    expect(await hasNumbers(buffer)).toBe(true);
  });

  test('runs on if what it has queued does not end in time', async () => {
    using buffer = new DeviceBuffer(numbers, { resource: new CudaMemoryResource(), stream });
    const hold = stream.hold();
    await expect(sleepProcess({ lockTimeoutMilliseconds: 5 })).rejects.toEqual(refusedFor('timeout'));
    hold.release();
    expect(await hasNumbers(buffer)).toBe(true);
  });

  test('refuses while a stream is captured, and while it falls asleep or wakes', async () => {
    using captured = new Stream({ nonBlocking: true });
    const attempts: Promise<unknown>[] = [];
    captured.capture(() => void attempts.push(sleepProcess())).dispose();
    await expect(attempts[0]).rejects.toEqual(code('ERR_CISTERN_CAPTURING'));
    const first = sleepProcess();
    await expect(sleepProcess()).rejects.toEqual(code('ERR_CISTERN_INVALID_STATE'));
    await expect(wakeProcess()).rejects.toEqual(code('ERR_CISTERN_INVALID_STATE'));
    await first;
  });

  test('sleeps while stream order is checked', async () => {
    const checker = checkOrder();
    try {
      const resource = new CudaMemoryResource();
      const buffer = new DeviceBuffer(numbers, { resource, stream });
      await sleepProcess();
      expect(caught(() => buffer.fill(1))).toEqual(asleep);
      buffer.dispose();
      await wakeProcess();
      using again = new DeviceBuffer(numbers, { resource, stream: new Stream() });
      expect(await hasNumbers(again)).toBe(true);
    } finally {
      checker.dispose();
    }
  });

  test.each([
    [{ pid: noProcess }, 'ERR_INVALID_ARG_VALUE'],
    [{ pid: 0 }, 'ERR_OUT_OF_RANGE'],
    [{ pid: '7' }, 'ERR_INVALID_ARG_TYPE'],
    [{ lockTimeoutMilliseconds: -1 }, 'ERR_OUT_OF_RANGE'],
    [{ resources: {} }, 'ERR_INVALID_ARG_TYPE'],
    [{ resources: [{ resource: new CudaMemoryResource(), keep: 'nothing' }], pid: 1 }, 'ERR_INVALID_ARG_TYPE'],
    [{ resources: [{ keeps: 'nothing' }] }, 'ERR_INVALID_ARG_VALUE'],
  ])('refuses %j', async (options, expected) => {
    await expect(sleepProcess(options as never)).rejects.toEqual(code(expected));
    expect(await processState()).toBe('running');
  });
});

describe.runIf(isLinux)('another process', () => {
  /** It does what a server does: allocates, writes, checks, all the time, until it is told to stop. */
  const server = `
    const stream = new Stream();
    const resource = new CudaMemoryResource();
    const kept = new DeviceBuffer(Uint32Array.from({ length: 100_000 }, (_, i) => i), { resource, stream });
    const address = kept.ptr;
    let isOver = false;
    let wrong = 0;
    let turns = 0;
    received().then(() => { isOver = true; });
    await post('ready');
    while (!isOver) {
      const buffer = new DeviceBuffer(4096, { resource, stream });
      buffer.fill(turns % 251);
      if (valuesOf(buffer) !== String(turns % 251)) wrong++;
      buffer.dispose();
      turns++;
      await sleep(0);
    }
    const back = new Uint32Array(kept.toHostSync().buffer);
    await post([wrong, turns > 0, address === kept.ptr, back.every((value, i) => value === i)]);
    process.disconnect();
  `;

  test('sleeps and wakes under load, with the same contents at the same addresses', longEnough, () => {
    expect(
      runProcesses(
        `
        const { processState, sleepProcess, wakeProcess } = cistern;
        const child = start(${JSON.stringify(server)});
        const { pid } = child;
        await child.received();
        for (let cycle = 0; cycle < ${cycles}; cycle++) {
          await sleepProcess({ pid });
          if ((await processState(pid)) !== 'checkpointed') show('not asleep');
          await wakeProcess({ pid });
        }
        show(await processState(pid), await processState());
        child.post('stop');
        show(...await child.received());
        await child.ended;
      `,
        {},
        longEnough.timeout,
      ),
    ).toEqual(printed('running running', '0 true true true'));
  });

  test('runs on if it does not end its work in time, or shares memory', () => {
    expect(
      runProcesses(`
        const { processState, sleepProcess } = cistern;
        const child = start(\`
          const stream = new Stream();
          const resource = new CudaMemoryResource();
          const buffer = new DeviceBuffer(1024, { resource, stream });
          const hold = stream.hold();
          buffer.fill(7);
          await post('held');
          await received();
          hold.release();
          await stream.synchronize();
          const handle = exportBuffer(buffer);
          await post('shared');
          await received();
          await post(valuesOf(buffer));
          process.disconnect();
        \`);
        const { pid } = child;
        const attempt = () => sleepProcess({ pid, lockTimeoutMilliseconds: 50 }).then(() => 'asleep', ({ reason }) => reason);
        await child.received();
        show(await attempt(), await processState(pid));
        child.post('go on');
        await child.received();
        show(await attempt(), await processState(pid));
        child.post('go on');
        show(await child.received());
        await child.ended;
      `),
    ).toEqual(printed('timeout running', 'refused running', '7'));
  });

  test('that ends meanwhile, uses no device, or whose id is that of a thread', () => {
    const { status, stdout } = runProcesses(`
      const { sleepProcess, wakeProcess, processState } = cistern;
      const { Worker } = await import('node:worker_threads');
      const reasonOf = (call) => call.then(() => 'nothing', ({ code, reason, message }) => reason ?? code + ' ' + message.replace(/\\d+/g, 'N'));
      const child = start(\`
        const stream = new Stream();
        const hold = stream.hold();
        new DeviceBuffer(1024, { resource: new CudaMemoryResource(), stream }).fill(7);
        await post('held');
        await received();
      \`);
      await child.received();
      const attempt = reasonOf(sleepProcess({ pid: child.pid, lockTimeoutMilliseconds: 60_000 }));
      child.kill('SIGKILL');
      show(await attempt);
      await child.ended;
      show(await reasonOf(wakeProcess({ pid: child.pid })));

      const idle = spawn(process.execPath, ['--eval', 'process.stdin.resume(); console.log(1)'], { stdio: ['pipe', 'pipe', 'inherit'] });
      await once(idle.stdout, 'data');
      show(await reasonOf(processState(idle.pid)), await reasonOf(sleepProcess({ pid: idle.pid })));
      idle.stdin.end();

      const thread = Math.max(...readdirSync('/proc/self/task').map(Number));
      show(await reasonOf(sleepProcess({ pid: thread })));
    `);
    expect(stdout).toBe(
      [
        'ended',
        'ERR_INVALID_ARG_VALUE pid must be the id of a process, got N: there is none',
        'unused unused',
        'ERR_INVALID_ARG_VALUE pid must be the id of a process, got N: it is a thread of process N',
        '',
      ].join('\n'),
    );
    expect(status).toBe(0);
  });

  test('wakes this one, which then goes on once it has called wakeProcess()', () => {
    expect(
      runProcesses(`
        const { sleepProcess, wakeProcess } = cistern;
        const child = start(\`
          const { processState, sleepProcess, wakeProcess } = cistern;
          const buffer = new DeviceBuffer(1024, { resource: new CudaMemoryResource(), stream: new Stream() });
          buffer.fill(7);
          await sleepProcess();
          await post('asleep');
          await received();
          const states = [await processState(), codeOf(() => buffer.fill(8)), await sleepProcess().catch(({ code }) => code)];
          await wakeProcess();
          await post([...states, valuesOf(buffer)]);
          process.disconnect();
        \`);
        await child.received();
        await wakeProcess({ pid: child.pid });
        child.post('awake');
        show(...await child.received());
        await child.ended;
      `),
    ).toEqual(printed('running ERR_CISTERN_ASLEEP ERR_CISTERN_INVALID_STATE 7'));
  });
});

describe.runIf(isLinux)('memory that outlives its process', () => {
  test('is not moved, and the process runs on', async () => {
    const keep = await startKeep();
    const text = `
      import { DeviceBuffer, LastingMemoryResource, MiB, Stream, processState, sleepProcess } from '${wholePackage}';
      const resource = await LastingMemoryResource.open({ region: 'weights', bytes: 2 * MiB, layout: '1' });
      const buffer = new DeviceBuffer(MiB, { resource, stream: new Stream() });
      buffer.fill(7);
      await sleepProcess().catch(({ reason }) => console.log(reason));
      console.log(await processState(), new Set(buffer.toHostSync()).size, buffer.toHostSync()[0]);
    `;
    expect(runModule(text, { CISTERN_KEEP: keep.socket })).toEqual(printed('refused', 'running 1 7'));
    await keep.kill();
  });
});

describe.runIf(isStrictDriver)('a driver that refuses managed memory', () => {
  const text = `
    import { CudaMemoryResource, DeviceBuffer, ManagedMemoryResource, Stream, processState, sleepProcess, wakeProcess } from '${wholePackage}';
    const stream = new Stream();
    const managed = new DeviceBuffer(1024, { resource: new ManagedMemoryResource(), stream });
    const buffer = new DeviceBuffer(1024, { resource: new CudaMemoryResource(), stream });
    const tell = ({ reason, message }) => console.log(reason, message.replace(/process \\d+/, 'process N'));
    await sleepProcess().catch(tell);
    console.log(await processState());
    try { buffer.fill(7); console.log(buffer.toHostSync()[0]); } catch (error) { console.log(error.code); }
    await wakeProcess().catch(tell);
    process.exit();
  `;

  test('leaves the process running', () => {
    expect(runModule(text, { STRICT_DRIVER_CHECKPOINT_MANAGED: '0' })).toEqual(
      printed(
        'refused this process did not change its state: the driver refuses to move its memory to the host with CUDA_ERROR_NOT_SUPPORTED, as some versions do for memory that processes share, and for managed memory',
        'running',
        '7',
      ),
    );
  });

  test('as of 570, cannot go on with it, and no call waits for ever', () => {
    const sentence = 'failed the driver cannot go on with process N, whose state is now FAILED: end it';
    expect(runModule(text, { STRICT_DRIVER_CHECKPOINT_MANAGED: '0', STRICT_DRIVER_CHECKPOINT_FINAL: '1' })).toEqual(
      printed(sentence, 'failed', 'ERR_CISTERN_ASLEEP', sentence),
    );
  });
});

describe.runIf(isLinux)('threads', () => {
  test('of a process that sleeps are refused, and go on once it is awake', () => {
    const text = `
      import { once } from 'node:events';
      import { Worker } from 'node:worker_threads';
      import { CudaMemoryResource, DeviceBuffer, Stream, sleepProcess, wakeProcess } from '${wholePackage}';
      const worker = new Worker(\`
        Promise.all([import('${wholePackage}'), import('node:worker_threads')]).then(([{ CudaMemoryResource, DeviceBuffer, Stream }, { parentPort }]) => {
          const stream = new Stream();
          const resource = new CudaMemoryResource();
          const buffer = new DeviceBuffer(1024, { resource, stream });
          parentPort.on('message', async (message) => {
            if (message === 'end') { parentPort.close(); return; }
            try { buffer.fill(9); parentPort.postMessage('filled ' + buffer.toHostSync()[0]); } catch (error) { parentPort.postMessage(error.code); }
          });
          parentPort.postMessage('ready');
        });
      \`, { eval: true });
      const answer = async (message) => { if (message) worker.postMessage(message); return (await once(worker, 'message'))[0]; };
      await answer();
      const own = new DeviceBuffer(1024, { resource: new CudaMemoryResource(), stream: new Stream() });
      await sleepProcess();
      console.log(await answer('fill'));
      await wakeProcess();
      console.log(await answer('fill'));
      worker.postMessage('end');
      own.dispose();
    `;
    expect(runModule(text)).toEqual(printed('ERR_CISTERN_ASLEEP', 'filled 9'));
  });

  test('of a process that ends while it sleeps do not keep it', () => {
    const text = `
      import { CudaMemoryResource, DeviceBuffer, Stream, sleepProcess } from '${wholePackage}';
      const stream = new Stream();
      const buffer = new DeviceBuffer(1024, { resource: new CudaMemoryResource(), stream });
      buffer.fill(1);
      stream.launchHostFunction(() => {});
      await stream.synchronize();
      await sleepProcess();
      console.log('asleep');
    `;
    expect(runModule(text)).toEqual(printed('asleep'));
  });
});

test.runIf(!isLinux)('processes sleep on Linux only', async () => {
  await expect(sleepProcess()).rejects.toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
});
