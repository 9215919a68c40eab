import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { mailbox, native } from '../../src/driver/native.js';
import { check } from '../../src/driver/status.js';
import {
  ArenaMemoryResource,
  advise,
  CachingMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  copy,
  copySync,
  copyToHost,
  copyToHostSync,
  createResourceStack,
  type DeallocationEvents,
  Device,
  DeviceBuffer,
  Event,
  KiB,
  LimitingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  managedRangeAttributes,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  pointerInfo,
  prefetch,
  ReclaimingResourceAdaptor,
  Stream,
  setSync,
  VirtualMemoryResource,
} from '../../src/index.js';
import {
  AdmittingResourceAdaptor,
  SpillableBuffer,
  SpillingResourceAdaptor,
  type SpillingResourceAdaptorOptions,
  type SpillPin,
  sleepResource,
  wakeResource,
} from '../../src/serving/index.js';
import { replayLog } from '../../src/tools/replay/index.js';
import { slowlyCleared } from '../support/slowly-cleared.js';
import { logText, readText, row } from '../tools/formats/logs.js';
import type { Scenario, ScenarioRun } from './scenario-run.js';

const policies: readonly DeallocationEvents[] = ['eager', 'deferred', 'off'];

const bufferStacks = [
  'cuda',
  'cuda-async',
  'managed',
  'pinned-host',
  'pinned-host(populateThreads=2)',
  'host',
  'pool(cuda,deallocationEvents=deferred)',
  'arena(cuda,arenaBytes=4MiB)',
  'monotonic(cuda)',
  'caching(cuda)',
  'reclaiming(pool(cuda-async))',
];

/** Buffers, copies, streams and events; and the special operations of each resource. */
export function operationScenarios(): Scenario[] {
  return [
    ...bufferStacks.map((text) => ({ name: `buffers of ${text}`, play: (run: ScenarioRun) => playBuffers(run, text) })),
    { name: 'large pinned memory', play: playLargePinned },
    { name: 'copies, events and streams', play: playTransfers },
    { name: 'two devices', play: playTwoDevices },
    { name: 'advice and prefetch', play: playManaged },
    { name: 'buffers that move', play: playMoves },
    { name: 'host functions that free', play: playHostFunctions },
    { name: 'memory that sleeps and wakes', play: playSleep },
    { name: 'buffers that leave and come back', play: playSpill },
    { name: 'buffers that leave for an admission', play: playSpillForAdmission },
    { name: 'buffers that go on to files', play: playSpillToFiles },
    ...policies.flatMap((events) => [
      { name: `marks, events=${events}`, play: (run: ScenarioRun) => playMarks(run, events) },
      { name: `runs of a cache, events=${events}`, play: (run: ScenarioRun) => playCacheRuns(run, events) },
      { name: `streams made elsewhere, events=${events}`, play: (run: ScenarioRun) => playForeignStreams(run, events) },
      { name: `busy streams that end, events=${events}`, play: (run: ScenarioRun) => playBusyStreams(run, events) },
    ]),
    { name: 'reclaiming', play: playReclaiming },
    ...['limiting(pool(cuda),limitBytes=1MiB)', 'statistics(cuda)', 'cuda-async'].map((text) => ({
      name: `replaying a log on ${text}`,
      play: (run: ScenarioRun) => playReplay(run, text),
    })),
  ];
}

/** Pinned memory that threads clear, and, if the driver does not take that, memory that it clears itself. */
function playLargePinned(run: ScenarioRun): void {
  using _slow = slowlyCleared();
  const resource = run.make('a leaf', () => new PinnedHostMemoryResource());
  const stream = run.make('a stream', () => new Stream({ nonBlocking: true }));
  const sizes = [16 * MiB, MiB, 17 * MiB];
  const pointers = sizes.map((bytes) => run.do(`allocate ${bytes} bytes`, () => resource.allocate(bytes, stream)));
  for (const [i, bytes] of sizes.entries()) {
    const pointer = pointers[i] as number;
    run.do('fill', () => setSync(pointer, i + 1, 1, bytes, stream));
    const last = new Uint8Array(1);
    run.do('read', () => copyToHostSync(last, pointer + bytes - 1, stream));
    run.check(last[0] === i + 1, 'pinned memory has what was written there');
    run.do('free', () => resource.deallocate(pointer, bytes, stream));
  }
  run.checkGivenBack(resource.reservedBytes === 0, 'pinned memory is given back');
}

