import {
  ArenaMemoryResource,
  CudaMemoryResource,
  type DeallocationFence,
  Device,
  DeviceBuffer,
  Event,
  FixedSizeMemoryResource,
  type MemoryResource,
  type MonotonicMark,
  MonotonicMemoryResource,
  PoolMemoryResource,
  Stream,
} from '../../src/index.js';

/** The arguments for wrong calls. */
export interface MisuseContext {
  readonly resource: MemoryResource;
  /** Whether the resource refuses every wrong free. */
  readonly checksFrees: boolean;
  readonly stream: Stream;
  /** A live allocation, whose free on `stream` would be right. */
  readonly live: { readonly pointer: number; readonly bytes: number } | undefined;
  /** An allocation that was freed, and whose address is not live again. */
  readonly freed: { readonly pointer: number; readonly bytes: number } | undefined;
  readonly disposedStream: Stream | undefined;
  /** Recorded on another stream. */
  readonly otherEvent: Event | undefined;
}

type Call = () => unknown;

/**
 * Each returns a call that must be refused with a typed error, or nothing if it cannot be made
 * here.
 */
const misuses: Readonly<Record<string, (context: MisuseContext) => Call | undefined>> = {
  'a double free': ({ resource, checksFrees, freed, stream }) =>
    checksFrees && freed !== undefined ? () => resource.deallocate(freed.pointer, freed.bytes, stream) : undefined,
  'a free with twice the size': ({ resource, checksFrees, live, stream }) =>
    checksFrees && live !== undefined ? () => resource.deallocate(live.pointer, 2 * live.bytes + 1024, stream) : undefined,
  'a free with no size': ({ resource, checksFrees, live, stream }) =>
    checksFrees && live !== undefined ? () => resource.deallocate(live.pointer, 0, stream) : undefined,
  'a free of a pointer into an allocation': ({ resource, checksFrees, live, stream }) =>
    checksFrees && live !== undefined && live.bytes > 256
      ? () => resource.deallocate(live.pointer + 256, live.bytes - 256, stream)
      : undefined,
  'a free of an odd pointer': ({ resource, live, stream }) =>
    live === undefined || live.bytes < 2 ? undefined : () => resource.deallocate(live.pointer + 1, live.bytes - 1, stream),
  'a free of a foreign pointer':
    ({ resource, stream }) =>
    () =>
      resource.deallocate(4096, 256, stream),
  'a free on a disposed stream': ({ resource, live, disposedStream }) =>
    live !== undefined && disposedStream !== undefined ? () => resource.deallocate(live.pointer, live.bytes, disposedStream) : undefined,
  'an allocation on a disposed stream': ({ resource, disposedStream }) =>
    disposedStream === undefined ? undefined : () => resource.allocate(256, disposedStream),
  'a free with a disposed fence': ({ resource, live, stream }) => {
    if (live === undefined || !takesFences(resource)) return undefined;
    const event = new Event();
    event.record(stream);
    event.dispose();
    return () => resource.deallocate(live.pointer, live.bytes, stream, event);
  },
  'a free with a fence that was never recorded': ({ resource, live, stream }) => {
    if (live === undefined || !takesFences(resource)) return undefined;
    const event = new Event();
    return () => {
      try {
        resource.deallocate(live.pointer, live.bytes, stream, event);
      } finally {
        event.dispose();
      }
    };
  },
  'a free with a fence of another stream': ({ resource, live, stream, otherEvent }) =>
    live === undefined || otherEvent === undefined || !takesFences(resource)
      ? undefined
      : () => resource.deallocate(live.pointer, live.bytes, stream, otherEvent),
  'a free with an invalid fence': ({ resource, live, stream }) =>
    live === undefined || !takesFences(resource)
      ? undefined
      : () => resource.deallocate(live.pointer, live.bytes, stream, 'later' as DeallocationFence),
  'an allocation of -1 bytes':
    ({ resource, stream }) =>
    () =>
      resource.allocate(-1, stream),
  'an allocation of half a byte':
    ({ resource, stream }) =>
    () =>
      resource.allocate(0.5, stream),
  'an allocation of NaN bytes':
    ({ resource, stream }) =>
    () =>
      resource.allocate(Number.NaN, stream),
  'an allocation of 2^53 bytes':
    ({ resource, stream }) =>
    () =>
      resource.allocate(2 ** 53, stream),
  'an allocation of a string':
    ({ resource, stream }) =>
    () =>
      resource.allocate('256' as never, stream),
  'an alignment of 3':
    ({ resource, stream }) =>
    () =>
      resource.allocate(256, stream, 3),
  'an alignment of 0':
    ({ resource, stream }) =>
    () =>
      resource.allocate(256, stream, 0),
  'an allocation without a stream':
    ({ resource }) =>
    () =>
      resource.allocate(256, undefined as never),
  'an allocation on a value that is not a stream':
    ({ resource }) =>
    () =>
      resource.allocate(256, { handle: 3 } as never),
  "an allocation on another device's stream": ({ resource }) =>
    resource.memoryKind === 'device' && takesFences(resource) ? withOtherDevice((stream) => resource.allocate(256, stream)) : undefined,
  "a free on another device's stream": ({ resource, live }) =>
    live !== undefined && resource.memoryKind === 'device' && takesFences(resource)
      ? withOtherDevice((stream) => resource.deallocate(live.pointer, live.bytes, stream))
      : undefined,
  'a trim to -1 bytes': ({ resource, stream }) => {
    const trim: unknown = Reflect.get(resource, 'trim');
    return typeof trim === 'function' ? () => trim.call(resource, stream, { bytesToKeep: -1 }) : undefined;
  },
  'a rewind to a value that is not a mark': ({ resource }) =>
    resource instanceof MonotonicMemoryResource ? () => resource.rewind({} as MonotonicMark) : undefined,
  "a rewind to another's mark": ({ resource }) => {
    if (!(resource instanceof MonotonicMemoryResource)) return undefined;
    const other = new MonotonicMemoryResource(new CudaMemoryResource());
    return () => resource.rewind(other.mark());
  },
  'a record on a disposed stream': ({ disposedStream }) => {
    if (disposedStream === undefined) return undefined;
    return () => {
      using event = new Event();
      event.record(disposedStream);
    };
  },
  'a wait for a disposed event': ({ stream }) => {
    const event = new Event();
    event.dispose();
    return () => stream.wait(event);
  },
  'a buffer of -1 bytes':
    ({ resource, stream }) =>
    () =>
      new DeviceBuffer(-1, { resource, stream }),
  'a buffer with less capacity than length':
    ({ resource, stream }) =>
    () =>
      new DeviceBuffer(512, { resource, stream, capacityBytes: 256 }),
  'a buffer on a disposed stream': ({ resource, disposedStream }) =>
    disposedStream === undefined ? undefined : () => new DeviceBuffer(256, { resource, stream: disposedStream }),
  'an alignment of a buffer that is not a power of two':
    ({ resource, stream }) =>
    () =>
      new DeviceBuffer(256, { resource, stream, alignment: 300 }),
  'a use of a disposed buffer': ({ resource, stream }) => {
    const buffer = new DeviceBuffer(0, { resource, stream });
    buffer.dispose();
    return () => buffer.fill(1);
  },
  'a write beyond the end of a buffer': withBuffer((buffer) => buffer.copyFrom(new Uint8Array(1))),
  'a fill with 256': withBuffer((buffer) => buffer.fill(256)),
  'a fill beyond the end of a buffer': withBuffer((buffer) => buffer.fill(1, { byteOffset: 0, byteLength: 1 })),
  'a resize to -1': withBuffer((buffer) => buffer.resize(-1)),
  'a read beyond the end of a buffer': withBuffer((buffer) => buffer.toHostSync(new Uint8Array(1))),
  'an invalid stream of a buffer': withBuffer((buffer) => buffer.setStream({} as never)),
};

/** The call with a number, and its name. */
export function misuse(number: number, context: MisuseContext): { readonly name: string; readonly call: Call } | undefined {
  const names = Object.keys(misuses);
  const name = names[number % names.length] as string;
  const call = misuses[name]?.(context);
  return call === undefined ? undefined : { name, call };
}

/**
 * Other resources pass fences on, perhaps to one that ignores them, as it does the devices of
 * streams.
 */
function takesFences(resource: MemoryResource): boolean {
  return resource instanceof PoolMemoryResource || resource instanceof ArenaMemoryResource || resource instanceof FixedSizeMemoryResource;
}

function withOtherDevice(call: (stream: Stream) => unknown): Call {
  return () => call(Stream.legacyDefault(Device.get(1)));
}

/** An empty buffer, which takes no memory. */
function withBuffer(call: (buffer: DeviceBuffer) => unknown): (context: MisuseContext) => Call {
  return ({ resource, stream }) =>
    () => {
      using buffer = new DeviceBuffer(0, { resource, stream });
      call(buffer);
    };
}
