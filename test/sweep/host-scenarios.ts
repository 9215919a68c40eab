import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Writable } from 'node:stream';
import { checkOrder } from '../../src/checking/index.js';
import {
  ArenaMemoryResource,
  CachingMemoryResource,
  CallbackMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  DeviceBuffer,
  Event,
  FailureCallbackResourceAdaptor,
  FixedSizeMemoryResource,
  LimitingResourceAdaptor,
  LoggingResourceAdaptor,
  type MemoryResource,
  MonotonicMemoryResource,
  PoolMemoryResource,
  ReclaimingResourceAdaptor,
  reclaimUnreachableBuffers,
  Stream,
  withResource,
} from '../../src/index.js';
import { PlannedMemoryResource } from '../../src/plans/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import type { Scenario, ScenarioRun } from './scenario-run.js';

const poolingResources: Readonly<Record<string, (upstream: MemoryResource) => MemoryResource>> = {
  pool: (upstream) => new PoolMemoryResource(upstream, { initialBytes: 64 * 1024, deallocationEvents: 'deferred' }),
  arena: (upstream) => new ArenaMemoryResource(upstream, { arenaBytes: 1024 * 1024, deallocationEvents: 'eager' }),
  'fixed-size': (upstream) => new FixedSizeMemoryResource(upstream, { blockBytes: 64 * 1024, blocksToPreallocate: 2 }),
  monotonic: (upstream) => new MonotonicMemoryResource(upstream, { initialBytes: 64 * 1024 }),
};

/**
 * Faults of the program around cistern, or of its environment: functions that throw, full disks,
 * pipes that are not read.
 */
export function hostScenarios(): Scenario[] {
  return [
    ...Object.keys(poolingResources).map((name) => ({
      name: `${name} over functions that throw`,
      play: (run: ScenarioRun) => playFunctions(run, name),
    })),
    { name: 'a failure callback that throws', play: playFailureCallback },
    { name: 'onOutOfMemory that throws', play: playOnOutOfMemory },
    { name: 'bodies of runs and scopes that throw', play: playBodies },
    { name: 'plans that are learnt', play: playPlans },
    { name: 'host functions that throw', play: playHostFunctions },
    { name: 'an order checker whose onViolation throws', play: playOnViolation },
    { name: 'a log to a stream that fails', play: playFailingStream },
    { name: 'a log on a full disk', play: playFullDisk },
    { name: 'a log to a closed pipe', play: playClosedPipe },
    { name: 'the dump of an arena on a full disk', play: playFullDump },
  ];
}

/** A pooling resource over two functions, each of which may throw at any time. */
function playFunctions(run: ScenarioRun, name: string): void {
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const upstream = run.make(
    'a resource of functions',
    () =>
      new CallbackMemoryResource(
        (bytes, stream) => {
          run.hostCall('allocate function');
          return leaf.allocate(bytes, stream);
        },
        (pointer, bytes, stream) => {
          run.hostCall('deallocate function');
          leaf.deallocate(pointer, bytes, stream);
        },
      ),
  );
  const pool = run.make('a pooling resource', () => (poolingResources[name] as (typeof poolingResources)[string])(upstream));
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const first = run.do('allocate', () => pool.allocate(60_000, a));
  a.touch(first, 60_000, 'write');
  const second = run.do('allocate', () => pool.allocate(50_000, b));
  b.touch(second, 50_000, 'write');
  run.do('free', () => pool.deallocate(first, 60_000, a));
  run.do('dispose stream a', () => a.dispose());
  if ('trim' in pool) run.do('trim', () => (pool as PoolMemoryResource).trim(b));
  const third = run.do('allocate', () => pool.allocate(60_000, b));
  b.touch(third, 60_000, 'write');
}