/** Memory that sleeps twice, once without its contents. */
async function playSleep(run: ScenarioRun): Promise<void> {
  const upstream = run.make('a leaf', () => new VirtualMemoryResource());
  const pool = run.make('a pool', () => new PoolMemoryResource(upstream, { deallocationEvents: 'deferred' }));
  const stream = run.make('a stream', () => new Stream({ nonBlocking: true }));
  const freed = run.make('a buffer', () => new DeviceBuffer(3 * MiB, { resource: pool, stream }));
  const buffer = run.make('another buffer', () => new DeviceBuffer(5 * MiB, { resource: pool, stream }));
  run.do('fill', () => buffer.fill(7));
  run.do('dispose the first', () => freed.dispose());
  await run.doAsync('sleep', () => sleepResource(pool, { keep: 'host' }));
  run.check(upstream.isAsleep && upstream.reservedBytes === 0, 'memory that sleeps is not mapped');
  run.refused('allocate', 'ERR_CISTERN_ASLEEP', () => pool.allocate(1000, stream));
  await run.doAsync('wake', () => wakeResource(pool));
  run.check(!upstream.isAsleep, 'memory is awake');
  const contents = run.do('copy to the host', () => buffer.toHostSync());
  run.check(Buffer.from(contents).equals(Buffer.alloc(5 * MiB, 7)), 'memory that slept has its contents');
  await run.doAsync('sleep again', () => sleepResource(pool, { keep: 'nothing' }));
  await run.doAsync('wake again', () => wakeResource(pool));
  run.do('fill again', () => buffer.fill(8));
  const pinned = run.make('pinned memory', () => new PinnedHostMemoryResource());
  run.checkGivenBack(pinned.reservedBytes === 0, 'the host memory that kept contents is free');
}

interface Spilling {
  readonly resource: SpillingResourceAdaptor;
  readonly admitting: AdmittingResourceAdaptor;
  readonly pool: PoolMemoryResource;
  readonly host: PoolMemoryResource;
}

/** Spilling from 4 MiB that all can be promised. */
function makeSpilling(run: ScenarioRun, options: SpillingResourceAdaptorOptions = {}): Spilling {
  const most = 4 * MiB;
  const leaf = run.make('a leaf', () => new CudaMemoryResource());
  const pool = run.make('a pool', () => new PoolMemoryResource(leaf, { initialBytes: most, maximumBytes: most }));
  const admitting = run.make('an admission', () => new AdmittingResourceAdaptor(pool, { limitBytes: most }));
  const pinned = run.make('pinned memory', () => new PinnedHostMemoryResource());
  const host = run.make('a pool of the host', () => new PoolMemoryResource(pinned, { deallocationEvents: 'deferred' }));
  const resource = run.make('spilling', () => new SpillingResourceAdaptor(admitting, host, options));
  return { resource, admitting, pool, host };
}

/** A buffer with a value in all of its bytes. */
function makeSpillable(run: ScenarioRun, resource: MemoryResource, stream: Stream, bytes: number, value: number): SpillableBuffer {
  const buffer = run.make(`buffer ${value}`, () => new SpillableBuffer(bytes, { resource, stream }));
  const pin = run.do('pin for its first use', () => buffer.pinSync());
  run.do('fill', () => pin.fill(value));
  run.do('end the first use', () => pin.dispose());
  return buffer;
}

/** Pins a buffer, and looks at its contents. Returns the pin. */
async function pinned(run: ScenarioRun, buffer: SpillableBuffer, stream: Stream, value: number): Promise<SpillPin> {
  const pin = await run.doAsync('pin', () => buffer.pin(stream));
  const contents = await run.doAsync('copy to the host', () => pin.toHost());
  run.check(Buffer.alloc(contents.length, value).equals(contents), `a buffer that was away has its contents, ${value}`);
  return pin;
}

