/**
 * Every kind of resource and adaptor, under every policy, while a stream is captured, whoever began that:
 * each call works or is refused with one error, the capture stays valid, and no memory is lost.
 */

import { describe, expect, test } from 'vitest';
import { mailbox, native } from '../../src/driver/native.js';
import {
  CachingMemoryResource,
  CallbackMemoryResource,
  CisternError,
  CudaMemoryResource,
  createResourceStack,
  Device,
  type DevicePointer,
  Event,
  KiB,
  LifetimeError,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  OutOfMemoryError,
  PoolMemoryResource,
  type ResourceStack,
  Stream,
  set,
} from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { stacksOf } from '../support/kind-stacks.js';
import { checkOrderInEachTest } from '../support/order-checked-tests.js';
import { runModule, wholePackage } from '../support/run-module.js';

/** Small enough for every example, and large enough for a plan not to serve it. */
const bytes = MiB;

/** Whose capture it is, seen from the stream that is used. */
const captures = ['own', 'joined', 'foreign'] as const;
type Capture = (typeof captures)[number];

interface Situation {
  readonly stack: ResourceStack;
  readonly captured: Stream;
  readonly other: Stream;
  /** Memory from before the capture, allocated on the captured stream. */
  readonly older: DevicePointer;
  /** The same, on the other stream. */
  readonly others: DevicePointer;
  /** Memory that has to be freed in the end. */
  readonly live: Map<DevicePointer, Stream>;
}

const uses: Record<string, (situation: Situation) => void> = {
  allocate: ({ stack, captured, live }) => {
    attempt(() => live.set(stack.resource.allocate(bytes, captured), captured));
  },
  'free older memory': ({ stack, captured, older, live }) => {
    attempt(() => {
      stack.resource.deallocate(older, bytes, captured);
      live.delete(older);
    });
  },
  'allocate and free on another stream': ({ stack, other, others, live }) => {
    attempt(() => {
      stack.resource.deallocate(others, bytes, other);
      live.delete(others);
    });
    attempt(() => live.set(stack.resource.allocate(bytes, other), other));
  },
  trim: ({ stack, captured, other }) => {
    for (const layer of stack.layers) {
      for (const stream of [captured, other]) {
        if ('trim' in layer && layer.device === stream.device)
          attempt(() => (layer as unknown as { trim(stream: Stream): number }).trim(stream));
      }
    }
  },
  'dispose of the stack': ({ stack, other, live }) => {
    for (const pointer of live.keys()) {
      attempt(() => {
        stack.resource.deallocate(pointer, bytes, other);
        live.delete(pointer);
      });
    }
    // Whoever disposes a resource has freed its memory.
    if (live.size === 0) attempt(() => stack.dispose());
  },
  'mark, rewind, reset and release': ({ stack, captured, other, live }) => {
    for (const layer of stack.layers) {
      if (!(layer instanceof MonotonicMemoryResource)) continue;
      attempt(() => layer.rewind(layer.mark()));
      const mark = layer.mark();
      attempt(() => layer.allocate(bytes, other));
      attempt(() => layer.rewind(mark));
      for (const stream of [captured, other]) attempt(() => layer.release(stream));
      attempt(() => {
        layer.reset();
        live.clear();
      });
    }
  },
  'an asynchronous run': ({ stack, captured, other }) => {
    for (const layer of stack.layers) {
      if (!(layer instanceof CachingMemoryResource)) continue;
      for (const stream of [captured, other]) attempt(() => layer.run(() => void layer.allocate(bytes, stream)));
      // It ends when the capture is over.
      running.push(layer.run(async () => attempt(() => layer.allocate(bytes, other))));
    }
  },
  'run out of memory on another stream': ({ stack, other, live }) => {
    try {
      for (let i = 0; i < 80; i++) live.set(stack.resource.allocate(bytes, other), other);
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) expectCapturing(error);
    }
  },
};

/** Runs that have not ended. */
const running: Promise<void>[] = [];