function playFailureCallback(run: ScenarioRun): void {
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const limiting = run.make('a limit', () => new LimitingResourceAdaptor(leaf, { limitBytes: 100_096 }));
  const stream = run.make('a stream', () => new Stream());
  const held = run.do('allocate', () => limiting.allocate(50_000, stream));
  let isHeld = true;
  const callback = () => {
    run.hostCall('failure callback');
    if (!isHeld) return false;
    limiting.deallocate(held, 50_000, stream);
    isHeld = false;
    return true;
  };
  const resource = run.make('a failure callback', () => new FailureCallbackResourceAdaptor(limiting, callback));
  const pointer = run.do('allocate', () => resource.allocate(90_000, stream));
  run.refused('allocate', 'ERR_CISTERN_OUT_OF_MEMORY', () => resource.allocate(90_000, stream));
  run.do('free', () => resource.deallocate(pointer, 90_000, stream));
  run.check(limiting.allocatedBytes === 0, 'nothing is live');
}

/**
 * Passes on two streams that are recorded, planned and served from the plan; then larger ones, of which
 * another plan is made while memory of the first is live. The planner may throw.
 */
function playPlans(run: ScenarioRun): void {
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const fallback = run.make('a pool', () => new PoolMemoryResource(leaf, { deallocationEvents: 'deferred' }));
  const resource = run.make('a planned resource', () => {
    return new PlannedMemoryResource(leaf, undefined, {
      fallback,
      recordedPasses: 1,
      replanAfter: 1,
      planningMilliseconds: 0,
      planner: (passes, options) => {
        run.hostCall('planner');
        return planAllocations(passes, options);
      },
    });
  });
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const event = run.make('an event', () => new Event());
  const live = new Map<number, number>();
  const allocate = (bytes: number, stream: Stream) => {
    const pointer = run.do(`allocate ${bytes} bytes`, () => resource.allocate(bytes, stream));
    stream.touch(pointer, bytes, 'write');
    for (const [start, other] of live)
      run.check(pointer + bytes <= start || start + other <= pointer, `live allocations do not overlap, at ${pointer}`);
    live.set(pointer, bytes);
    return pointer;
  };
  const free = (pointer: number, stream: Stream) => {
    const bytes = live.get(pointer) as number;
    run.do(`free ${bytes} bytes`, () => resource.deallocate(pointer, bytes, stream));
    live.delete(pointer);
  };
  /** Returns the allocation that lives longest. */
  const pass = (bytes: number) => {
    run.do('begin a pass', () => resource.begin());
    const first = allocate(bytes, a);
    free(first, a);
    run.do('record the event', () => event.record(a));
    run.do('wait for the event', () => b.wait(event));
    const second = allocate(bytes, b);
    const third = allocate(5_000, a);
    free(second, b);
    return third;
  };
  const end = () => run.do('end the pass', () => resource.end());
  /** Passes until another plan is there: one, or two if the planner has thrown. */
  const learn = (bytes: number) => {
    const { plans } = resource.statistics();
    for (let i = 0; i < 3 && resource.statistics().plans === plans; i++) {
      resource.record();
      free(pass(bytes), a);
      end();
    }
    run.check(resource.statistics().plans === plans + 1, 'a plan is made');
  };
  learn(60_000);
  free(pass(60_000), a);
  end();
  // It deviates, and keeps memory of the plan.
  const kept = pass(70_000);
  learn(70_000);
  free(pass(70_000), a);
  free(kept, a);
  run.do('trim', () => resource.trim(b));
  free(pass(70_000), a);
  end();
  run.check(resource.statistics().plannedAllocations === 0, 'nothing of a plan is live');
}

function playOnOutOfMemory(run: ScenarioRun): void {
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const limiting = run.make('a limit', () => new LimitingResourceAdaptor(leaf, { limitBytes: 100_096 }));
  const pool = run.make('a pool', () => new PoolMemoryResource(limiting));
  const stream = run.make('a stream', () => new Stream());
  const held = run.make('a buffer', () => new DeviceBuffer(50_000, { resource: pool, stream }));
  const onOutOfMemory = () => {
    run.hostCall('onOutOfMemory');
    const { capacityBytes } = held;
    held.dispose();
    return capacityBytes;
  };
  const options = { stages: ['trim', 'callback'] as const, onOutOfMemory };
  const resource = run.make('a reclaiming adaptor', () => new ReclaimingResourceAdaptor(pool, options));
  const pointer = run.do('allocate', () => resource.allocate(90_000, stream));
  run.refused('allocate', 'ERR_CISTERN_OUT_OF_MEMORY', () => resource.allocate(90_000, stream));
  run.do('free', () => resource.deallocate(pointer, 90_000, stream));
  run.check(resource.liveBytes === 0, 'nothing is live');
}