/** Buffers push each other out, by pins of several kinds on two streams, one of which ends. */
async function playSpill(run: ScenarioRun): Promise<void> {
  const { resource, pool, host } = makeSpilling(run);
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const one = makeSpillable(run, resource, a, MiB * 1.5, 1);
  const two = makeSpillable(run, resource, a, MiB * 1.5, 2);
  const three = makeSpillable(run, resource, b, MiB * 1.5, 3);
  const first = await pinned(run, one, b, 1);
  run.do('write on b', () => first.fill(4));
  run.do('pin the third', () => three.pinSync(a).dispose());
  run.do('end the pin on b', () => first.dispose());
  run.do('dispose stream b', () => b.dispose());
  run.do('let all leave', () => void resource.spill());
  run.do('prefetch', () => void two.prefetch());
  const both = await run.doAsync('pin two', () => SpillableBuffer.pinAll([two, one], a));
  for (const pin of both) run.do('end a pin', () => pin.dispose());
  for (const [buffer, value] of [
    [one, 4],
    [two, 2],
    [three, 3],
  ] as const) {
    const pin = await pinned(run, buffer, a, value);
    run.do('end the pin', () => pin.dispose());
  }
  const plain = run.do('allocate', () => resource.allocate(3 * MiB, a));
  run.do('free', () => resource.deallocate(plain, 3 * MiB, a));
  for (const buffer of [one, two, three]) run.do('dispose a buffer', () => buffer.dispose());
  const { buffers, liveBytes } = resource.statistics();
  run.checkGivenBack(buffers === 0 && liveBytes === 0, 'no bytes are live without buffers');
  const allocatedBytes = pool.statistics().allocatedBytes + host.statistics().allocatedBytes;
  run.checkGivenBack(allocatedBytes === 0, 'neither the device nor the host has memory of buffers');
}

