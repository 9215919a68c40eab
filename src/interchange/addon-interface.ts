/**
 * The functions that `include/cistern.h` calls. The header's functions are compiled into the addon,
 * so this interface must stay compatible between versions: members are only added, and arrays only
 * get longer.
 */

import { deviceOfMemory } from '../adaptors/pass-through/per-device-resource-adaptor.js';
import { UnsupportedError } from '../basics/errors.js';
import { DeviceBuffer } from '../buffers/device-buffer.js';
import { kindOfMemory } from '../buffers/transfers/buffer-transfer.js';
import { Device } from '../driver/device.js';
import { Stream } from '../driver/streams/stream.js';
import { assertMemoryResource, type DevicePointer, type MemoryResource } from '../memory-resource.js';
import { noteFree, servedPointer } from '../ownership/served-memory.js';
import { ThreadSafeArenaMemoryResource } from '../workers/thread-safe-arena-memory-resource.js';
import { wrapMemory } from './wrap.js';

/**
 * The interface to addons that are built with `cistern.h`. Pass it to the addon once; the addon
 * opens it with `cistern_open`. Do not call its functions yourself.
 */
export interface AddonInterface {
  /** The version of the interface, which grows with new members; none is ever removed. */
  readonly version: number;
  /** Address, length, capacity, handle of the stream, device, number of the memory kind. */
  describeBuffer(buffer: DeviceBuffer): Float64Array;
  /** Device, number of the memory kind. */
  describeResource(resource: MemoryResource): Float64Array;
  /** The address of a table of functions for any thread, which the addon releases. */
  threadSafeResource(resource: MemoryResource): Float64Array;
  /** Allocates on a stream, given as the driver's handle. */
  allocate(resource: MemoryResource, bytes: number, stream: number): DevicePointer;
  /** Frees on a stream. */
  deallocate(resource: MemoryResource, pointer: DevicePointer, bytes: number, stream: number): void;
  /** A buffer with memory that was allocated from the resource. */
  adopt(resource: MemoryResource, pointer: DevicePointer, bytes: number, stream: number): DeviceBuffer;
  /** A buffer over the addon's own memory. */
  wrap(pointer: DevicePointer, bytes: number, device: number, stream: number, release: (() => void) | undefined): DeviceBuffer;
}

/** In the order of `enum cistern_memory_kind`. */
const kinds = ['device', 'managed', 'pinned-host', 'host'] as const;

/**
 * The interface that an addon built with `cistern.h` needs to take buffers and resources as
 * arguments, and to return buffers: pass it to the addon once. `require('cistern/include')` is the
 * folder of the header. Does nothing itself, and does not load a driver.
 * @example
 * ```ts
 * console.log(addonInterface.version); // in a program: addon.open(addonInterface)
 * ```
 */
export const addonInterface: AddonInterface = Object.freeze({
  version: 1,
  describeBuffer(buffer: DeviceBuffer): Float64Array {
    DeviceBuffer.assert(buffer, 'buffer');
    const { ptr, byteLength, capacityBytes, stream, resource } = buffer;
    const kind = kindOfMemory(ptr, resource);
    if (kind === 'unknown') throw new UnsupportedError('the driver does not know the memory of the buffer any more');
    return Float64Array.of(ptr, byteLength, capacityBytes, stream.nativeHandle, deviceOfMemory(resource, ptr).index, kinds.indexOf(kind));
  },
  describeResource(resource: MemoryResource): Float64Array {
    assertMemoryResource(resource, 'resource');
    return Float64Array.of(resource.device.index, kinds.indexOf(resource.memoryKind));
  },
  threadSafeResource(resource: MemoryResource): Float64Array {
    assertMemoryResource(resource, 'resource');
    if (resource instanceof ThreadSafeArenaMemoryResource) return Float64Array.of(resource.table());
    throw new UnsupportedError(
      `threads other than JavaScript's cannot call a ${resource.constructor.name}: pass a ThreadSafeArenaMemoryResource instead, which can share a global arena with the program's pools`,
    );
  },
  allocate(resource: MemoryResource, bytes: number, stream: number): DevicePointer {
    const on = streamOf(stream, resource.device);
    return servedPointer(resource.allocate(bytes, on), resource, bytes, on);
  },
  deallocate(resource: MemoryResource, pointer: DevicePointer, bytes: number, stream: number): void {
    noteFree(resource.deallocate(pointer, bytes, streamOf(stream, resource.device)), resource);
  },
  adopt(resource: MemoryResource, ptr: DevicePointer, byteLength: number, stream: number): DeviceBuffer {
    return DeviceBuffer.adopt({ ptr, byteLength, resource, stream: streamOf(stream, resource.device) });
  },
  wrap(ptr: DevicePointer, byteLength: number, device: number, stream: number, release: (() => void) | undefined): DeviceBuffer {
    const memory = { ptr, byteLength, stream: streamOf(stream, Device.get(device)) };
    return wrapMemory(release === undefined ? memory : { ...memory, release });
  },
});

function streamOf(handle: number, device: Device): Stream {
  return Stream.fromHandle(handle, { device });
}
