import { ArgumentTypeError, formatValue, invalidValue } from '../../basics/errors.js';
import { Device } from '../../driver/device.js';
import type { Stream } from '../../driver/streams/stream.js';
import {
  assertMemoryResource,
  type DeallocationEventsOption,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
} from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { none } from '../../suballocation/blocks.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/**
 * Takes memory from the resource of the stream's device, out of several resources. A free goes to
 * the resource from which the memory came, on a stream of any device. Use it to pass a single
 * resource to a library that works on several devices.
 *
 * `device` and `upstream` are those of the first resource. Put other adaptors below this one: an adaptor
 * above it would treat all of its memory as that of the first device, and refuse buffers and streams of
 * the others. Stream order and alignment are those of the resource from which the memory comes. The
 * resources are not disposed with it.
 *
 * Counterpart of `rmm::mr::set_per_device_resource_ref`, which sets the resources for the whole
 * process; see {@link setCurrentResource}.
 * @example
 * ```ts
 * const devices = Array.from({ length: Device.count() }, (_, index) => Device.get(index));
 * using resource = new PerDeviceResourceAdaptor(devices.map((device) => new CudaAsyncMemoryResource({ device })));
 * using stream = new Stream({ device: devices.at(-1) as Device });
 * using buffer = new DeviceBuffer(4096, { resource, stream });
 * console.log(pointerInfo(buffer.ptr).device === stream.device.index); // true
 * ```
 */
export class PerDeviceResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'PerDeviceResourceAdaptor';
  /** The resources, in the given order. */
  readonly resources: readonly MemoryResource[];
  /** All resources but the first. */
  readonly alternates: readonly MemoryResource[];
  /** By device. */
  readonly #resources: (MemoryResource | undefined)[] = [];
  /** The pointers that came from resources other than the first, each with its device. */
  readonly #pointers = new AddressMap();

  /**
   * @param resources at least one, each of a different device
   * @throws ArgumentTypeError, ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) otherwise.
   */
  constructor(resources: readonly MemoryResource[], options: DeallocationEventsOption = {}) {
    if (!Array.isArray(resources)) throw new ArgumentTypeError(`resources must be an array, got ${formatValue(resources)}`);
    if (resources.length === 0) throw invalidValue('resources must have at least one resource, got none');
    const [first, ...others] = resources as [MemoryResource, ...MemoryResource[]];
    super(first, options);
    for (const resource of others) {
      assertMemoryResource(resource, 'each of the resources');
      this.rememberIfTakenBack(resource);
    }
    this.resources = Object.freeze([first, ...others]);
    this.alternates = Object.freeze(others);
    for (const resource of this.resources) {
      const { index } = resource.device;
      if (this.#resources[index] !== undefined) {
        throw invalidValue(`resources must belong to different devices, got two of device ${index}`);
      }
      this.#resources[index] = resource;
    }
  }

  /**
   * The resource of a device.
   * @throws ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) if there is none.
   */
  forDevice({ index }: Device): MemoryResource {
    const resource = this.#resources[index];
    if (resource !== undefined) return resource;
    const devices = this.resources.map(({ device }) => device.index).join(', ');
    throw invalidValue(`device must have a resource (${devices}), got device ${index}`);
  }

  /** @internal The device that allocated memory belongs to. */
  deviceOf(pointer: DevicePointer): Device {
    const device = this.#pointers.get(pointer);
    return device === none ? this.device : (this.#resources[device] as MemoryResource).device;
  }

  /**
   * @throws ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) for a stream of a device without a resource;
   * OutOfMemoryError and any other error of the device's resource.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    const resource = this.forDevice(stream.device);
    let pointer: DevicePointer;
    try {
      pointer = this.served(resource.allocate(bytes, stream, alignment), bytes, stream, resource);
    } catch (error) {
      throw this.passOn(error);
    }
    if (resource !== this.upstream && pointer !== 0) this.#pointers.insert(pointer, resource.device.index);
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const events = fence ?? this.deallocationEvents;
    // Removed before the call, because a host function that runs during it may get the same memory
    // again.
    const device = this.#pointers.count > 0 && typeof pointer === 'number' ? this.#pointers.take(pointer) : none;
    if (device === none) {
      this.freed(this.upstream.deallocate(pointer, bytes, stream, events));
      return;
    }
    try {
      const resource = this.#resources[device] as MemoryResource;
      this.freed(resource.deallocate(pointer, bytes, stream, events), resource);
    } catch (error) {
      this.#pointers.insert(pointer, device);
      throw error;
    }
  }
}

/** The device that memory of a resource belongs to. */
export function deviceOfMemory(resource: MemoryResource, pointer: DevicePointer): Device {
  return resource instanceof PerDeviceResourceAdaptor ? resource.deviceOf(pointer) : resource.device;
}

/** Whether a resource has memory of a device. */
export function hasMemoryOf(resource: MemoryResource, device: Device): boolean {
  return resource instanceof PerDeviceResourceAdaptor
    ? resource.resources.some((each) => each.device === device)
    : resource.device === device;
}

/** `per-device` in a specification. */
export const perDeviceKind = defineAdaptor({
  name: 'per-device',
  role: 'pass-through',
  summary: "takes memory from the stream's device, with a copy of the resource below for each device",
  options: {},
  example: 'per-device(cuda)',
  create: ({ upstream, device, upstreamOf, options }) => {
    const others = Array.from({ length: Device.count() }, (_, index) => Device.get(index)).filter((each) => each !== device);
    return new PerDeviceResourceAdaptor([upstream, ...others.map(upstreamOf)], options);
  },
});
