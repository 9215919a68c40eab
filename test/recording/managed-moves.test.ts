import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  advise,
  CudaMemoryResource,
  configureSoftwareDevice,
  currentBackend,
  Device,
  DeviceBuffer,
  ManagedMemoryResource,
  MiB,
  PoolMemoryResource,
  prefetch,
  Stream,
  set,
} from '../../src/index.js';
import { managedActivity, resetManagedActivity } from '../../src/machine/index.js';
import { annotate, Recording, RecordingResourceAdaptor } from '../../src/recording/index.js';
import { EventKind } from '../../src/tools/formats/event-columns.js';
import { convertLog, type RecordedRun } from '../../src/tools/formats/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { readAllocationLog } from '../../src/tools/replay/index.js';
import { phasePath, readRecording } from '../support/read-recording.js';
import { folder, newFile } from '../support/recordings.js';

const page = 2 * MiB;
const totalBytes = 16 * MiB;
let device: Device;
let stream: Stream;
let before: number;
beforeEach((context) => {
  if (currentBackend() !== 'software') context.skip();
  device = Device.get();
  before = device.totalBytes;
  configureSoftwareDevice({ totalBytes });
  resetManagedActivity();
  stream = new Stream();
});
afterEach(() => {
  stream.dispose();
  configureSoftwareDevice({ totalBytes: before });
});

interface Move {
  readonly place: string;
  /** `-` if the page left. */
  readonly reason: string;
  readonly pointer: number;
  readonly bytes: number;
  readonly stream: string;
  readonly phase: string;
}

/** The moves in a recording, in order. */
function movesOf(run: RecordedRun): Move[] {
  return Array.from(run.kinds).flatMap((kind, i) => {
    const layer = run.layers[run.layerOf[i] as number];
    if (layer?.isPlace !== true || kind > EventKind.free) return [];
    const pointer = run.firsts[i] as number;
    let reason = '-';
    if (kind === EventKind.allocate) {
      expect([run.kinds[i + 1], run.firsts[i + 1]]).toEqual([EventKind.label, pointer]);
      reason = run.labels[run.seconds[i + 1] as number] as string;
    }
    const of = run.streams[run.streamOf[i] as number] as string;
    const phase = phasePath(run, run.phaseOf[i] as number);
    return [{ place: layer.name.replace('managed at ', ''), reason, pointer, bytes: run.seconds[i] as number, stream: of, phase }];
  });
}

/** The moves in words, with the number of the page from a pointer on. */
const inWords = (moves: readonly Move[], from: number) =>
  moves.map(({ place, reason, pointer }) => `${(pointer - from) / page} ${place}: ${reason}`);

/** Records the use of managed memory from its allocation to its free. */
async function recorded(bytes: number, use: (pointer: number, resource: RecordingResourceAdaptor) => void) {
  const file = newFile();
  let pointer: number;
  {
    using recording = new Recording({ file });
    using managed = new ManagedMemoryResource();
    using resource = new RecordingResourceAdaptor(managed, { recording });
    pointer = resource.allocate(bytes, stream);
    use(pointer, resource);
    stream.synchronizeSync();
    resource.deallocate(pointer, bytes, stream);
  }
  const run = await readRecording(file);
  expect([...run.times]).toEqual([...run.times].sort((a, b) => a - b));
  return { file, run, pointer, moves: movesOf(run) };
}

/** How many bytes, and pages, came to a place for some reasons. */
function arrivals(moves: readonly Move[], place: string, ...reasons: readonly string[]) {
  const found = moves.filter((move) => move.place === place && reasons.includes(move.reason));
  return { pages: found.length, bytes: found.reduce((sum, { bytes }) => sum + bytes, 0) };
}

