import { describe, expect, test } from 'vitest';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  createResourceStack,
  Device,
  HostMemoryResource,
  InvalidLogError,
  ManagedMemoryResource,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  ReplayError,
  ResourceStack,
  Stream,
} from '../../../src/index.js';
import {
  type AllocationLog,
  defaultRepeat,
  type ReplayOptions,
  type ReplayResult,
  readAllocationLog,
  replayLog,
} from '../../../src/tools/replay/index.js';
import { driverCallCounts, failCall } from '../../../src/tools/testing/index.js';
import { TwoWayResource } from '../../support/two-way-resource.js';
import { arrowEtl, header, logText, readText, row } from '../formats/logs.js';

/** A call to a {@link Recorder}; streams are numbered in order of first use. */
type Call = readonly [action: 'allocate' | 'deallocate', bytes: number, stream: number];

/** Hands out addresses that must not be accessed, and writes down every call. */
class Recorder implements MemoryResource {
  readonly memoryKind = 'device';
  readonly device = Device.get();
  readonly calls: Call[] = [];
  readonly live = new Map<number, number>();
  isDisposed = false;
  readonly #streams: Stream[] = [];
  #nextAddress = 4096;

  allocate(bytes: number, stream: Stream): number {
    this.calls.push(['allocate', bytes, this.#number(stream)]);
    if (bytes === 0) return 0;
    const pointer = this.#nextAddress;
    this.#nextAddress += bytes;
    this.live.set(pointer, bytes);
    return pointer;
  }

  deallocate(pointer: number, bytes: number, stream: Stream): void {
    this.calls.push(['deallocate', bytes, this.#number(stream)]);
    if (bytes === 0) return;
    if (this.live.get(pointer) !== bytes) throw new Error(`${pointer} is not live with ${bytes} bytes`);
    this.live.delete(pointer);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {
    this.isDisposed = true;
  }

  #number(stream: Stream): number {
    if (!this.#streams.includes(stream)) this.#streams.push(stream);
    return this.#streams.indexOf(stream);
  }
}

/** Replays through fresh recorders and returns them, that of the observed replay first. */
function record(log: AllocationLog, options?: ReplayOptions): { result: ReplayResult; recorders: Recorder[] } {
  const recorders: Recorder[] = [];
  const create = () => {
    const recorder = new Recorder();
    recorders.push(recorder);
    return ResourceStack.of(recorder, { name: 'recorder' });
  };
  return { result: replayLog(log, create, options), recorders };
}

function replay(log: AllocationLog, specification: string, options: ReplayOptions = {}): ReplayResult {
  return replayLog(log, () => createResourceStack(specification), { repeat: 1, ...options });
}

const arrow = await readAllocationLog(arrowEtl);

describe('a replay', () => {
  test('makes the calls of the log, the same every time, on fresh resources', async () => {
    const log = await readText(
      logText(row('allocate', 1, 100), row('allocate', 2, 0), row('free', 1, 100), row('free', 2, 0), row('allocate', 3, 7)),
    );
    const { result, recorders } = record(log, { repeat: 2 });
    expect(recorders).toHaveLength(3);
    for (const recorder of recorders) {
      expect(recorder.calls).toEqual([
        ['allocate', 100, 0],
        ['allocate', 0, 0],
        ['deallocate', 100, 0],
        ['deallocate', 0, 0],
        ['allocate', 7, 0],
        ['deallocate', 7, 0],
      ]);
      expect([recorder.live.size, recorder.isDisposed]).toEqual([0, true]);
    }
    expect(result).toMatchObject({
      resource: 'recorder',
      events: null,
      operations: 5,
      repetitions: 2,
      peakLiveBytes: 100,
      highWaterBytes: 107,
      peakReservedBytes: null,
      leakedBytes: null,
      logLeakedBytes: 7,
      failures: 0,
      firstFailure: null,
    });
    expect(result.nanosecondsPerOperation.minimum).toBeGreaterThan(0);
    expect(result.nanosecondsPerOperation.median).toBeGreaterThanOrEqual(result.nanosecondsPerOperation.minimum);
  });

  test('measures a short log often enough, and a long one at least three times', async () => {
    expect(record(await readText(logText(row('allocate', 1, 1)))).result.repetitions).toBe(100);
    expect(defaultRepeat(arrow)).toBe(6);
    expect(defaultRepeat({ eventCount: 1e9 } as AllocationLog)).toBe(3);
  });

  test('reports its progress', async () => {
    let replays = 0;
    record(await readText(logText(row('allocate', 1, 1))), { repeat: 4, onReplay: () => replays++ });
    expect(replays).toBe(5);
  });

  const crossing = logText(
    row('allocate', 1, 10, { thread: 1, stream: '0xa' }),
    row('allocate', 2, 20, { thread: 1, stream: '0xb' }),
    row('free', 1, 10, { thread: 2, stream: '0xa' }),
    row('free', 2, 20, { thread: 1, stream: '0xa' }),
  );

  test.each([
    ['log', [0, 1, 0, 0], 2, 1],
    ['thread', [0, 0, 1, 0], 2, 1],
    ['single', [0, 0, 0, 0], 1, 0],
  ] as const)('on the streams "%s" waits for the allocating stream at a free on another', async (streams, numbers, streamCount, waits) => {
    const log = await readText(crossing);
    const before = driverCallCounts();
    const { result, recorders } = record(log, { streams, repeat: 3 });
    const after = driverCallCounts();
    // The measured replays wait like the observed one.
    expect(after.eventRecords - before.eventRecords).toBe(4 * waits);
    expect(after.eventWaits - before.eventWaits).toBe(4 * waits);
    for (const { calls } of recorders) expect(calls.map(([, , stream]) => stream)).toEqual(numbers);
    expect(result).toMatchObject({ streams, streamCount, replayer: { eventRecords: waits, eventWaits: waits } });
    expect(result.driver).toEqual({ allocations: 0, frees: 0, eventRecords: 0, eventWaits: 0, synchronizations: 0 });
  });

  test('waits for nothing if the null pointer is freed on another stream', async () => {
    const nil = (action: string, stream: string) => `1,00:00:00.000000,${action},(nil),0,${stream}`;
    const log = await readText(logText(nil('allocate', '0xa'), nil('free', '0xb')));
    expect(record(log, { repeat: 1 }).result.replayer).toEqual({ eventRecords: 0, eventWaits: 0 });
  });

  test('of the bundled log records an event at every free under eager, and none under deferred and off', () => {
    const frees = arrow.eventCount / 2;
    for (const [events, eventRecords] of [
      ['eager', frees],
      ['deferred', 0],
      ['off', 0],
    ] as const) {
      const result = replay(arrow, `pool(cuda, deallocationEvents=${events})`);
      expect(result).toMatchObject({ events, operations: 194_854, failures: 0, leakedBytes: 0, driver: { eventRecords } });
      expect(result.peakLiveBytes).toBe(arrow.peakLiveBytes);
      expect(result.highWaterBytes).toBeGreaterThanOrEqual(arrow.peakLiveBytes);
      expect(result.peakReservedBytes).toBeGreaterThanOrEqual(arrow.peakLiveBytes);
    }
  });

  // A driver with long pauses takes a millisecond for each event.
  test('of the bundled log on a stream per thread records a quarter as many under deferred, in the same memory', {
    timeout: 600_000,
  }, () => {
    const stack = (events: string) => replay(arrow, `pool(host, deallocationEvents=${events})`, { streams: 'thread' });
    const eager = stack('eager');
    const deferred = stack('deferred');
    expect(eager.replayer).toEqual({ eventRecords: 7567, eventWaits: 7567 });
    expect(eager.driver.eventRecords).toBeGreaterThanOrEqual(arrow.eventCount / 2);
    expect(deferred.driver.eventRecords).toBeLessThanOrEqual(eager.driver.eventRecords / 4);
    expect((deferred.peakReservedBytes as number) / (eager.peakReservedBytes as number)).toBeCloseTo(1, 1.7);
  });

  test('asks the leaf for its reserved bytes, and finds none left', async () => {
    const log = await readText(logText(row('allocate', 1, 3 * MiB), row('free', 1, 3 * MiB), row('allocate', 2, MiB)));
    using other = new HostMemoryResource();
    using stream = new Stream();
    const pointer = other.allocate(5 * MiB, stream);
    expect(replay(log, 'host')).toMatchObject({ peakReservedBytes: 3 * MiB, leakedBytes: 0, logLeakedBytes: MiB });
    expect(replay(log, 'pool(cuda-async, initialBytes=8MiB)').peakReservedBytes).toBeGreaterThanOrEqual(8 * MiB);
    expect(replay(log, 'pool(cuda-async, initialBytes=8MiB)').leakedBytes).toBe(0);
    other.deallocate(pointer, 5 * MiB, stream);
  });

  test('asks all leaves of a stack with branches, but leaves with a shared count only once', async () => {
    const log = await readText(
      logText(
        row('allocate', 1, 100),
        row('allocate', 2, MiB),
        row('free', 1, 100),
        row('allocate', 3, 50),
        row('free', 2, MiB),
        row('free', 3, 50),
      ),
    );
    const reserved = (one: () => MemoryResource, two: () => MemoryResource) =>
      replayLog(log, () => ResourceStack.of(new TwoWayResource(one(), two())), { repeat: 1 });
    const cuda = () => new CudaMemoryResource();
    const managed = () => new ManagedMemoryResource();
    expect(reserved(cuda, managed)).toMatchObject({ peakReservedBytes: 100 + MiB, leakedBytes: 0 });
    expect(reserved(cuda, cuda)).toMatchObject({ peakReservedBytes: 100 + MiB, leakedBytes: 0 });
    expect(reserved(() => new PoolMemoryResource(cuda()), cuda).peakReservedBytes).toBeGreaterThan(MiB);
    expect(reserved(cuda, () => new CudaAsyncMemoryResource())).toMatchObject({ leakedBytes: 0 });
    expect(reserved(cuda, () => new Recorder())).toMatchObject({ peakReservedBytes: null, leakedBytes: null });
  });

  test('finds what is left on any branch', async () => {
    class Forgetful extends HostMemoryResource {
      override deallocate(): void {}
    }
    const log = await readText(logText(row('allocate', 1, 11), row('allocate', 2, 5000), row('free', 1, 11), row('free', 2, 5000)));
    const create = () => {
      const [host, cuda] = [new Forgetful(), new CudaMemoryResource()];
      return ResourceStack.of(new TwoWayResource(cuda, host), { foreignReservedBytes: host.reservedBytes });
    };
    expect(replayLog(log, create, { repeat: 1 })).toMatchObject({ leakedBytes: 5000 });
  });

  test('reports what a layer does not free', async () => {
    class Forgetful extends HostMemoryResource {
      override deallocate(pointer: number, bytes: number, stream: Stream): void {
        if (bytes !== 11) super.deallocate(pointer, bytes, stream);
      }
    }
    const log = await readText(logText(row('allocate', 1, 11), row('allocate', 2, 5), row('free', 1, 11), row('free', 2, 5)));
    const held = new HostMemoryResource().reservedBytes;
    const create = () => {
      const resource = new Forgetful();
      return ResourceStack.of(resource, { foreignReservedBytes: resource.reservedBytes });
    };
    expect(replayLog(log, create, { repeat: 1 })).toMatchObject({ resource: 'Forgetful', leakedBytes: 11 });
    expect(new HostMemoryResource().reservedBytes - held).toBe(22);
  });
});

describe('a replay that runs out of memory', () => {
  const rows = [
    row('allocate', 1, 600),
    row('allocate', 2, 600),
    row('free', 2, 600),
    row('allocate', 3, 200),
    row('free', 1, 600),
    row('allocate', 4, 900),
  ];

  test('counts the failures, names the first, skips their frees and goes on', async () => {
    const log = await readText(logText('1,00:00:00.000000,allocate failure,(nil),5,0', ...rows));
    for (const streams of ['log', 'single'] as const) {
      const result = replay(log, 'limiting(host, limitBytes=1KiB)', { streams });
      expect(result).toMatchObject({ failures: 2, peakLiveBytes: 800, leakedBytes: 0 });
      expect(result.firstFailure).toMatchObject({ line: 4, event: 1, bytes: 600, stream: streams === 'log' ? '0x0' : 'all' });
      expect(result.firstFailure?.message).toMatch(/limit of 1 KiB/);
    }
  });

  test('does so on several streams as well', async () => {
    const log = await readText(logText(...rows.map((text, i) => text.replace(/0x0$/, `0x${i % 2}f`))));
    expect(replay(log, 'limiting(host, limitBytes=1KiB)')).toMatchObject({
      streamCount: 2,
      failures: 2,
      peakLiveBytes: 800,
      leakedBytes: 0,
    });
  });

  test('stops at the start if the stack itself cannot be constructed', () => {
    expect(() => replay(arrow, 'pool(cuda, initialBytes=1TiB)')).toThrow(OutOfMemoryError);
  });
});

describe('a replay that cannot go on', () => {
  test('names the line, and disposes the stack', async () => {
    const reason = new Error('the resource is broken');
    class Broken extends Recorder {
      override deallocate(): void {
        throw reason;
      }
    }
    const broken = new Broken();
    const log = await readText(logText(row('allocate', 1, 10), row('free', 1, 10)));
    expect(() => replayLog(log, () => ResourceStack.of(broken))).toThrow(
      expect.objectContaining({
        name: 'ReplayError',
        code: 'ERR_CISTERN_REPLAY',
        message: 'trace.csv, line 3: the replay of "free 10 bytes" failed: the resource is broken',
        line: 3,
        cause: reason,
      }),
    );
    expect(broken.isDisposed).toBe(true);
    expect(ReplayError).toBeTypeOf('function');
  });

  test.each(['cuMemFree', 'cuEventRecord', 'cuStreamWaitEvent'])('leaves nothing allocated after a failure of %s', async (name) => {
    const log = await readText(
      logText(
        row('allocate', 1, 1000, { stream: '0x10' }),
        row('allocate', 2, 2000, { stream: '0x20' }),
        row('allocate', 3, 3000, { stream: '0x20' }),
        row('free', 1, 1000, { stream: '0x20' }),
        row('free', 2, 2000, { stream: '0x20' }),
      ),
    );
    const before = new CudaMemoryResource().reservedBytes;
    for (let nth = 1; nth <= 2; nth++) {
      failCall(name, nth, 999);
      expect(() => replayLog(log, () => createResourceStack('statistics(cuda)'), { repeat: 1 })).toThrow(ReplayError);
      expect(new CudaMemoryResource().reservedBytes).toBe(before);
    }
  });

  test('treats an out-of-memory error at a free as a fault', async () => {
    class Broken extends Recorder {
      override deallocate(): void {
        throw new OutOfMemoryError('no', { requestedBytes: 1, path: [] });
      }
    }
    const log = await readText(logText(row('allocate', 1, 10), row('free', 1, 10)));
    expect(() => replayLog(log, () => ResourceStack.of(new Broken()))).toThrow(ReplayError);
  });

  test('refuses a log without events and options out of range', async () => {
    const create = () => createResourceStack('host');
    const empty = await readText(header);
    expect(() => replayLog(empty, create)).toThrow(InvalidLogError);
    expect(() => replayLog(arrow, create, { repeat: 0 })).toThrow('repeat must be an integer from 1 to 2^53 - 1, got 0');
    expect(() => replayLog(arrow, create, { streams: 'all' as 'log' })).toThrow("streams must be 'log', 'thread', 'single', got \"all\"");
    expect(() => replayLog({} as AllocationLog, create)).toThrow('log must be an AllocationLog, got an instance of Object');
  });
});
