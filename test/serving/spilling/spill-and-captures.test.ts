/** A graph has the addresses that were used in its capture: spillable buffers stay there for as long as it can run. */

import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { GraphUse, retainInCapture } from '../../../src/driver/graphs/user-objects.js';
import { native } from '../../../src/driver/native.js';
import {
  CudaMemoryResource,
  DeviceBuffer,
  Event,
  type Graph,
  type MemoryResource,
  MiB,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  set,
} from '../../../src/index.js';
import { AdmittingResourceAdaptor, SpillableBuffer, SpillingResourceAdaptor, type SpillPin } from '../../../src/serving/index.js';
import { failCall } from '../../../src/tools/testing/index.js';
import { code } from '../../support/errors.js';
import { needCaptures } from '../../support/need-captures.js';
import { checkOrderInEachTest } from '../../support/order-checked-tests.js';

let stream: Stream;
let leaf: CudaMemoryResource;
let host: PoolMemoryResource;
let resource: SpillingResourceAdaptor;

beforeEach(() => {
  stream = new Stream({ nonBlocking: true });
  needCaptures(stream);
  leaf = new CudaMemoryResource();
  host = new PoolMemoryResource(new PinnedHostMemoryResource());
  resource = new SpillingResourceAdaptor(leaf, host);
});

afterEach(() => {
  failCall('cuUserObjectCreate', 0);
  vi.useRealTimers();
  for (const each of [resource, host, leaf, stream]) each[Symbol.dispose]();
  expect(leaf.reservedBytes).toBe(0);
});

checkOrderInEachTest();

const made = (value: number, through: MemoryResource = resource) =>
  new SpillableBuffer(Uint8Array.of(value, value), { stream, resource: through });

const contents = async (buffer: SpillableBuffer) => {
  using pin = await buffer.pin();
  return [...(await pin.toHost())];
};

/** The driver tells some time later that a graph has ended. */
const untilItLeaves = () => vi.waitFor(() => expect(resource.spill()).toBeGreaterThan(0), { interval: 1, timeout: 30_000 });