/** A buffer goes to a file and comes back, by a prefetch, and is on its way again when it is disposed. */
async function playSpillToFiles(run: ScenarioRun): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'cistern-sweep-'));
  try {
    const { resource } = makeSpilling(run, { folder });
    const stream = run.make('a stream', () => new Stream({ nonBlocking: true }));
    const other = run.make('another stream', () => new Stream({ nonBlocking: true }));
    const one = makeSpillable(run, resource, stream, 4 * KiB, 1);
    // A host without memory refuses without an error.
    const toFile = async () => {
      for (let attempt = 0; attempt < 3 && resource.statistics().fileBytes === 0; attempt++) {
        run.do('let it leave', () => void resource.spill());
        await run.doAsync('go to a file', () => resource.spillToFiles());
      }
    };
    await toFile();
    run.check(resource.statistics().fileBytes === 4 * KiB, 'the buffer is in a file');
    run.do('prefetch', () => void one.prefetch());
    const pin = await pinned(run, one, other, 1);
    run.do('end the pin', () => pin.dispose());
    await toFile();
    run.do('begin to bring it back', () => void one.prefetch());
    run.do('dispose it on its way', () => one.dispose());
    run.checkGivenBack(resource.statistics().buffers === 0, 'there are no buffers');
    run.do('dispose the resource', () => resource.dispose());
    // What stages a transfer is freed once that has ended.
    for (let turn = 0; turn < 20; turn++) await nextTurn();
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Requests wait for what buffers have outside of grants. */
async function playSpillForAdmission(run: ScenarioRun): Promise<void> {
  const { resource, admitting } = makeSpilling(run);
  const stream = run.make('a stream', () => new Stream({ nonBlocking: true }));
  const idle = makeSpillable(run, resource, stream, 2 * MiB, 1);
  const used = makeSpillable(run, resource, stream, 1 * MiB, 2);
  const pin = run.do('pin', () => used.pinSync());
  const reserve = (bytes: number) => run.doAsync(`reserve ${bytes} bytes`, () => admitting.reserve(bytes));
  // If the copy was refused, what is freed next tries it again, which a second call that fails may refuse as well.
  const retry = () => {
    for (let attempt = 0; attempt < 2 && admitting.statistics().waiting > 0; attempt++) {
      const pointer = run.do('allocate', () => resource.allocate(256, stream));
      run.do('free', () => resource.deallocate(pointer, 256, stream));
    }
  };
  const first = reserve(2 * MiB);
  retry();
  using grant = await first;
  const second = reserve(2 * MiB);
  run.check(admitting.statistics().waiting === 1, 'a request waits for what is pinned');
  run.do('end the pin', () => pin.dispose());
  retry();
  using other = await second;
  run.check(grant.bytes + other.bytes === admitting.limitBytes, 'everything is promised');
  for (const each of [grant, other]) run.do('give back', () => each.dispose());
  for (const [buffer, value] of [
    [idle, 1],
    [used, 2],
  ] as const) {
    const last = await pinned(run, buffer, stream, value);
    run.do('end the last pin', () => last.dispose());
  }
}

/** Everything that a buffer can do, and its state afterwards. */
async function playBuffers(run: ScenarioRun, specification: string): Promise<void> {
  const { resource } = run.make('the stack', () => createResourceStack(specification));
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const data = Uint8Array.from({ length: 3000 }, (_, i) => i);
  const buffer = run.make('a buffer with data', () => new DeviceBuffer(data, { resource, stream: a }));
  const other = run.make('a buffer', () => new DeviceBuffer(1000, { resource, stream: b, capacityBytes: 2000 }));
  run.do('fill', () => other.fill(7));
  run.do('copy from a buffer of another stream', () => other.copyFrom(buffer, { sourceByteOffset: 100, byteLength: 50, byteOffset: 10 }));
  // Must wait for that copy, which reads it.
  run.do('write the source again', () => buffer.copyFrom(data));
  run.do('copy from the host', () => other.copyFrom(Uint8Array.of(1, 2, 3), { byteOffset: 997 }));
  run.do('resize', () => other.resize(2500));
  run.do('reserve', () => other.reserve(5000));
  run.do('resize', () => other.resize(1000));
  run.do('shrink', () => other.shrinkToFit());
  const half = run.do('copy to the host', () => other.toHostSync(new Uint8Array(500)));
  run.check(half[9] === 7 && half[10] === 100 && half[59] === 149 && half[60] === 7, 'a buffer keeps what it holds when it moves');
  const event = run.make('an event', () => new Event());
  run.do('record', () => event.record(b));
  run.do('wait', () => a.wait(event));
  run.do('set the stream', () => other.setStream(a));
  const whole = await run.doAsync('copy to the host later', () => other.toHost());
  run.check(whole.length === 1000 && whole[997] === 1 && whole[999] === 3, 'a buffer holds what was copied to it');
  run.do('dispose a buffer', () => other.dispose());
  const again = await run.doAsync('copy the first to the host', () => buffer.toHost());
  run.check(
    again.every((byte, i) => byte === data[i]),
    'a buffer holds what it was made with',
  );
  // Its memory is given back without the stream, which has ended.
  run.do('dispose stream a', () => a.dispose());
}

async function playTransfers(run: ScenarioRun): Promise<void> {
  const resource = run.make('a resource', () => new CudaMemoryResource());
  const stream = run.make('a stream', () => new Stream({ priority: -1 }));
  const start = run.make('an event', () => new Event({ timing: true }));
  const end = run.make('another event', () => new Event({ timing: true }));
  const from = run.do('allocate', () => resource.allocate(8192, stream));
  const to = run.do('allocate', () => resource.allocate(8192, stream));
  run.do('record the start', () => start.record(stream));
  run.do('set and wait', () => setSync(from, 5, 1, 8192, stream));
  run.do('copy', () => copy(to, from, 8192, stream));
  run.do('copy and wait', () => copySync(to + 4096, from, 4096, stream));
  run.do('record the end', () => end.record(stream));
  await run.doAsync('await the end', () => end.synchronize());
  run.do('wait for the end', () => end.synchronizeSync());
  run.do('query the end', () => end.query());
  run.check(run.do('measure', () => end.elapsedMilliseconds(start)) >= 0, 'time passes');
  const host = run.do('copy to the host', () => {
    const array = new Uint8Array(8192);
    copyToHostSync(array, to, stream);
    return array;
  });
  run.check(
    host.every((byte) => byte === 5),
    'a copy holds what was copied',
  );
  const bytes = await run.doAsync('copy to the host later', () => copyToHost(to, 8192, stream));
  run.check(
    new Uint8Array(bytes).every((byte) => byte === 5),
    'a copy holds what was copied',
  );
  run.do('look at a pointer', () => pointerInfo(to));
  run.do('read the handle', () => stream.nativeHandle);
  run.do('read the priority', () => stream.priority);
  run.do('read the flags', () => stream.isNonBlocking);
  run.do('query', () => stream.query());
  await run.doAsync('await the stream', () => stream.synchronize());
  run.do('wait for the stream', () => stream.synchronizeSync());
  const device = Device.get();
  await run.doAsync('await the device', () => device.synchronize());
  run.do('wait for the device', () => device.synchronizeSync());
  run.do('read the memory', () => device.memoryInfo());
  run.do('read an attribute', () => device.attribute('multiprocessorCount'));
  run.do('read the priorities', () => device.streamPriorityRange());
  run.do('read the version', () => Device.driverVersion());
  run.do('free', () => resource.deallocate(to, 8192, stream));
  run.do('free', () => resource.deallocate(from, 8192, stream));
}

function playTwoDevices(run: ScenarioRun): void {
  const devices = [Device.get(0), Device.get(1)];
  const [near, far] = devices.map((device, i) => {
    const upstream = run.make(`a resource of device ${i}`, () => new CudaAsyncMemoryResource({ device }));
    const pool = run.make(`a pool of device ${i}`, () => new PoolMemoryResource(upstream));
    const stream = run.make(`a stream of device ${i}`, () => new Stream({ device, nonBlocking: true }));
    return run.make(`a buffer of device ${i}`, () => new DeviceBuffer(Uint8Array.of(i, i, i, i), { resource: pool, stream }));
  }) as [DeviceBuffer, DeviceBuffer];
  run.do('copy between devices', () => far.copyFrom(near, { byteLength: 2 }));
  run.do('grow on the other device', () => far.resize(100_000));
  const bytes = run.do('copy to the host', () => far.toHostSync(new Uint8Array(4)));
  run.check(bytes.join() === '0,0,1,1', 'a buffer holds what was copied to it from another device');
}

function playManaged(run: ScenarioRun): void {
  const resource = run.make('a resource', () => new ManagedMemoryResource());
  const stream = run.make('a stream', () => new Stream());
  const pointer = run.do('allocate', () => resource.allocate(100_000, stream));
  run.do('advise', () => advise(pointer, 100_000, 'set-read-mostly'));
  run.do('advise', () => advise(pointer, 100_000, 'set-preferred-location', 'host'));
  run.do('prefetch', () => prefetch(pointer, 100_000, Device.get(), stream));
  run.do('prefetch', () => prefetch(pointer, 100_000, 'host', stream));
  const attributes = run.do('ask', () => managedRangeAttributes(pointer, 100_000));
  run.check(attributes.isReadMostly && attributes.lastPrefetchLocation === 'host', 'memory has the advised attributes');
  run.do('free', () => resource.deallocate(pointer, 100_000, stream));
}

/** Managed memory moves, other memory is copied, a buffer changes its resource, the host looks at it. */
async function playMoves(run: ScenarioRun): Promise<void> {
  const managed = run.make('managed memory', () => new ManagedMemoryResource());
  const plain = run.make('device memory', () => new CudaMemoryResource());
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const data = Uint8Array.from({ length: 3000 }, (_, i) => i);
  const buffer = run.make('a buffer', () => new DeviceBuffer(data, { resource: managed, stream: a }));
  const preferredLocation = run.do('ask', () => Device.get().attribute('concurrentManagedAccess')) === 1;
  if (!preferredLocation) {
    run.refused('prefer the device', 'ERR_CISTERN_NOT_SUPPORTED', () => buffer.to(Device.get(), { preferredLocation: true }));
  }
  run.do('move to the device', () => buffer.to(Device.get(), { preferredLocation }));
  run.do('move to another stream', () => buffer.to(Device.get(), { stream: b }));
  await run.doAsync('move to the host later', () => buffer.toAsync('host'));
  run.do('move to the host', () => buffer.to('host'));
  const view = run.do('view', () => buffer.hostView(Uint8Array));
  run.check(view[2999] === data[2999], 'the host sees what a buffer holds');
  run.do('recast', () => buffer.recast(plain, { stream: a }));
  run.check(view.byteLength === 0 && buffer.resource === plain && buffer.stream === a, 'a view ends when its memory does');
  const { buffer: copy } = run.do('copy to the host', () => buffer.to('host'));
  run.check(run.do('view the copy', () => copy.hostView(Uint8Array))[2999] === data[2999], 'a copy holds what was copied');
  run.do('dispose the copy', () => copy.dispose());
  run.do('recast back', () => buffer.recast(managed));
  const whole = run.do('read', () => buffer.toHostSync());
  run.check(
    whole.every((byte, i) => byte === data[i]),
    'a buffer keeps what it holds when its resource changes',
  );
}

/** Host functions run while a free waits for the device, and free memory themselves. */
function playHostFunctions(run: ScenarioRun): void {
  const upstream = run.make('a resource', () => new CudaMemoryResource());
  const pool = run.make('a pool', () => new PoolMemoryResource(upstream, { deallocationEvents: 'deferred' }));
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const inner = run.do('allocate', () => pool.allocate(50_000, a));
  const outer = run.do('allocate from below', () => upstream.allocate(50_000, a));
  a.touch(inner, 50_000, 'write');
  run.do('launch a host function', () => a.launchHostFunction(() => run.do('free in it', () => pool.deallocate(inner, 50_000, a))));
  const other = run.do('allocate', () => pool.allocate(40_000, b));
  b.touch(other, 40_000, 'write');
  run.do('free below', () => upstream.deallocate(outer, 50_000, b));
  run.do('free', () => pool.deallocate(other, 40_000, b));
  run.do('trim', () => pool.trim(b));
  run.do('synchronize', () => a.synchronizeSync());
}

function playMarks(run: ScenarioRun, deallocationEvents: DeallocationEvents): void {
  const upstream = run.make('a resource', () => new CudaAsyncMemoryResource());
  const fallback = run.make('a fallback', () => new CudaMemoryResource());
  const options = { initialBytes: 64 * 1024, maximumBytes: 512 * 1024, fallback, deallocationEvents };
  const scratch = run.make('a monotonic resource', () => new MonotonicMemoryResource(upstream, options));
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const allocate = (bytes: number, stream: Stream) => {
    const pointer = run.do(`allocate ${bytes} bytes`, () => scratch.allocate(bytes, stream));
    stream.touch(pointer, bytes, 'write');
    return pointer;
  };
  allocate(10_000, a);
  const mark = run.do('mark', () => scratch.mark());
  for (let step = 0; step < 2; step++) {
    const onA = allocate(100_000, a);
    allocate(50_000, b);
    // Freed on another stream than it was allocated on.
    const event = run.make('an event', () => new Event());
    run.do('record', () => event.record(a));
    run.do('wait', () => b.wait(event));
    b.touch(onA, 100_000, 'write');
    run.do('free on b', () => scratch.deallocate(onA, 100_000, b));
    allocate(300_000, a);
    // From the fallback.
    allocate(600_000, a);
    run.do('rewind', () => scratch.rewind(mark));
  }
  allocate(20_000, b);
  run.do('dispose stream b', () => b.dispose());
  run.do('rewind', () => scratch.rewind(mark));
  allocate(200_000, a);
  run.do('trim', () => scratch.trim(a));
  run.do('reset', () => scratch.reset());
  allocate(400_000, a);
  run.do('release', () => scratch.release(a));
  allocate(1_000, a);
}

async function playCacheRuns(run: ScenarioRun, deallocationEvents: DeallocationEvents): Promise<void> {
  const upstream = run.make('a resource', () => new CudaAsyncMemoryResource());
  const limiting = run.make('a limit', () => new LimitingResourceAdaptor(upstream, { limitBytes: 1024 * 1024 }));
  const cache = run.make('a cache', () => new CachingMemoryResource(limiting, { deallocationEvents }));
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  const pass = () => {
    const pointer = cache.allocate(100_000, a);
    a.touch(pointer, 100_000, 'write');
    const buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { stream: b });
    cache.run(() => cache.allocate(50_000, b));
    return buffer;
  };
  for (let step = 0; step < 2; step++) {
    const buffer = run.do('run', () => cache.run(pass));
    run.check(buffer.isDisposed, 'a buffer ends with the run it was made in');
  }
  await run.doAsync('run asynchronously', () =>
    cache.run(async () => {
      const buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { stream: b });
      await buffer.toHost();
    }),
  );
  const kept = run.make('a buffer that is kept', () => cache.run(() => cache.keep(new DeviceBuffer(5_000, { stream: a }))));
  run.do('grow what is kept', () => kept.resize(20_000));
  // Other sizes must make room for it.
  run.do('run with all there is', () => cache.run(() => b.touch(cache.allocate(900_000, b), 900_000, 'write')));
  // Memory of an ended stream that a run takes back is ordered after everything.
  run.do('run on a stream that ends', () =>
    cache.run(() => {
      const ending = new Stream({ nonBlocking: true });
      try {
        ending.touch(cache.allocate(30_000, ending), 30_000, 'write');
      } finally {
        ending.dispose();
      }
    }),
  );
  run.do('dispose stream b', () => b.dispose());
  run.do('invalidate', () => cache.invalidate(a));
  run.do('run again', () => cache.run(() => cache.allocate(10_000, a)));
}

