import { LimitingResourceAdaptor } from '../adaptors/pass-through/limiting-resource-adaptor.js';
import { bytesSetting } from '../basics/checked-settings.js';
import { parseShare } from '../basics/units.js';
import { type Device, deviceOption } from '../driver/device.js';
import type { MemoryResource } from '../memory-resource.js';
import { CudaMemoryResource } from '../resources/cuda-memory-resource.js';
import { assertResourceOfDevice, scopedResource } from '../scopes/resource-scope.js';
import { setting } from '../settings.js';
import { createResource } from '../specification/resource-stack.js';

/** Indexed by device. */
const initialResources: MemoryResource[] = [];
const chosenResources: (MemoryResource | undefined)[] = [];
let wrapDefault = (resource: MemoryResource): MemoryResource => resource;

/** Puts an adaptor on top of each device's default resource that is created from now on. */
export function wrapDefaultResources(wrap: (resource: MemoryResource) => MemoryResource): void {
  wrapDefault = wrap;
}

/**
 * The resource that buffers of a device use if you do not give one: that of the innermost
 * `withResource` for the device, otherwise the one that `setCurrentResource` set, otherwise a
 * default that is created once per device. Each environment, such as a worker thread, has its own.
 *
 * The default is a {@link CudaMemoryResource}, unless environment variables say otherwise:
 * `CISTERN_RESOURCE` is the specification of another resource, such as `pool(cuda-async,
 * deallocationEvents=deferred)`; `CISTERN_LIMIT`, a size such as `8GiB` or a share of the device's
 * memory such as `50%`, adds a {@link LimitingResourceAdaptor}; `CISTERN_LOG_FILE` adds a {@link
 * RecordingResourceAdaptor} on top, which records to the file. Other resources of the program are
 * recorded there, too. An empty variable counts as unset.
 *
 * Counterpart of `rmm::mr::get_current_device_resource_ref` and `get_per_device_resource_ref`.
 * @param device the first device by default
 * @throws ArgumentTypeError if `device` is not a device.
 * @throws SpecificationError if `CISTERN_RESOURCE` is not a specification, OutOfMemoryError if its
 * initial size cannot be allocated; ArgumentRangeError if `CISTERN_LIMIT` is neither a size nor a
 * share.
 * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if `CISTERN_LOG_FILE` names a file that cannot be
 * opened.
 */
export function currentResource(device?: Device): MemoryResource {
  const of = deviceOption(device);
  return scopedResource(of) ?? chosenResource(of);
}

/**
 * Makes a resource the current one of its device, outside `withResource` and until the next call.
 * You still own it: it is not disposed when another one replaces it. Dispose it after the last
 * buffer that uses it.
 *
 * Counterpart of `rmm::mr::set_current_device_resource_ref` and `set_per_device_resource_ref`.
 * @returns the previous resource of the device
 * @throws ArgumentTypeError if `resource` is not a resource.
 * @example
 * ```ts
 * using pool = new PoolMemoryResource(new CudaMemoryResource());
 * const previous = setCurrentResource(pool);
 * try {
 *   using buffer = new DeviceBuffer(4 * MiB, { stream: Stream.perThreadDefault() });
 * } finally {
 *   setCurrentResource(previous);
 * }
 * ```
 */
export function setCurrentResource(resource: MemoryResource): MemoryResource {
  assertResourceOfDevice(resource);
  const previous = chosenResource(resource.device);
  chosenResources[resource.device.index] = resource;
  return previous;
}

/**
 * Makes the device's initial default its current resource again, outside `withResource`.
 *
 * Counterpart of `rmm::mr::reset_current_device_resource_ref` and `reset_per_device_resource_ref`.
 * @param device the first device by default
 * @returns the previous resource of the device
 * @throws ArgumentTypeError if `device` is not a device.
 */
export function resetCurrentResource(device?: Device): MemoryResource {
  const of = deviceOption(device);
  const previous = chosenResource(of);
  chosenResources[of.index] = undefined;
  return previous;
}

function chosenResource(device: Device): MemoryResource {
  return chosenResources[device.index] ?? initialResource(device);
}

function initialResource(device: Device): MemoryResource {
  const { index } = device;
  initialResources[index] ??= defaultResource(device);
  return initialResources[index] as MemoryResource;
}

/** The default resource that the environment variables describe. */
function defaultResource(device: Device): MemoryResource {
  // Read first, because nothing could dispose a resource that was created before this throws.
  const limit = limitIfAsked();
  const resource = specifiedResource(device);
  const limited = limit === undefined ? resource : new LimitingResourceAdaptor(resource, { limitBytes: limit });
  return wrapDefault(limited);
}

/** Reads `CISTERN_RESOURCE`. */
function specifiedResource(device: Device): MemoryResource {
  const specification = setting('CISTERN_RESOURCE');
  if (specification === undefined) return new CudaMemoryResource({ device });
  try {
    return createResource(specification, { device });
  } catch (error) {
    if (error instanceof Error) error.message = `CISTERN_RESOURCE: ${error.message}`;
    throw error;
  }
}

/** Reads `CISTERN_LIMIT`. */
function limitIfAsked(): number | string | undefined {
  const text = setting('CISTERN_LIMIT');
  if (text === undefined) return undefined;
  if (parseShare(text) !== undefined) return text;
  return bytesSetting('CISTERN_LIMIT', 'a size such as 8GiB, or a share such as 50%');
}
