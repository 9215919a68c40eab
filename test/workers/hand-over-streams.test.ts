import { setImmediate, setTimeout } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { MiB } from '../../src/basics/units.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { Device } from '../../src/driver/device.js';
import { Event } from '../../src/driver/streams/event.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';
import { driverCallCounts } from '../../src/tools/testing/driver-call-counts.js';
import { failCall } from '../../src/tools/testing/driver-faults.js';
import type { BufferMessage, EventMessage, StreamMessage } from '../../src/workers/hand-over.js';
import {
  attachBuffer,
  attachEvent,
  attachStream,
  detachEvent,
  detachStream,
  discardBuffer,
  discardEvent,
  discardStream,
  shareEvent,
  shareStream,
} from '../../src/workers/index.js';
import { caught, code } from '../support/errors.js';
import { policies } from '../support/stream-order.js';

function calls(name: string): number {
  return driverCallCounts().byFunction[name] as number;
}

/** How often an action makes the driver destroy something. */
function destroyedBy(kind: 'Event' | 'Stream', action: () => void): number {
  const before = calls(`cu${kind}Destroy`);
  action();
  return calls(`cu${kind}Destroy`) - before;
}

describe('an event that is given away', () => {
  test('is disposed for its giver, and keeps its recording for its taker', async () => {
    using producer = new Stream({ nonBlocking: true });
    using consumer = new Stream({ nonBlocking: true });
    const event = new Event();
    const hold = producer.hold();
    event.record(producer);
    const message = structuredClone(detachEvent(event));
    expect(message).toEqual({ kind: 'cistern-event', number: expect.any(Number), nonce: expect.any(Number) });
    expect(caught(() => event.query())).toEqual(code('ERR_CISTERN_DISPOSED'));
    expect(caught(() => detachEvent(event))).toEqual(code('ERR_CISTERN_DISPOSED'));
    expect(caught(() => shareEvent(event))).toEqual(code('ERR_CISTERN_DISPOSED'));
    event.dispose();

    const attached = attachEvent(message);
    expect(attached.query()).toBe(false);
    consumer.wait(attached);
    await setImmediate();
    expect(consumer.query()).toBe(false);
    hold.release();
    await consumer.synchronize();
    expect(attached.query()).toBe(true);
    // It can be used like any other, and given back.
    attached.record(consumer);
    using returned = attachEvent(detachEvent(attached));
    returned.synchronizeSync();
    returned.record(producer);
  });

  test('has its device and its timing for its taker', () => {
    using stream = new Stream();
    using start = new Event({ timing: true });
    start.record(stream);
    const end = new Event({ timing: true });
    end.record(stream);
    using attached = attachEvent(detachEvent(end));
    attached.synchronizeSync();
    expect(attached.device).toBe(Device.get());
    expect(attached.elapsedMilliseconds(start)).toBeGreaterThanOrEqual(0);
  });

  test('is not given away while a promise waits for it', async () => {
    using stream = new Stream({ nonBlocking: true });
    using event = new Event();
    const hold = stream.hold();
    event.record(stream);
    const recorded = event.synchronize();
    expect(caught(() => detachEvent(event))).toEqual(code('ERR_CISTERN_INVALID_STATE'));
    expect(event.query()).toBe(false);
    hold.release();
    await recorded;
    expect(discardEvent(detachEvent(event))).toBe(true);
  });

  test('stays with its giver if it was recorded in a capture', () => {
    using stream = new Stream({ nonBlocking: true });
    const event = new Event();
    using _graph = stream.capture(() => event.record(stream));
    for (const give of [() => shareEvent(event), () => detachEvent(event)]) expect(caught(give)).toEqual(code('ERR_CISTERN_CAPTURING'));
    event.record(stream);
    expect(discardEvent(detachEvent(event))).toBe(true);
  });

  test('is no fence for a free, since it is not known what it was recorded on', () => {
    using stream = new Stream();
    const event = new Event();
    event.record(stream);
    using attached = attachEvent(detachEvent(event));
    using buffer = new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream });
    expect(caught(() => buffer.dispose(attached))).toEqual(code('ERR_INVALID_ARG_VALUE'));
  });
});

