/**
 * Records every resource of a program, if the environment variable `CISTERN_LOG_FILE` asks for that:
 * what the program allocates through a resource directly is recorded in a layer of that resource.
 * What a resource takes from the resources below it is not; pools record their growth.
 *
 * A recorded resource gets an `allocate` and a `deallocate` of its own, so that programs without the
 * variable pay nothing. At its first allocation it gets a `RecordingResourceAdaptor`, which the
 * program does not see.
 */
import { wholeStack } from '../../basics/call-stack.js';
import { ArgumentRangeError, formatValue } from '../../basics/errors.js';
import { parseBytes } from '../../basics/units.js';
import type { Stream } from '../../driver/streams/stream.js';
import { environmentRecording } from '../../formats/recording/shared-recordings.js';
import { type DeallocationFence, type DevicePointer, type MemoryResource, observeConstruction } from '../../memory-resource.js';
import { setting } from '../../settings.js';
import { kindOf, layersOf } from '../layers.js';
import { RecordingResourceAdaptor } from './recording-resource-adaptor.js';

/** The resources of the stack that is being called: only the call of the outermost is recorded. */
let active: ReadonlySet<MemoryResource> | undefined;

/** The resource that was announced last: its constructor may still be running. */
let constructed: MemoryResource | undefined;

/** Whether a resource is called by the constructor of one that is built on it, for an initial block. */
function isForConstruction(resource: MemoryResource): boolean {
  if (constructed === undefined || !layersOf(constructed).includes(resource)) return false;
  if (wholeStack(resource.allocate, 16).includes(`at new ${constructed.constructor.name} `)) return true;
  constructed = undefined;
  return false;
}

/** Calls a resource, so that calls of the resources below it are not recorded. */
function asOutermost<T>(stack: ReadonlySet<MemoryResource>, call: () => T): T {
  const previous = active;
  active = stack;
  try {
    return call();
  } finally {
    active = previous;
  }
}

function recordEverything(resource: MemoryResource): void {
  constructed = resource;
  if (resource instanceof RecordingResourceAdaptor) coverWhatIsBelow(resource);
  else record(resource);
}

/** An adaptor that the program made for the same recording takes the place of this module's. */
function coverWhatIsBelow(adaptor: RecordingResourceAdaptor): void {
  const allocate = adaptor.allocate.bind(adaptor);
  const deallocate = adaptor.deallocate.bind(adaptor);
  let stack: ReadonlySet<MemoryResource> | undefined;
  const call = <T>(body: () => T): T => {
    if (adaptor.recording !== environmentRecording()) return body();
    stack ??= new Set(layersOf(adaptor));
    return asOutermost(stack, body);
  };
  adaptor.allocate = (bytes, stream, alignment) => call(() => allocate(bytes, stream, alignment));
  adaptor.deallocate = (pointer, bytes, stream, fence) => call(() => deallocate(pointer, bytes, stream, fence));
}

function record(resource: MemoryResource): void {
  const allocate = resource.allocate.bind(resource);
  const deallocate = resource.deallocate.bind(resource);
  let adaptor: RecordingResourceAdaptor | undefined;
  /** What the adaptor allocated: a block that a pool took from here goes back unrecorded. */
  const live = new Set<DevicePointer>();
  resource.allocate = (bytes: number, stream: Stream, alignment?: number): DevicePointer => {
    if (active?.has(resource) || isForConstruction(resource)) return allocate(bytes, stream, alignment);
    adaptor ??= adaptorOf(resource);
    const pointer = adaptor.allocate(bytes, stream, alignment);
    if (pointer !== 0) live.add(pointer);
    return pointer;
  };
  resource.deallocate = (pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void => {
    if (active?.has(resource) || !live.has(pointer)) {
      deallocate(pointer, bytes, stream, fence);
      live.delete(pointer);
      return;
    }
    // Removed before the call: a host function that runs during it may be given the same memory
    // again.
    live.delete(pointer);
    try {
      (adaptor as RecordingResourceAdaptor).deallocate(pointer, bytes, stream, fence);
    } catch (error) {
      live.add(pointer);
      throw error;
    }
  };
}

function adaptorOf(resource: MemoryResource): RecordingResourceAdaptor {
  // A server may have a limit for each request: they are one layer, or a reader would see one request.
  const adaptor = recorded(resource, true);
  RecordingResourceAdaptor.labelThrough(resource, adaptor);
  return adaptor;
}

/**
 * An adaptor that records to the file that the environment variable names, in a layer named after the
 * resource.
 * @param sharesLayer whether other resources of the kind have the same layer
 */
export function recorded(resource: MemoryResource, sharesLayer: boolean): RecordingResourceAdaptor {
  const { index } = resource.device;
  const kind = kindOf(resource);
  const layer = index === 0 ? kind : `${kind} (device ${index})`;
  return new RecordingResourceAdaptor(resource, { layer, stackSampleBytes: stackSampleBytes() }, sharesLayer);
}

/** Reads `CISTERN_LOG_STACKS`. */
function stackSampleBytes(): number {
  const text = setting('CISTERN_LOG_STACKS');
  if (text === undefined) return Number.POSITIVE_INFINITY;
  const bytes = parseBytes(text);
  if (bytes !== undefined) return bytes;
  throw new ArgumentRangeError(
    `CISTERN_LOG_STACKS must be a size such as 16MiB, or 0 for the stack of every allocation, got ${formatValue(text)}`,
    'ERR_INVALID_ARG_VALUE',
  );
}

if (setting('CISTERN_LOG_FILE') !== undefined) observeConstruction(recordEverything);