describe('a buffer whose address a graph has', () => {
  /** Launches a graph that writes 9, with another buffer made where the buffer would have left. */
  async function expectToStay(buffer: SpillableBuffer, graph: Graph): Promise<void> {
    using exec = graph.instantiate();
    graph.dispose();
    expect(resource.spill()).toBe(0);
    using other = new DeviceBuffer(Uint8Array.of(7, 7), { stream, resource });
    exec.launch(stream);
    await stream.synchronize();
    expect([...other.toHostSync()]).toEqual([7, 7]);
    expect(await contents(buffer)).toEqual([9, 9]);
    exec.dispose();
    await untilItLeaves();
    expect(await contents(buffer)).toEqual([9, 9]);
  }

  const uses: [string, (pin: SpillPin, address: number) => void][] = [
    ['by a method of a pin that was made before', (pin) => pin.fill(9)],
    ['by an address that was read in the capture', (pin) => set(pin.ptr, 9, 1, 2, stream)],
    ['by an address that was read before', (_, address) => set(address, 9, 1, 2, stream)],
    ['as the target of a copy', (pin) => pin.copyFrom(Uint8Array.of(9, 9))],
  ];

  test.each(uses)('stays where it is as long as the graph can be launched, used %s', async (_, use) => {
    using buffer = made(1);
    const pin = await buffer.pin();
    const { ptr } = pin;
    const graph = stream.capture(() => use(pin, ptr));
    pin.dispose();
    await expectToStay(buffer, graph);
  });

  test('stays when its pin ends in the capture', async () => {
    using buffer = made(1);
    const pin = await buffer.pin();
    const graph = stream.capture(() => {
      pin.fill(9);
      pin.dispose();
    });
    await expectToStay(buffer, graph);
  });

  test('stays when it is pinned in the capture', async () => {
    using buffer = made(1);
    using before = await buffer.pin();
    const { ptr } = before;
    before.dispose();
    const graph = stream.capture(() => {
      using _pin = buffer.pinSync();
      set(ptr, 9, 1, 2, stream);
    });
    await expectToStay(buffer, graph);
  });

  test('stays when another stream is captured, on which its address is used', async () => {
    using buffer = made(1);
    using pin = await buffer.pin();
    using captured = new Stream({ nonBlocking: true });
    await stream.synchronize();
    const graph = captured.capture(() => set(pin.ptr, 9, 1, 2, captured));
    pin.dispose();
    await expectToStay(buffer, graph);
  });

  test.each(['outer', 'inner'] as const)('stays for the graph of the %s of two streams that are captured', async (kept) => {
    using buffer = made(1);
    using pin = await buffer.pin();
    using outer = new Stream({ nonBlocking: true });
    using inner = new Stream({ nonBlocking: true });
    await stream.synchronize();
    const graphs: Partial<Record<'outer' | 'inner', Graph>> = {};
    const ended = new Set<string>();
    const note = (name: string, { handle }: Stream) => retainInCapture(handle, new GraphUse(() => ended.add(name)));
    graphs.outer = outer.capture(() => {
      let address = 0;
      note('outer', outer);
      graphs.inner = inner.capture(() => {
        note('inner', inner);
        address = pin.ptr;
        set(address, 9, 1, 2, inner);
      });
      set(address, 9, 1, 2, outer);
    });
    pin.dispose();
    const other = kept === 'outer' ? 'inner' : 'outer';
    graphs[other]?.dispose();
    // The driver tells some time later.
    await vi.waitFor(() => expect([...ended]).toEqual([other]), { interval: 1, timeout: 30_000 });
    await expectToStay(buffer, graphs[kept] as Graph);
  });

  test('stays when another stream is captured, although that of its pin has ended', async () => {
    using buffer = made(1);
    using ended = new Stream({ nonBlocking: true });
    using pin = await buffer.pin(ended);
    await ended.synchronize();
    ended.dispose();
    expect(pin.ptr).toBeGreaterThan(0);
    const graph = stream.capture(() => set(pin.ptr, 9, 1, 2, stream));
    pin.dispose();
    await expectToStay(buffer, graph);
  });

  test('stays when its stream joins the capture of another one', async () => {
    using buffer = made(1);
    const pin = await buffer.pin();
    const { ptr } = pin;
    using origin = new Stream({ nonBlocking: true });
    using fork = new Event();
    using back = new Event();
    await stream.synchronize();
    const graph = origin.capture(() => {
      fork.record(origin);
      stream.wait(fork);
      set(ptr, 9, 1, 2, stream);
      back.record(stream);
      origin.wait(back);
    });
    pin.dispose();
    await expectToStay(buffer, graph);
  });

  test('stays when its stream joins the capture of another one, and not those that are pinned on other streams', async () => {
    using apart = made(2);
    using buffer = made(1);
    using elsewhere = new Stream({ nonBlocking: true });
    const pins = [await apart.pin(elsewhere), await buffer.pin()];
    const { ptr } = pins[1] as SpillPin;
    using origin = new Stream({ nonBlocking: true });
    using fork = new Event();
    using back = new Event();
    await stream.synchronize();
    const graph = origin.capture(() => {
      fork.record(origin);
      stream.wait(fork);
      set(ptr, 9, 1, 2, stream);
      back.record(stream);
      origin.wait(back);
    });
    for (const pin of pins) pin.dispose();
    expect([resource.spill(), apart.isOnDevice, buffer.isOnDevice]).toEqual([2, false, true]);
    await expectToStay(buffer, graph);
  });

  test.each(['is used', 'ends'])('stays when another library captures the stream of a pin that %s meanwhile', async (what) => {
    using buffer = made(1);
    const pin = await buffer.pin();
    const { ptr } = pin;
    native().beginCapture(stream.handle, 0);
    if (what === 'is used') pin.fill(9);
    else set(ptr, 9, 1, 2, stream);
    if (what === 'ends') pin.dispose();
    const graph = stream.endCapture();
    pin.dispose();
    await expectToStay(buffer, graph);
  });

  test('stays when it was made with its contents in the capture', async () => {
    let buffer: SpillableBuffer | undefined;
    const graph = stream.capture(() => {
      buffer = made(9);
    });
    await expectToStay(buffer as SpillableBuffer, graph);
    buffer?.dispose();
  });

  test('stays when a child graph has it, until the graph that contains it has ended', async () => {
    using buffer = made(1);
    const pin = await buffer.pin();
    using child = stream.capture(() => pin.fill(9));
    pin.dispose();
    const graph = stream.capture(() => stream.addChildGraph(child));
    child.dispose();
    await expectToStay(buffer, graph);
  });

  test('may leave once the executable graph has adopted another one', async () => {
    using buffer = made(1);
    using other = new DeviceBuffer(Uint8Array.of(1, 1), { stream, resource });
    const pin = await buffer.pin();
    using first = stream.capture(() => pin.fill(9));
    pin.dispose();
    using exec = first.instantiate();
    first.dispose();
    using second = stream.capture(() => other.fill(8));
    expect(resource.spill()).toBe(0);
    expect(exec.update(second)).toBe(true);
    await untilItLeaves();
    exec.launch(stream);
    expect([...other.toHostSync()]).toEqual([8, 8]);
    expect(await contents(buffer)).toEqual([1, 1]);
  });

  test('stays for good if the driver cannot tell when the graph has ended', async () => {
    using buffer = made(1);
    using other = made(2);
    const pins = [await buffer.pin(), await other.pin()];
    const { ptr } = pins[0] as SpillPin;
    failCall('cuUserObjectCreate', 1, 801);
    stream.capture(() => set(ptr, 9, 1, 2, stream)).dispose();
    for (const pin of pins) pin.dispose();
    await untilItLeaves();
    expect([buffer.isOnDevice, other.isOnDevice]).toEqual([true, false]);
  });
});