/** A stream of the driver that cistern does not know until it is registered. */
class ForeignStream {
  readonly address: number;
  readonly #handle: number;

  constructor() {
    native().createStream(0, true, 0);
    check('create a stream');
    this.#handle = mailbox[1] as number;
    native().streamAddress(this.#handle);
    this.address = mailbox[1] as number;
  }

  [Symbol.dispose](): void {
    native().releaseStream(this.#handle);
    check('destroy a stream');
  }
}

function playForeignStreams(run: ScenarioRun, deallocationEvents: DeallocationEvents): void {
  const upstream = run.make('a resource', () => new CudaMemoryResource());
  const pool = run.make('a pool', () => new PoolMemoryResource(upstream, { deallocationEvents }));
  const scratch = run.make('a monotonic resource', () => new MonotonicMemoryResource(upstream, { deallocationEvents }));
  const own = run.make('a stream', () => new Stream({ nonBlocking: true }));
  for (const announcesEnd of [true, false]) {
    const foreign = run.make('a foreign stream', () => new ForeignStream());
    const stream = run.make('an object for it', () => Stream.fromHandle(foreign.address, { announcesEnd }));
    for (const resource of [pool, scratch]) {
      const pointer = run.do('allocate', () => resource.allocate(30_000, stream));
      stream.touch(pointer, 30_000, 'write');
      run.do('free', () => resource.deallocate(pointer, 30_000, stream));
      const other = run.do('allocate', () => resource.allocate(20_000, own));
      own.touch(other, 20_000, 'write');
      run.do('free', () => resource.deallocate(other, 20_000, own));
    }
    run.do('reset', () => scratch.reset());
    run.do('dispose the object', () => stream.dispose());
    const after = run.do('allocate', () => pool.allocate(40_000, own));
    own.touch(after, 40_000, 'write');
    run.do('free', () => pool.deallocate(after, 40_000, own));
  }
}

/**
 * Streams that end while memory is held for them and their work has not run; and resources that are
 * disposed then.
 */
function playBusyStreams(run: ScenarioRun, deallocationEvents: DeallocationEvents): void {
  const upstream = run.make('a resource', () => new CudaAsyncMemoryResource());
  const pool = run.make('a pool', () => new PoolMemoryResource(upstream, { deallocationEvents }));
  const arena = run.make('an arena', () => new ArenaMemoryResource(pool, { arenaBytes: 1024 * 1024, deallocationEvents }));
  const survivor = run.make('a stream that stays', () => new Stream({ nonBlocking: true }));
  const busy = [0, 1].map((i) => run.make(`busy stream ${i}`, () => new Stream({ nonBlocking: true })));
  for (const stream of busy) {
    // The next blocking call runs it; until then the stream stands still.
    run.do('make it busy', () => stream.launchHostFunction(() => {}));
    for (const resource of [pool, arena]) {
      const pointer = run.do('allocate', () => resource.allocate(60_000, stream));
      stream.touch(pointer, 60_000, 'write');
      run.do('free', () => resource.deallocate(pointer, 60_000, stream));
    }
  }
  run.do('dispose a busy stream', () => (busy[0] as Stream).dispose());
  for (const resource of [pool, arena]) {
    const pointer = run.do('allocate on the other', () => resource.allocate(60_000, survivor));
    survivor.touch(pointer, 60_000, 'write');
    run.do('free', () => resource.deallocate(pointer, 60_000, survivor));
  }
  run.do('defragment', () => arena.defragment());
  run.do('trim', () => arena.trim(survivor));
  run.do('trim', () => pool.trim(survivor));
}

async function playReclaiming(run: ScenarioRun): Promise<void> {
  const upstream = run.make('a resource', () => new CudaMemoryResource());
  const limiting = run.make('a limit', () => new LimitingResourceAdaptor(upstream, { limitBytes: 1024 * 1024 }));
  const pool = run.make('a pool', () => new PoolMemoryResource(limiting, { deallocationEvents: 'off' }));
  const cache = new Set<DeviceBuffer>();
  const onOutOfMemory = () => {
    const [buffer] = cache;
    buffer?.dispose();
    return buffer !== undefined && cache.delete(buffer);
  };
  const stages = ['settle', 'trim', 'callback'] as const;
  const resource = run.make('a reclaiming adaptor', () => new ReclaimingResourceAdaptor(pool, { stages, onOutOfMemory }));
  const a = run.make('stream a', () => new Stream({ nonBlocking: true }));
  const b = run.make('stream b', () => new Stream({ nonBlocking: true }));
  for (const stream of [a, b]) cache.add(run.make('a buffer', () => new DeviceBuffer(400_000, { resource, stream })));
  const pointer = run.do('allocate what the callback gives', () => resource.allocate(500_000, a));
  a.touch(pointer, 500_000, 'write');
  run.do('free', () => resource.deallocate(pointer, 500_000, a));
  const other = await run.doAsync('allocate without blocking', () => resource.allocateAsync(900_000, b));
  b.touch(other, 900_000, 'write');
  run.refused('allocate more than there is', 'ERR_CISTERN_OUT_OF_MEMORY', () => resource.allocate(900_000, a));
  run.do('free', () => resource.deallocate(other, 900_000, b));
  run.check(resource.liveBytes === 0, 'nothing is live');
}

async function playReplay(run: ScenarioRun, specification: string): Promise<void> {
  const log = await readText(
    logText(
      row('allocate', 1, 10_000, { thread: 1, stream: '0x10' }),
      row('allocate', 2, 20_000, { thread: 2, stream: '0x20' }),
      row('free', 1, 10_000, { thread: 1, stream: '0x20' }),
      row('allocate', 3, 10_000, { thread: 1, stream: '0x20' }),
      row('free', 2, 20_000, { thread: 2, stream: '0x20' }),
    ),
  );
  const result = run.do('replay', () => replayLog(log, () => createResourceStack(specification), { repeat: 1 }));
  run.check(result.operations === 5, 'every event is replayed');
}