describe('a recording of managed memory', () => {
  test('says where each page is, why, and which stream caused it', async () => {
    const { moves, pointer } = await recorded(3 * page + 4096, (pointer) => {
      set(pointer, 1, 1, page, stream);
      prefetch(pointer, 2 * page, 'host', stream);
      set(pointer, 1, 1, page, stream);
      prefetch(pointer + page, page, device, stream);
      prefetch(pointer + 3 * page, 1, device, stream);
    });
    expect(inWords(moves, pointer)).toEqual([
      '0 device 0: first use',
      '0 the host: prefetch',
      '0 device 0: -',
      '1 the host: prefetch, first use',
      '0 device 0: thrash',
      '0 the host: -',
      '1 device 0: prefetch',
      '1 the host: -',
      '3 device 0: prefetch, first use',
      '0 device 0: -',
      '1 device 0: -',
      '3 device 0: -',
    ]);
    const handle = `0x${stream.nativeHandle.toString(16)}`;
    expect(moves.map((move) => move.stream)).toEqual([...Array(9).fill(handle), 'host', 'host', 'host']);
    expect(moves.map((move) => move.bytes)).toEqual([...Array(8).fill(page), 4096, page, page, 4096]);
  });

  test('has every move of an oversubscribed loop that managedActivity counts', async () => {
    const count = 16;
    const { moves } = await recorded(count * page, (pointer) => {
      for (let round = 0; round < 3; round++) for (let i = 0; i < count; i++) set(pointer + i * page, i, 1, page, stream);
    });
    const atDevice = managedActivity(device);
    const atHost = managedActivity('host');
    expect(atDevice).toMatchObject({ faults: 48, thrashes: 32, evictions: 40, bytesFromHost: 32 * page });
    expect(arrivals(moves, 'device 0', 'first use', 'fault', 'thrash').pages).toBe(atDevice.faults);
    expect(arrivals(moves, 'device 0', 'thrash').pages).toBe(atDevice.thrashes);
    expect(arrivals(moves, 'device 0', 'fault', 'thrash').bytes).toBe(atDevice.bytesFromHost);
    expect(arrivals(moves, 'the host', 'eviction')).toEqual({ pages: atDevice.evictions, bytes: atDevice.evictedBytes });
    expect(atHost.bytesFromDevices).toBe(atDevice.evictedBytes);

    let resident = 0;
    let peak = 0;
    for (const { place, reason, bytes } of moves) {
      if (place === 'device 0') resident += reason === '-' ? -bytes : bytes;
      peak = Math.max(peak, resident);
    }
    expect(peak).toBe(atDevice.peakResidentBytes);
    expect(peak).toBe(totalBytes);
    expect(resident).toBe(0);
  });

  test('shows copies of read-mostly memory at both places, and views of the host', async () => {
    const file = newFile();
    let pointer: number;
    {
      using recording = new Recording({ file });
      using managed = new ManagedMemoryResource();
      using resource = new RecordingResourceAdaptor(managed, { recording });
      using cuda = new CudaMemoryResource();
      using buffer = new DeviceBuffer(page, { resource, stream });
      using target = new DeviceBuffer(page, { resource: cuda, stream });
      pointer = buffer.ptr;
      buffer.hostView(Uint8Array);
      advise(pointer, page, 'set-read-mostly', device);
      target.copyFrom(buffer);
      stream.synchronizeSync();
      buffer.fill(1);
      stream.synchronizeSync();
      buffer.hostView(Uint8Array);
    }
    expect(inWords(movesOf(await readRecording(file)), pointer)).toEqual([
      '0 the host: first use',
      '0 device 0: fault',
      '0 the host: -',
      '0 device 0: -',
      '0 device 0: fault, not moved',
      '0 the host: thrash',
      '0 device 0: -',
      '0 the host: -',
    ]);
  });

  test('has every fault that managedActivity counts, also those that move nothing', async () => {
    using other = new Stream({ nonBlocking: true });
    const { moves, pointer } = await recorded(4 * page, (pointer) => {
      // The device maps what prefers the host.
      advise(pointer, page, 'set-preferred-location', 'host');
      prefetch(pointer, page, 'host', stream);
      stream.synchronizeSync();
      for (let i = 0; i < 3; i++) set(pointer, 1, 1, page, other);
      other.synchronizeSync();
      // A write ends the copy at the host.
      advise(pointer + page, page, 'set-read-mostly', device);
      set(pointer + page, 1, 1, page, stream);
      prefetch(pointer + page, page, 'host', stream);
      set(pointer + page, 1, 1, page, stream);
      stream.synchronizeSync();
      // Pages that a full device has no room for.
      prefetch(pointer + 2 * page, page, 'host', stream);
      stream.synchronizeSync();
      using cuda = new CudaMemoryResource();
      const room = cuda.allocate(totalBytes, stream);
      set(pointer + 2 * page, 1, 1, page, stream);
      stream.synchronizeSync();
      set(pointer + 2 * page, 1, 1, page, other);
      other.synchronizeSync();
      set(pointer + 3 * page, 1, 1, page, stream);
      stream.synchronizeSync();
      cuda.deallocate(room, totalBytes, stream);
    });
    const faults = moves.filter(({ reason }) => ['first use', 'fault', 'thrash', 'host view', 'fault, not moved'].includes(reason));
    expect(faults).toHaveLength(managedActivity(device).faults + managedActivity('host').faults);
    const unmoved = faults.filter(({ reason }) => reason === 'fault, not moved');
    expect(inWords(unmoved, pointer)).toEqual([
      '0 the host: fault, not moved',
      '1 device 0: fault, not moved',
      '2 the host: fault, not moved',
      '2 the host: fault, not moved',
    ]);
    const [mine, others] = [stream, other].map(({ nativeHandle }) => `0x${nativeHandle.toString(16)}`);
    expect(unmoved.map((move) => move.stream)).toEqual([others, mine, mine, others]);
    expect(faults.map(({ place }) => place)).toContain('the host');
  });

  test('begins with what is resident, and goes on after another has ended', async () => {
    using managed = new ManagedMemoryResource();
    const pointer = managed.allocate(2 * page, stream);
    set(pointer + page, 1, 1, page, stream);
    stream.synchronizeSync();
    const names = [newFile(), newFile(), newFile()] as const;
    {
      using first = new Recording({ file: names[0] });
      using second = new Recording({ file: names[1] });
      using one = new RecordingResourceAdaptor(managed, { recording: first });
      using other = new RecordingResourceAdaptor(managed, { recording: second });
      prefetch(pointer + page, page, 'host', stream);
      stream.synchronizeSync();
      other.deallocate(other.allocate(1, stream), 1, stream);
      one.flush();
    }
    {
      using third = new Recording({ file: names[2] });
      using _resource = new RecordingResourceAdaptor(managed, { recording: third });
    }
    managed.deallocate(pointer, 2 * page, stream);
    const moves = await Promise.all(names.map(async (file) => inWords(movesOf(await readRecording(file)), pointer)));
    expect(moves).toEqual([['1 device 0: already there', '1 the host: prefetch', '1 device 0: -'], [], ['1 the host: already there']]);
  });

  test('goes on in another recording of the thread that asked, after the first has ended', async () => {
    using managed = new ManagedMemoryResource();
    const names = [newFile(), newFile(), newFile()] as const;
    const [first, other, second] = names.map((file) => new Recording({ file })) as [Recording, Recording, Recording];
    const pointer = new RecordingResourceAdaptor(managed, { recording: first }).allocate(page, stream);
    const resource = new RecordingResourceAdaptor(managed, { recording: second });
    set(pointer, 1, 1, page, stream);
    stream.synchronizeSync();
    first.dispose();
    prefetch(pointer, page, 'host', stream);
    stream.synchronizeSync();
    resource.deallocate(resource.allocate(1, stream), 1, stream);
    managed.deallocate(pointer, page, stream);
    for (const recording of [other, second]) recording.dispose();
    const moves = await Promise.all(names.map(async (file) => inWords(movesOf(await readRecording(file)), pointer)));
    expect(moves).toEqual([
      ['0 device 0: first use'],
      [],
      ['0 device 0: already there', '0 the host: prefetch', '0 device 0: -', '0 the host: -'],
    ]);
  });

  test('says how many moves were lost because too many waited, and where all pages are then', { timeout: 120_000 }, async () => {
    const count = 512;
    const waiting = 2 ** 20;
    configureSoftwareDevice({ totalBytes: 2 * count * page });
    using managed = new ManagedMemoryResource();
    const file = newFile();
    let pointer: number;
    let moves = count;
    let written: number;
    {
      using recording = new Recording({ file });
      using resource = new RecordingResourceAdaptor(managed, { recording });
      pointer = resource.allocate(count * page, stream);
      prefetch(pointer, count * page, device, stream);
      while (moves < waiting + 10_000) {
        prefetch(pointer, count * page, 'host', stream);
        prefetch(pointer, count * page, device, stream);
        moves += 4 * count;
      }
      prefetch(pointer, page, 'host', stream);
      moves += 2;
      stream.synchronizeSync();
      // The next records take a part of the moves with them each.
      const before = statSync(file).size;
      resource.deallocate(resource.allocate(1, stream), 1, stream);
      written = statSync(file).size - before;
      recording.flush();
      prefetch(pointer, page, device, stream);
      stream.synchronizeSync();
    }
    managed.deallocate(pointer, count * page, stream);
    expect(written).toBeLessThan(4 * MiB);
    const run = await readRecording(file);
    const resident = new Map<string, number>();
    const lost: string[] = [];
    let [labelled, listed, wrong] = [-1, 0, 0];
    for (let i = 0; i < run.eventCount; i++) {
      const layer = run.layers[run.layerOf[i] as number];
      if (layer?.isPlace !== true) continue;
      const at = `${layer.name} ${run.firsts[i]}`;
      const label = run.kinds[i] === EventKind.label ? (run.labels[run.seconds[i] as number] as string) : '';
      if (run.kinds[i] === EventKind.allocate) {
        if (resident.has(at)) wrong++;
        resident.set(at, i);
      } else if (run.kinds[i] === EventKind.free) {
        if (!resident.delete(at)) wrong++;
      } else if (run.firsts[i] === 0) {
        lost.push(label);
        labelled = i;
      } else if (label === lost[0]) {
        listed++;
      }
    }
    expect({ lost, listed, wrong }).toEqual({ lost: [`after ${moves - waiting} lost moves`], listed: count, wrong: 0 });
    expect(labelled).toBeGreaterThan(waiting);
    const places = [...resident.keys()].sort();
    expect(places).toEqual(Array.from({ length: count }, (_, i) => `managed at device 0 ${pointer + i * page}`).sort());
  });

  test('gives moves the phase in which they happened', async () => {
    const { moves } = await recorded(4 * page, (pointer) => {
      annotate('load', () => {
        set(pointer, 1, 1, page, stream);
        stream.synchronizeSync();
        annotate('inner', () => {
          set(pointer + page, 1, 1, page, stream);
          stream.synchronizeSync();
        });
      });
      set(pointer + 2 * page, 1, 1, page, stream);
      stream.synchronizeSync();
    });
    expect(moves.slice(0, 3).map(({ phase }) => phase)).toEqual(['load', 'load/inner', '']);
  });

  test('names streams that ended before their moves were recorded', async () => {
    let handle = '';
    const { moves } = await recorded(2 * page, (pointer) => {
      const other = new Stream();
      handle = `0x${other.nativeHandle.toString(16)}`;
      set(pointer, 1, 1, page, other);
      other.synchronizeSync();
      other.dispose();
      set(pointer + page, 1, 1, page, Stream.legacyDefault());
      Stream.legacyDefault().synchronizeSync();
    });
    expect(moves.slice(0, 2).map((move) => move.stream)).toEqual([handle, '0x1']);
  });

  test('keeps labels of allocations and reasons of pages apart', async () => {
    const { run, pointer } = await recorded(page, (pointer, resource) => {
      set(pointer, 1, 1, 1, stream);
      stream.synchronizeSync();
      resource.label(pointer, 'weights');
    });
    const labels = Array.from(run.kinds).flatMap((kind, i) =>
      kind === EventKind.label ? [[run.layers[run.layerOf[i] as number]?.name, run.firsts[i], run.labels[run.seconds[i] as number]]] : [],
    );
    expect(labels).toEqual([
      ['managed at device 0', pointer, 'first use'],
      ['managed', pointer, 'weights'],
    ]);
  });

  test('replays the allocations of the program, and the pages of a place if asked', async () => {
    const file = newFile();
    {
      using recording = new Recording({ file });
      using managed = new ManagedMemoryResource();
      using below = new RecordingResourceAdaptor(managed, { recording });
      const pointer = below.allocate(page, stream);
      set(pointer, 1, 1, 1, stream);
      stream.synchronizeSync();
      below.deallocate(pointer, page, stream);
      using pool = new PoolMemoryResource(below, { initialBytes: 8 * page });
      using resource = new RecordingResourceAdaptor(pool, { recording });
      for (let i = 0; i < 3; i++) resource.deallocate(resource.allocate(MiB, stream), MiB, stream);
    }
    const run = await readRecording(file);
    expect(run.layers.map(({ name }) => name)).toEqual(['pool', 'managed', 'managed at device 0']);
    expect((await readAllocationLog(file)).allocationCount).toBe(3);
    expect((await readAllocationLog(file, { layer: 'managed at device 0' })).allocationCount).toBe(1);
  });

  test('never takes the pages of a place for allocations unless asked', async () => {
    const file = newFile();
    using managed = new ManagedMemoryResource();
    using buffer = new DeviceBuffer(page, { resource: managed, stream });
    buffer.fill(1);
    stream.synchronizeSync();
    {
      using recording = new Recording({ file });
      using _resource = new RecordingResourceAdaptor(managed, { recording });
      prefetch(buffer.ptr, page, 'host', stream);
      stream.synchronizeSync();
    }
    const run = await readRecording(file);
    expect(run.layers.map(({ name }) => name)).toEqual(['managed', 'managed at device 0', 'managed at the host']);
    expect(movesOf(run)).toHaveLength(3);
    expect((await readAllocationLog(file)).allocationCount).toBe(0);
    expect((await readAllocationLog(file, { layer: 'managed at the host' })).allocationCount).toBe(1);
    expect(planAllocations(run).operations).toHaveLength(0);
    const csv = join(folder, 'empty.csv');
    await convertLog(file, csv);
    expect(readFileSync(csv, 'utf8').trim().split('\n')).toHaveLength(1);
  });

  test('converts to Chrome traces, and to recordings that are the same', async () => {
    const { file, run } = await recorded(12 * page, (pointer) => {
      for (let i = 0; i < 12; i++) set(pointer + i * page, i, 1, page, stream);
    });
    const copy = newFile();
    await convertLog(file, copy);
    const converted = await readRecording(copy);
    expect(converted.layers).toEqual(run.layers);
    expect(movesOf(converted)).toEqual(movesOf(run));

    const trace = join(folder, 'trace.json');
    await convertLog(file, trace);
    const { traceEvents } = JSON.parse(readFileSync(trace, 'utf8')) as {
      traceEvents: { ph: string; pid: number; name: string; args: { name?: string; bytes?: number } }[];
    };
    const process = traceEvents.find(
      ({ ph, name, args }) => ph === 'M' && name === 'process_name' && args.name === 'managed at device 0',
    )?.pid;
    const of = traceEvents.filter(({ pid }) => pid === process);
    const live = of.filter(({ ph, name }) => ph === 'C' && name === 'live bytes').map(({ args }) => args.bytes as number);
    expect(Math.max(...live)).toBe(totalBytes);
    expect(live.at(-1)).toBe(0);
    expect(of.filter(({ name }) => name === 'label: first use')).toHaveLength(12);
  });
});