describe('an event that is shared', () => {
  test('can be waited for by all, and is returned to the driver by the last', async () => {
    using stream = new Stream({ nonBlocking: true });
    using consumer = new Stream({ nonBlocking: true });
    const hold = stream.hold();
    const event = new Event();
    event.record(stream);
    const message = shareEvent(event);
    expect(shareEvent(event)).toBe(message);
    const takers = [attachEvent(structuredClone(message)), attachEvent(message)];
    for (const taker of takers) consumer.wait(taker);
    expect(shareEvent(takers[0] as Event)).toEqual(message);
    const recorded = takers[1]?.synchronize();
    await setImmediate();
    expect(consumer.query()).toBe(false);
    expect(destroyedBy('Event', () => event.dispose())).toBe(0);
    expect(caught(() => attachEvent(message))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
    expect(destroyedBy('Event', () => takers[0]?.dispose())).toBe(0);
    // The promise still uses it.
    const before = calls('cuEventDestroy');
    takers[1]?.dispose();
    expect(calls('cuEventDestroy')).toBe(before);
    hold.release();
    await recorded;
    expect(calls('cuEventDestroy')).toBe(before + 1);
    await consumer.synchronize();
  });

  test('keeps its recording', () => {
    using stream = new Stream({ nonBlocking: true });
    using event = new Event();
    event.record(stream);
    using taker = attachEvent(shareEvent(event));
    const { version, recordedOn } = event;
    for (const each of [event, taker]) {
      expect(caught(() => each.record(stream))).toEqual(code('ERR_CISTERN_INVALID_STATE'));
      expect(caught(() => detachEvent(each))).toEqual(code('ERR_CISTERN_INVALID_STATE'));
    }
    expect(event).toMatchObject({ version, recordedOn });
    taker.dispose();
    expect(caught(() => taker.record(stream))).toEqual(code('ERR_CISTERN_DISPOSED'));
  });
});

describe('a stream that is given away', () => {
  test('is disposed for its giver, and goes on in its order for its taker', async () => {
    using resource = new CudaMemoryResource();
    const stream = new Stream({ nonBlocking: true, priority: -1 });
    const { id, priority, nativeHandle } = stream;
    const pointer = resource.allocate(4096, stream);
    using buffer = new DeviceBuffer(Uint8Array.of(1), { resource, stream: Stream.perThreadDefault() });
    const hold = stream.hold();
    using first = new Event();
    first.record(stream);
    const message = structuredClone(detachStream(stream));
    expect(message).toEqual({ kind: 'cistern-stream', number: expect.any(Number), nonce: expect.any(Number) });
    expect(stream.isDisposed).toBe(true);
    for (const use of [() => stream.query(), () => detachStream(stream), () => shareStream(stream), () => first.record(stream)]) {
      expect(caught(use)).toEqual(code('ERR_CISTERN_DISPOSED'));
    }
    stream.dispose();

    const attached = attachStream(message);
    expect(attached).toMatchObject({ id, priority, nativeHandle, device: Device.get(), isNonBlocking: true, isDisposed: false });
    using copy = new DeviceBuffer(buffer, { resource, stream: attached });
    await setImmediate();
    expect(attached.query()).toBe(false);
    hold.release();
    expect([...(await copy.toHost())]).toEqual([1]);
    copy.dispose();
    resource.deallocate(pointer, 4096, attached);
    expect(destroyedBy('Stream', () => attached.dispose())).toBe(1);
  });

  test.each(policies)(
    'is ordered before the next use of the memory that it left to a pool, with events: %s',
    async (deallocationEvents) => {
      using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, maximumBytes: MiB, deallocationEvents });
      using other = new Stream({ nonBlocking: true });
      const stream = new Stream({ nonBlocking: true });
      const buffer = new DeviceBuffer(MiB, { resource: pool, stream });
      const hold = stream.hold();
      buffer.fill(1);
      buffer.dispose();
      using attached = attachStream(detachStream(stream));
      expect(pool.statistics().allocatedBytes).toBe(0);
      using next = new DeviceBuffer(MiB, { resource: pool, stream: other });
      next.fill(2);
      await setImmediate();
      expect(other.query()).toBe(false);
      hold.release();
      expect(new Set(await next.toHost())).toEqual(new Set([2]));
      attached.synchronizeSync();
    },
  );

  test('stays with its giver if the driver cannot record what a pool needs', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, deallocationEvents: 'deferred' });
    using stream = new Stream({ nonBlocking: true });
    const buffer = new DeviceBuffer(MiB, { resource: pool, stream });
    const hold = stream.hold();
    buffer.dispose();
    failCall('cuEventCreate', 1, 2);
    failCall('cuCtxSynchronize', 1, 999);
    expect(caught(() => detachStream(stream))).toEqual(code('ERR_CISTERN_DRIVER'));
    expect(stream.isDisposed).toBe(false);
    hold.release();
    stream.synchronizeSync();
  });

  test('is refused unless this object created it', () => {
    using stream = new Stream();
    using foreign = Stream.fromHandle(stream.nativeHandle, { announcesEnd: true });
    for (const each of [foreign, Stream.legacyDefault(), Stream.perThreadDefault()]) {
      expect(caught(() => detachStream(each))).toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
      expect(caught(() => shareStream(each))).toEqual(code('ERR_CISTERN_NOT_SUPPORTED'));
    }
    expect(stream.query()).toBe(true);
  });

  test('has its device for its taker', () => {
    const device = Device.get(1);
    using stream = attachStream(detachStream(new Stream({ device })));
    expect(stream.device).toBe(device);
    stream.synchronizeSync();
  });

  test('is not shared while it is captured', () => {
    using stream = new Stream({ nonBlocking: true });
    stream.beginCapture();
    expect(caught(() => shareStream(stream))).toEqual(code('ERR_CISTERN_CAPTURING'));
    stream.endCapture().dispose();
    expect(discardStream(shareStream(stream))).toBe(true);
  });

  test('belongs to a taker that has used it through a foreign handle', () => {
    const stream = new Stream();
    const { nativeHandle } = stream;
    const message = detachStream(stream);
    const foreign = Stream.fromHandle(nativeHandle);
    const attached = attachStream(message);
    using event = new Event();
    event.record(foreign);
    event.record(attached);
    expect(destroyedBy('Stream', () => foreign.dispose())).toBe(0);
    attached.synchronizeSync();
    const again = Stream.fromHandle(nativeHandle);
    expect(destroyedBy('Stream', () => attached.dispose())).toBe(1);
    expect(again.isDisposed).toBe(true);
  });

  test('may have host functions outstanding', async () => {
    const stream = new Stream({ nonBlocking: true });
    let runs = 0;
    stream.launchHostFunction(() => runs++);
    using attached = attachStream(detachStream(stream));
    await attached.synchronize();
    expect(runs).toBe(1);
  });
});