async function playBodies(run: ScenarioRun): Promise<void> {
  const leaf = run.make('a leaf', () => new CudaAsyncMemoryResource());
  const cache = run.make('a cache', () => new CachingMemoryResource(leaf));
  const stream = run.make('a stream', () => new Stream({ nonBlocking: true }));
  const body = () => {
    const buffer = new DeviceBuffer(5000, { stream });
    stream.touch(cache.allocate(10_000, stream), 10_000, 'write');
    run.hostCall('body of a run');
    return buffer;
  };
  for (let step = 0; step < 2; step++) {
    const buffer = run.do('run', () => cache.run(body));
    run.check(buffer.isDisposed, 'a buffer ends with its run');
  }
  await run.doAsync('run asynchronously', () =>
    cache.run(async () => {
      body();
      await null;
      return body();
    }),
  );
  run.do('scope', () => withResource(cache, () => run.hostCall('body of a scope')));
  // A buffer whose free was refused at the end of a run has its memory until it is collected.
  if (cache.statistics().busyBlocks > 0) reclaimUnreachableBuffers('major');
  run.check(cache.statistics().activeRuns === 0 && cache.statistics().busyBlocks === 0, 'every run has ended and taken its memory back');
}

/**
 * An error of a host function is an uncaught exception, whichever call runs it; the stream
 * continues.
 */
async function playHostFunctions(run: ScenarioRun): Promise<void> {
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const stream = run.make('a stream', () => new Stream({ nonBlocking: true }));
  const thrown = new Error('thrown by a host function');
  const launch = () =>
    run.do('launch', () =>
      stream.launchHostFunction(() => {
        throw thrown;
      }),
    );
  let uncaught: unknown[] = [];
  const warnings = await heardDuring('warning', async () => {
    uncaught = await heardDuring('uncaughtException', async () => {
      const pointer = run.do('allocate', () => leaf.allocate(5000, stream));
      launch();
      run.do('synchronize', () => stream.synchronizeSync());
      launch();
      await run.doAsync('await the stream', () => stream.synchronize());
      launch();
      run.do('free', () => leaf.deallocate(pointer, 5000, stream));
      await new Promise(setImmediate);
    });
  });
  // While a function waits for its turn, the addon asks now and then whether the device is in error. If
  // that call is the one that fails, the function is lost.
  const lost = warnings.filter((warning) => codeOf(warning) === 'CISTERN_LOST_HOST_FUNCTION');
  run.check(uncaught.length + lost.length === 3, 'what host functions throw is uncaught');
  run.check(
    uncaught.every((error) => error === thrown),
    'host functions throw nothing else',
  );
}

async function playOnViolation(run: ScenarioRun): Promise<void> {
  const thrown = new Error('thrown by onViolation');
  let reports = 0;
  const onViolation = () => {
    reports++;
    throw thrown;
  };
  const leaf = run.make('a leaf', () => new CudaAsyncMemoryResource());
  const [a, b] = ['a', 'b'].map((name) => run.make(`stream ${name}`, () => new Stream({ nonBlocking: true }))) as [Stream, Stream];
  const uncaught = await heardDuring('uncaughtException', async () => {
    const pointer = run.do('allocate', () => leaf.allocate(5000, a));
    run.do('synchronize', () => a.synchronizeSync());
    {
      using _checker = checkOrder({ onViolation });
      const watched = run.do('allocate', () => leaf.allocate(5000, a));
      b.touch(watched, 5000, 'write');
      run.expectOrderViolations();
      run.do('synchronize', () => b.synchronizeSync());
      run.do('free', () => leaf.deallocate(watched, 5000, a));
    }
    run.do('free', () => leaf.deallocate(pointer, 5000, a));
    await new Promise(setImmediate);
  });
  run.check(uncaught.length === reports && uncaught.every((error) => error === thrown), 'what onViolation throws is uncaught');
}