describe('while the driver does not tell whether a stream is captured', () => {
  const uses: [what: string, use: (buffer: SpillableBuffer, pin: SpillPin) => unknown][] = [
    ['a buffer is not made', () => made(2)],
    ['an address is not told', (_, pin) => pin.ptr],
    ['a pin is not used', (_, pin) => pin.fill(3)],
    ['a buffer is not pinned', (buffer) => buffer.pinSync()],
  ];
  test.each(uses)('%s, and nothing stays for good', async (_, use) => {
    using buffer = made(1);
    let isRefused = true;
    // Until the call has succeeded although a later question would fail.
    for (let nth = 1; isRefused; nth++) {
      using pin = await buffer.pin();
      failCall('cuStreamIsCapturing', nth, 999);
      let result: unknown;
      try {
        result = use(buffer, pin);
      } catch (error) {
        expect(error).toEqual(code('ERR_CISTERN_DRIVER'));
      }
      isRefused = !failCall('cuStreamIsCapturing', 0);
      if (result instanceof Object) (result as Disposable)[Symbol.dispose]?.();
    }
    await untilItLeaves();
    expect(buffer.isOnDevice).toBe(false);
  });
});

describe('a capture that is given up', () => {
  test.each(['before', 'in'])('lets a buffer leave again that was pinned %s it', async (when) => {
    using buffer = made(1);
    let pin = when === 'before' ? await buffer.pin() : undefined;
    const capture = () =>
      stream.capture(() => {
        pin ??= buffer.pinSync();
        set(pin.ptr, 9, 1, 2, stream);
        throw new RangeError('no more');
      });
    expect(capture).toThrow('no more');
    pin?.dispose();
    await untilItLeaves();
    expect(await contents(buffer)).toEqual([1, 1]);
  });

  test('admits a request that waited for the buffer', async () => {
    using admitting = new AdmittingResourceAdaptor(leaf, { limitBytes: MiB });
    using spilling = new SpillingResourceAdaptor(admitting, host);
    using buffer = made(1, spilling);
    using pin = await buffer.pin();
    const graph = stream.capture(() => pin.fill(9));
    pin.dispose();
    vi.useFakeTimers({ toFake: ['setInterval'] });
    const request = admitting.reserve(MiB);
    expect([admitting.statistics().waiting, buffer.isOnDevice]).toEqual([1, true]);
    graph.dispose();
    (await request).dispose();
    expect(buffer.isOnDevice).toBe(false);
  });
});