/** Calls something that either works or is refused with one error. */
function attempt(call: () => void): void {
  try {
    call();
  } catch (error) {
    expectCapturing(error);
  }
}

function expectCapturing(error: unknown): void {
  if (!(error instanceof CisternError) || error.code !== 'ERR_CISTERN_CAPTURING') throw error;
}

checkOrderInEachTest();

/** Captures a stream around something; a foreign capture is one that the streams are not told of. */
function whileCaptured(captured: Stream, capture: Capture, body: () => void): void {
  using origin = new Stream({ nonBlocking: true });
  using event = new Event();
  const first = capture === 'joined' ? origin : captured;
  if (capture === 'foreign') beginUnnoticed(first);
  else first.beginCapture('global');
  if (capture === 'joined') {
    event.record(origin);
    captured.wait(event);
  }
  let status: string | undefined;
  try {
    body();
    status = captured.captureStatus;
    if (capture === 'joined') {
      event.record(captured);
      origin.wait(event);
    }
  } finally {
    first.endCapture().dispose();
  }
  expect(status).toBe('active');
}

function beginUnnoticed(stream: Stream): void {
  native().beginCapture(stream.handle, 0);
  expect(mailbox[0]).toBe(0);
}

async function run(specification: string, capture: Capture, use: (situation: Situation) => void): Promise<void> {
  const freeBytes = freeBytesWhenIdle();
  const stack = createResourceStack(specification);
  using captured = new Stream({ nonBlocking: true });
  using other = new Stream({ nonBlocking: true });
  using event = new Event();
  const streams = [captured, other];
  const body = async () => {
    const live = new Map<DevicePointer, Stream>();
    const take = (stream: Stream) => {
      const pointer = stack.resource.allocate(bytes, stream);
      live.set(pointer, stream);
      return pointer;
    };
    const [older, others] = [take(captured), take(other)];
    // Free memory with and without events.
    for (const stream of streams) {
      const pointers = [take(stream), take(stream)];
      for (const pointer of pointers) {
        if (stack.resource.memoryKind !== 'host') set(pointer, 1, 1, KiB, stream);
        stack.resource.deallocate(pointer, bytes, stream);
        live.delete(pointer);
      }
    }
    // Whoever frees memory on another stream has ordered the two.
    event.record(captured);
    other.wait(event);
    whileCaptured(captured, capture, () => use({ stack, captured, other, older, others, live }));
    await Promise.all(running.splice(0));
    for (const [pointer, stream] of live) stack.resource.deallocate(pointer, bytes, stream);
    for (const layer of stack.layers) {
      if ('validate' in layer) (layer as unknown as { validate(): void }).validate();
    }
  };
  const cache = stack.layers.find((layer) => layer instanceof CachingMemoryResource);
  try {
    await (cache === undefined ? body() : cache.run(body));
    // A monotonic resource frees nothing until it is rewound.
    for (const layer of stack.layers.filter((each) => !(each instanceof MonotonicMemoryResource))) {
      expect(allocatedBytesOf(layer)).toBe(0);
    }
  } finally {
    stack.dispose();
  }
  expect(freeBytesWhenIdle()).toBe(freeBytes);
}

/** What a layer has allocated; nothing if it is disposed. */
function allocatedBytesOf(layer: MemoryResource): number {
  try {
    return (layer as Partial<{ statistics(): { allocatedBytes?: number } }>).statistics?.().allocatedBytes ?? 0;
  } catch (error) {
    if (error instanceof LifetimeError) return 0;
    throw error;
  }
}

/** A driver's pool keeps freed memory until the device is known to be idle. */
function freeBytesWhenIdle(): number {
  Device.get().synchronizeSync();
  return Device.get().memoryInfo().freeBytes;
}

const capturing = expect.objectContaining({ code: 'ERR_CISTERN_CAPTURING' });