/** A Node stream whose writes sometimes fail, as a socket's do. */
async function playFailingStream(run: ScenarioRun): Promise<void> {
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const stream = run.make('a stream', () => new Stream());
  let rows = 0;
  const target = new Writable({
    write(chunk: Buffer, _encoding, done) {
      try {
        run.hostCall('write to the log');
        rows += String(chunk).split('\n').length - 1;
        done();
      } catch (error) {
        done(error as Error);
      }
    },
  });
  const resource = new LoggingResourceAdaptor(leaf, { stream: target, autoFlush: true });
  for (let step = 0; step < 3; step++) {
    const pointer = run.attempt('allocate', 'ERR_CISTERN_LOG_WRITE', () => resource.allocate(1000, stream));
    if (pointer !== undefined) run.do('free', () => resource.deallocate(pointer, 1000, stream));
    await new Promise(setImmediate);
  }
  if (target.destroyed) run.refused('dispose', 'ERR_CISTERN_LOG_WRITE', () => resource.dispose());
  else run.do('dispose', () => resource.dispose());
  await new Promise(setImmediate);
  run.check(target.destroyed || rows >= 7, 'every row is written');
}

function playFullDisk(run: ScenarioRun): void {
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const stream = run.make('a stream', () => new Stream());
  for (const autoFlush of [true, false]) {
    const resource = run.do('make a log', () => new LoggingResourceAdaptor(leaf, { file: '/dev/full', autoFlush }));
    if (autoFlush) run.refused('allocate', 'ERR_CISTERN_LOG_WRITE', () => resource.allocate(1000, stream));
    else {
      const pointer = run.do('allocate', () => resource.allocate(1000, stream));
      run.refused('flush', 'ERR_CISTERN_LOG_WRITE', () => resource.flush());
      run.do('free', () => resource.deallocate(pointer, 1000, stream));
    }
    run.refused('dispose', 'ERR_CISTERN_LOG_WRITE', () => resource.dispose());
    run.do('dispose again', () => resource.dispose());
  }
}

async function playClosedPipe(run: ScenarioRun): Promise<void> {
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const stream = run.make('a stream', () => new Stream());
  const reader = spawn('sh', ['-c', ':'], { stdio: ['pipe', 'ignore', 'ignore'] });
  await once(reader, 'exit');
  const resource = new LoggingResourceAdaptor(leaf, { stream: reader.stdin, autoFlush: true });
  const pointer = run.attempt('allocate', 'ERR_CISTERN_LOG_WRITE', () => resource.allocate(1000, stream));
  if (!reader.stdin.destroyed) await once(reader.stdin, 'close');
  run.refused('allocate', 'ERR_CISTERN_LOG_WRITE', () => resource.allocate(1000, stream));
  if (pointer !== undefined) run.do('free', () => resource.deallocate(pointer, 1000, stream));
  run.refused('dispose', 'ERR_CISTERN_LOG_WRITE', () => resource.dispose());
}

async function playFullDump(run: ScenarioRun): Promise<void> {
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const arena = run.make('an arena', () => new ArenaMemoryResource(leaf, { arenaBytes: 1024 * 1024, dumpFile: '/dev/full' }));
  const stream = run.make('a stream', () => new Stream());
  const warnings = await heardDuring('warning', async () => {
    run.refused('allocate', 'ERR_CISTERN_OUT_OF_MEMORY', () => arena.allocate(2 * 1024 * 1024, stream));
    await new Promise(setImmediate);
  });
  run.check(
    warnings.some((warning) => codeOf(warning) === 'CISTERN_ARENA_DUMP'),
    'a dump that cannot be written is a warning',
  );
}

/**
 * The uncaught exceptions or process warnings during an action; other listeners do not get them.
 */
async function heardDuring(event: 'uncaughtException' | 'warning', action: () => Promise<void>): Promise<unknown[]> {
  const heard: unknown[] = [];
  const listeners = process.rawListeners(event) as ((error: Error) => void)[];
  process.removeAllListeners(event);
  const listener = (error: Error) => heard.push(error);
  process.on(event, listener);
  try {
    await action();
  } finally {
    process.off(event, listener);
    for (const other of listeners) process.on(event, other);
  }
  return heard;
}

function codeOf(error: unknown): unknown {
  return (error as { code?: unknown }).code;
}