test('no buffer leaves for an allocation on a captured stream, which could not wait for the copy', async () => {
  using admitting = new AdmittingResourceAdaptor(leaf, { limitBytes: 2 * MiB });
  using above = new SpillingResourceAdaptor(admitting, host);
  using buffer = new SpillableBuffer(2 * MiB, { stream, resource: above });
  using captured = new Stream({ nonBlocking: true });
  const graph = captured.capture(() => {
    expect(() => above.allocate(MiB, captured)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect([buffer.isOnDevice, captured.captureStatus]).toEqual([true, 'active']);
  });
  graph.dispose();
  const pointer = above.allocate(MiB, stream);
  expect(buffer.isOnDevice).toBe(false);
  above.deallocate(pointer, MiB, stream);
});

test('a buffer whose last stream is captured stays, and others leave', () => {
  using elsewhere = new Stream({ nonBlocking: true });
  using buffer = made(1);
  using other = new SpillableBuffer(Uint8Array.of(2, 2), { stream: elsewhere, resource });
  stream.beginCapture();
  expect([resource.spill(), buffer.isOnDevice, other.isOnDevice, stream.captureStatus]).toEqual([2, true, false, 'active']);
  stream.endCapture().dispose();
});

describe('a pin that ends while its stream is captured', () => {
  test('keeps its buffer on the device until its use is ordered, if the driver refuses that when the capture ends', async () => {
    using buffer = made(1);
    using witness = made(2);
    using other = new Stream({ nonBlocking: true });
    const pin = await buffer.pin();
    const pinOfWitness = await witness.pin();
    (await buffer.pin(other)).dispose();
    using hold = stream.hold();
    set(pin.ptr, 5, 1, 2, stream);
    stream.beginCapture();
    pin.dispose();
    pinOfWitness.dispose();
    failCall('cuStreamWaitEvent', 1, 999);
    const graph = stream.endCapture();
    failCall('cuStreamWaitEvent', 0);
    graph.dispose();
    // The graph has had both addresses.
    await untilItLeaves();
    expect([witness.isOnDevice, buffer.isOnDevice, resource.spill()]).toEqual([false, true, 0]);
    (await buffer.pin(other)).dispose();
    expect([resource.spill(), buffer.isOnDevice]).toEqual([2, false]);
    hold.release();
    expect(await contents(buffer)).toEqual([5, 5]);
  });

  test('orders what was queued for it before the next use on another stream, which is refused until then', async () => {
    using buffer = made(1);
    using other = new Stream({ nonBlocking: true });
    const pin = await buffer.pin(stream);
    using overlapping = await buffer.pin(other);
    overlapping.dispose();
    using hold = stream.hold();
    set(pin.ptr, 5, 1, 2, stream);
    stream.beginCapture();
    pin.dispose();
    expect(resource.spill()).toBe(0);
    expect(() => buffer.pinSync(other)).toThrow(code('ERR_CISTERN_CAPTURING'));
    expect(() => buffer.dispose()).toThrow(code('ERR_CISTERN_CAPTURING'));
    stream.endCapture().dispose();
    await untilItLeaves();
    hold.release();
    expect(await contents(buffer)).toEqual([5, 5]);
  });

  test('lets its buffer leave once the capture has ended, and so do others', async () => {
    using other = new Stream({ nonBlocking: true });
    const buffers = [made(1), made(2)];
    const pins = await Promise.all(buffers.map((buffer) => buffer.pin(stream)));
    for (const buffer of buffers) (await buffer.pin(other)).dispose();
    stream.beginCapture();
    for (const pin of pins) pin.dispose();
    stream.endCapture().dispose();
    await vi.waitFor(
      () => {
        resource.spill();
        expect(buffers.map(({ isOnDevice }) => isOnDevice)).toEqual([false, false]);
      },
      { interval: 1, timeout: 30_000 },
    );
    for (const buffer of buffers) buffer.dispose();
  });
});