describe('a pool', () => {
  test('refuses the stream of its last call as soon as that is captured, and serves it again afterwards', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource());
    using stream = new Stream({ nonBlocking: true });
    pool.deallocate(pool.allocate(bytes, stream), bytes, stream);
    const pointer = pool.allocate(KiB, stream);
    const before = pool.statistics();
    whileCaptured(stream, 'own', () => {
      expect(() => pool.allocate(KiB, stream)).toThrow(
        /capture with a GraphMemoryResource, or allocate before the capture and free after it/,
      );
      expect(() => pool.allocate(KiB, stream)).toThrow(capturing);
      expect(() => pool.deallocate(pointer, KiB, stream)).toThrow(capturing);
      expect(() => pool.trim(stream)).toThrow(capturing);
    });
    expect(pool.statistics()).toEqual(before);
    pool.deallocate(pointer, KiB, stream);
    expect(pool.statistics().allocatedBytes).toBe(0);
  });

  test.each(['eager', 'deferred', 'off'] as const)('gives others what a captured stream freed if it has an event, with %s', (policy) => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), {
      ...{ deallocationEvents: policy, initialBytes: bytes, maximumBytes: bytes },
    });
    using stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    const pointer = pool.allocate(bytes, stream);
    set(pointer, 1, 1, KiB, stream);
    pool.deallocate(pointer, bytes, stream);
    whileCaptured(stream, 'own', () => {
      if (policy === 'eager') pool.deallocate(pool.allocate(bytes, other), bytes, other);
      else expect(() => pool.allocate(bytes, other)).toThrow(OutOfMemoryError);
    });
    pool.deallocate(pool.allocate(bytes, other), bytes, other);
    pool.validate();
  });

  test('is trimmed on another stream but for what needs an event of the captured one', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { deallocationEvents: 'deferred' });
    using stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using hold = stream.hold();
    const own = pool.allocate(bytes, stream);
    const others = pool.allocate(2 * bytes, other);
    set(own, 1, 1, bytes, stream);
    pool.deallocate(own, bytes, stream);
    pool.deallocate(others, 2 * bytes, other);
    whileCaptured(stream, 'own', () => {
      expect([pool.trim(other), pool.reservedBytes]).toEqual([2 * bytes, bytes]);
    });
    hold.release();
    expect([pool.trim(other), pool.reservedBytes]).toEqual([bytes, 0]);
  });

  test('does not make another stream join a capture that it does not know of, by an event of the caller', () => {
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: bytes, maximumBytes: bytes });
    using stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using event = new Event();
    const pointer = pool.allocate(bytes, stream);
    set(pointer, 1, 1, KiB, stream);
    whileCaptured(stream, 'foreign', () => {
      event.record(stream);
      pool.deallocate(pointer, bytes, stream, event);
      expect(() => pool.allocate(bytes, other)).toThrow(capturing);
      expect(other.captureStatus).toBe('none');
    });
    event.record(stream);
    pool.deallocate(pool.allocate(bytes, other), bytes, other);
    pool.validate();
  });

  test('that cannot be disposed because of a capture can be disposed after it', () => {
    const pool = new PoolMemoryResource(new CudaMemoryResource(), { deallocationEvents: 'deferred' });
    using stream = new Stream({ nonBlocking: true });
    set(pool.allocate(KiB, stream), 1, 1, KiB, stream);
    pool.deallocate(pool.allocate(bytes, stream), bytes, stream);
    whileCaptured(stream, 'own', () => expect(() => pool.dispose()).toThrow(capturing));
    pool.dispose();
    expect(pool.reservedBytes).toBe(0);
  });
});

test('a cache whose run ends in a capture that it does not know of has an event recorded later', () => {
  using cache = new CachingMemoryResource(new CudaMemoryResource());
  using stream = new Stream({ nonBlocking: true });
  using other = new Stream({ nonBlocking: true });
  const use = () => set(cache.allocate(bytes, stream), 1, 1, KiB, stream);
  cache.run(use);
  whileCaptured(stream, 'foreign', () => cache.run(use));
  expect(cache.statistics().allocatedBytes).toBe(0);
  expect([cache.invalidate(other), cache.reservedBytes]).toEqual([bytes, 0]);
});

