import { RecordingResourceAdaptor } from '../adaptors/recording-resource-adaptor.js';
import { type Device, deviceOption } from '../driver/device.js';
import type { MemoryResource } from '../memory-resource.js';
import { environmentRecording } from '../recording/shared-recordings.js';
import { assertResourceOfDevice, scopedResource } from '../resource-scope.js';
import { CudaMemoryResource } from '../resources/cuda-memory-resource.js';

/** By the device's index. */
const initialResources: MemoryResource[] = [];
const chosenResources: (MemoryResource | undefined)[] = [];

/**
 * The resource that buffers of a device take their memory from where none is given: that of the innermost `withResource` for the device,
 * else what `setCurrentResource` chose, else a {@link CudaMemoryResource} that is made once for each device. An environment, such as a worker
 * thread, has its own.
 *
 * Where the environment variable `CISTERN_LOG_FILE` is set, the latter comes with a {@link RecordingResourceAdaptor} around it, which records
 * to that file; resources that a program chooses itself stay as they are.
 *
 * Counterpart of `rmm::mr::get_current_device_resource_ref` and `get_per_device_resource_ref`.
 * @param device the first one by default
 * @throws ArgumentTypeError for what is no device.
 * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) where `CISTERN_LOG_FILE` names a file that cannot be opened.
 */
export function currentResource(device?: Device): MemoryResource {
  const of = deviceOption(device);
  return scopedResource(of) ?? chosenResource(of);
}

/**
 * Makes a resource the current one of its device, outside of `withResource` and until the next call. It is not disposed when another one
 * takes its place; the caller keeps owning it, and disposes it after the last buffer that was made with it.
 *
 * Counterpart of `rmm::mr::set_current_device_resource_ref` and `set_per_device_resource_ref`.
 * @returns the resource that was the device's before
 * @throws ArgumentTypeError for what is no resource.
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
 * Makes the {@link CudaMemoryResource} that a device began with its current resource again, outside of `withResource`.
 *
 * Counterpart of `rmm::mr::reset_current_device_resource_ref` and `reset_per_device_resource_ref`.
 * @param device the first one by default
 * @returns the resource that was the device's before
 * @throws ArgumentTypeError for what is no device.
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
  initialResources[index] ??= recordedIfAsked(new CudaMemoryResource({ device }), index === 0 ? 'cuda' : `cuda (device ${index})`);
  return initialResources[index] as MemoryResource;
}

/** Reads `CISTERN_LOG_FILE`. */
function recordedIfAsked(resource: MemoryResource, layer: string): MemoryResource {
  const recording = environmentRecording();
  return recording === undefined ? resource : new RecordingResourceAdaptor(resource, { recording, layer });
}
