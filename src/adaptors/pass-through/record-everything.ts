/**
 * Records every resource of a program, if the environment variable `CISTERN_LOG_FILE` asks for that:
 * what the program allocates through a resource directly is recorded in a layer of that resource.
 * What a resource takes from the resources below it is not; pools record their growth.
 *
 * Each resource gets an interceptor while it is constructed, so that programs without the variable
 * pay nothing. At its first allocation it gets a `RecordingResourceAdaptor`, which the program does
 * not see.
 */
import { ArgumentRangeError, formatValue } from '../../basics/errors.js';
import { parseBytes } from '../../basics/units.js';
import type { Stream } from '../../driver/streams/stream.js';
import { environmentRecording } from '../../formats/recording/shared-recordings.js';
import { type Interceptor, initialTaker, interceptConstruction } from '../../lifetimes/interceptor.js';
import type { DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { setting } from '../../settings.js';
import { kindOf, layersOf } from '../layers.js';
import { RecordingResourceAdaptor } from './recording-resource-adaptor.js';

/** The resources of the stack that is being called: only the call of the outermost is recorded. */
let active: ReadonlySet<MemoryResource> | undefined;

/** Whether a call of a resource comes from one that is built on it, not from the program. */
function isFromAbove(resource: MemoryResource): boolean {
  if (active?.has(resource)) return true;
  const taker = initialTaker();
  return taker !== undefined && layersOf(taker).includes(resource);
}

/** Records what the program allocates through a resource directly. */
class ProgramCalls implements Interceptor {
  readonly #resource: MemoryResource;
  #adaptor: RecordingResourceAdaptor | undefined;
  /** What the adaptor allocated: a block that a pool took from here goes back unrecorded. */
  readonly #live = new Set<DevicePointer>();

  constructor(resource: MemoryResource) {
    this.#resource = resource;
  }

  allocate(next: MemoryResource['allocate'], bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (isFromAbove(this.#resource)) return next(bytes, stream, alignment);
    this.#adaptor ??= adaptorOf(this.#resource);
    const pointer = this.#adaptor.allocate(bytes, stream, alignment);
    if (pointer !== 0) this.#live.add(pointer);
    return pointer;
  }

  deallocate(
    next: MemoryResource['deallocate'],
    pointer: DevicePointer,
    bytes: number,
    stream: Stream,
    fence: DeallocationFence | undefined,
  ): void {
    const live = this.#live;
    if (active?.has(this.#resource) || !live.has(pointer)) {
      next(pointer, bytes, stream, fence);
      live.delete(pointer);
      return;
    }
    // Removed before the call: a host function that runs during it may be given the same memory
    // again.
    live.delete(pointer);
    try {
      (this.#adaptor as RecordingResourceAdaptor).deallocate(pointer, bytes, stream, fence);
    } catch (error) {
      live.add(pointer);
      throw error;
    }
  }
}

/**
 * While an adaptor that records to the file of the environment variable is called, whether the program
 * made it or this module, what is below it is not recorded again.
 */
class CoversWhatIsBelow implements Interceptor {
  readonly #adaptor: RecordingResourceAdaptor;
  #stack: ReadonlySet<MemoryResource> | undefined;

  constructor(adaptor: RecordingResourceAdaptor) {
    this.#adaptor = adaptor;
  }

  allocate(next: MemoryResource['allocate'], bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const previous = active;
    active = this.#covered(previous);
    try {
      return next(bytes, stream, alignment);
    } finally {
      active = previous;
    }
  }

  deallocate(
    next: MemoryResource['deallocate'],
    pointer: DevicePointer,
    bytes: number,
    stream: Stream,
    fence: DeallocationFence | undefined,
  ): void {
    const previous = active;
    active = this.#covered(previous);
    try {
      next(pointer, bytes, stream, fence);
    } finally {
      active = previous;
    }
  }

  #covered(previous: ReadonlySet<MemoryResource> | undefined): ReadonlySet<MemoryResource> | undefined {
    if (this.#adaptor.recording !== environmentRecording()) return previous;
    this.#stack ??= new Set(layersOf(this.#adaptor));
    return this.#stack;
  }
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

if (setting('CISTERN_LOG_FILE') !== undefined) {
  interceptConstruction((resource) =>
    resource instanceof RecordingResourceAdaptor ? new CoversWhatIsBelow(resource) : new ProgramCalls(resource),
  );
}