describe('a stream counts as captured', () => {
  test('from the wait by which it joins to the end of the capture, also if that fails', () => {
    using origin = new Stream({ nonBlocking: true });
    using joined = new Stream({ nonBlocking: true });
    using eager = new Stream({ nonBlocking: true });
    using before = new Event();
    using event = new Event();
    before.record(origin);
    origin.beginCapture();
    event.record(origin);
    joined.wait(event);
    eager.wait(before);
    const states = () => [origin, joined, eager].map(({ identity }) => identity.isCaptured);
    expect(states()).toEqual([true, true, false]);
    expect(() => joined.endCapture()).toThrow('CUDA_ERROR_STREAM_CAPTURE_UNMATCHED');
    expect(states()).toEqual([true, true, false]);
    try {
      origin.endCapture().dispose();
    } catch {}
    expect(states()).toEqual([false, false, false]);
  });

  test('until the capture is given up', () => {
    using stream = new Stream({ nonBlocking: true });
    expect(() =>
      stream.capture(() => {
        expect(stream.identity.isCaptured).toBe(true);
        throw new Error('mine');
      }),
    ).toThrow('mine');
    expect(stream.identity.isCaptured).toBe(false);
  });
});

test('the memory of unreachable buffers of a captured stream is freed right after the capture, without a warning', () => {
  const { status, stdout, stderr } = runModule(
    `
    import * as c from '${wholePackage}';
    const stream = new c.Stream({ nonBlocking: true });
    const pool = new c.PoolMemoryResource(new c.CudaMemoryResource());
    const turn = () => new Promise((resolve) => setTimeout(resolve, 10));
    for (let i = 0; i < 50; i++) new c.DeviceBuffer(64, { stream, resource: pool });
    await turn();
    stream.beginCapture('global');
    for (let i = 0; i < 3; i++) {
      gc();
      await turn();
    }
    console.log(stream.captureStatus, pool.statistics().allocatedBytes > 0);
    stream.endCapture().dispose();
    await turn();
    console.log(pool.statistics().allocatedBytes);
  `,
    { ...deviceUnderTest, NODE_OPTIONS: '--expose-gc' },
  );
  expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'active true\n0\n', stderr: '' });
});

test('a block whose stream ended while it came stays until the capture ends, which forbids the wait for it', () => {
  using upstream = new CudaMemoryResource();
  const ending = new Stream({ nonBlocking: true });
  using captured = new Stream({ nonBlocking: true });
  using other = new Stream({ nonBlocking: true });
  const endsStream = new CallbackMemoryResource(
    (size, stream) => {
      const pointer = upstream.allocate(size, stream);
      ending.dispose();
      return pointer;
    },
    (pointer, size, stream) => upstream.deallocate(pointer, size, stream),
  );
  using pool = new PoolMemoryResource(endsStream);
  captured.beginCapture('relaxed');
  expect(() => pool.allocate(1000, ending)).toThrow(CisternError);
  const { reservedBytes } = pool;
  expect(reservedBytes).toBeGreaterThan(0);
  expect(pool.trim(other)).toBe(0);
  expect([pool.reservedBytes, captured.captureStatus]).toEqual([reservedBytes, 'active']);
  captured.endCapture().dispose();
  expect(pool.trim(other)).toBe(reservedBytes);
  expect(pool.reservedBytes).toBe(0);
});

describe.each(everyKind.map((kind) => [kind.name, kind] as const))('%s', (_name, kind) => {
  describe.each(stacksOf(kind))('%s', (specification) => {
    test.each(captures)('%s capture', async (capture) => {
      for (const [name, use] of Object.entries(uses)) {
        if (name === 'run out of memory on another stream' && kind.role !== 'pooling') continue;
        try {
          await run(specification, capture, use);
        } catch (error) {
          throw new Error(`${name}: ${(error as Error).stack}`);
        }
      }
    });
  });
});