describe('a stream that is shared', () => {
  test('is released with the last object of an environment', async () => {
    const stream = new Stream({ nonBlocking: true });
    const message = shareStream(stream);
    expect(shareStream(stream)).toBe(message);
    expect(caught(() => detachStream(stream))).toEqual(code('ERR_CISTERN_INVALID_STATE'));
    const attached = attachStream(structuredClone(message));
    const other = attachStream(message);
    expect(shareStream(attached)).toBe(message);
    expect(caught(() => detachStream(attached))).toEqual(code('ERR_CISTERN_INVALID_STATE'));
    expect(destroyedBy('Stream', () => stream.dispose())).toBe(0);
    using event = new Event();
    event.record(attached);
    expect(destroyedBy('Stream', () => other.dispose())).toBe(0);
    await attached.synchronize();
    expect(destroyedBy('Stream', () => attached.dispose())).toBe(1);
    expect(caught(() => attachStream(message))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
  });
});

const ofStreams = { create: () => new Stream(), attach: attachStream, detach: detachStream, discard: discardStream, share: shareStream };
const ofEvents = { create: () => new Event(), attach: attachEvent, detach: detachEvent, discard: discardEvent, share: shareEvent };

const kinds = [
  ['stream', Stream, ofStreams],
  ['event', Event, ofEvents],
] as const;

describe.each(kinds)('the message of a detached %s', (kind, type, functions) => {
  const { create } = functions;
  const attach = (message: unknown) => functions.attach(message as StreamMessage & EventMessage);
  const discard = (message: unknown) => functions.discard(message as StreamMessage & EventMessage);
  const detach = (object: Stream | Event) => functions.detach(object as Stream & Event);
  const share = (object: Stream | Event) => functions.share(object as Stream & Event);
  const name = kind === 'stream' ? 'Stream' : 'Event';

  test('can be attached once', () => {
    const message = detach(create());
    using attached = attach(message);
    expect(attached).toBeInstanceOf(type);
    expect(caught(() => attach(message))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
    expect(discard(message)).toBe(false);
  });

  test('can be discarded, which returns it to the driver', () => {
    const message = detach(create());
    expect(destroyedBy(name, () => expect(discard(message)).toBe(true))).toBe(1);
    expect(discard(message)).toBe(false);
    expect(caught(() => attach(message))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
  });

  test('leaves it to be destroyed later if the driver refuses', () => {
    const message = detach(create());
    failCall(`cu${name}Destroy`, 1, 999);
    expect(discard(message)).toBe(true);
    // Which is when orphans are freed.
    expect(destroyedBy(name, () => new Stream().dispose())).toBe(kind === 'stream' ? 2 : 1);
  });

  test('is refused if it is forged, or of something else', () => {
    const { number, nonce } = detach(create());
    const message = { kind: `cistern-${kind}`, number, nonce };
    const forged = [
      { ...message, nonce: Math.abs(nonce - 1) },
      { ...message, number: 2 ** 50 },
      { ...message, number: 0 },
    ];
    for (const each of forged) {
      expect(caught(() => attach(each))).toEqual(code('ERR_CISTERN_FOREIGN_MESSAGE'));
      expect(caught(() => discard(each))).toEqual(expect.any(Error));
    }
    const malformed = [
      undefined,
      null,
      1,
      {},
      { ...message, kind: 'cistern-buffer' },
      { ...message, number: -1 },
      { ...message, nonce: '1' },
    ];
    for (const each of malformed) {
      expect(caught(() => attach(each))).toEqual(code('ERR_INVALID_ARG_TYPE'));
      expect(caught(() => discard(each))).toEqual(code('ERR_INVALID_ARG_TYPE'));
    }
    // What the others take for a message of theirs.
    using stream = new Stream();
    const asBuffer = { number, nonce, kind: 'cistern-buffer' } as BufferMessage;
    expect(caught(() => attachBuffer(asBuffer, { stream }))).toEqual(code('ERR_CISTERN_FOREIGN_MESSAGE'));
    expect(caught(() => discardBuffer(asBuffer))).toEqual(code('ERR_CISTERN_FOREIGN_MESSAGE'));
    const asOther = { number, nonce, kind: kind === 'stream' ? 'cistern-event' : 'cistern-stream' };
    const other = kind === 'stream' ? ofEvents : ofStreams;
    expect(caught(() => other.attach(asOther as StreamMessage & EventMessage))).toEqual(code('ERR_CISTERN_FOREIGN_MESSAGE'));
    attach(message).dispose();
  });

  test('of a shared one ends when it is discarded, and leaves those who have it', async () => {
    const shared = create();
    const message = share(shared);
    const attached = attach(message);
    expect(discard(message)).toBe(true);
    expect(caught(() => attach(message))).toEqual(code('ERR_CISTERN_STALE_MESSAGE'));
    expect(attached.query()).toBe(true);
    shared.dispose();
    await setTimeout(1);
    expect(destroyedBy(name, () => attached.dispose())).toBe(1);
  });
});
