/** Moves the contents of a buffer to other memory: larger or smaller, or of another resource. */
import { CisternError } from '../../basics/errors.js';
import { assertOneOf, assertOptions, optionNames } from '../../basics/validation.js';
import { freeSoonerOrLater } from '../../collector/free-unreachable-buffers.js';
import { assertNotCaptured, assertStream } from '../../driver/streams/stream.js';
import { assertMemoryResource, type DeallocationEvents, type MemoryResource } from '../../memory-resource.js';
import { deallocationEventsWords } from '../../stream-ordering/stream-ordering.js';
import { type BufferMemory, type HasMemory, memoryOf } from '../buffer-memory.js';
import { emptyMemory } from '../create-memory.js';
import type { RecastOptions } from './buffer-contents.js';
import { copyOrdered } from './ordered-copy.js';

const recastOptions = optionNames<RecastOptions>({ events: true, stream: true });

/** Moves a buffer to as many bytes of its resource. */
export function changeCapacity(buffer: HasMemory, capacityBytes: number, events: DeallocationEvents | undefined, operation: string): void {
  const isMoved = buffer[memoryOf].reallocate(capacityBytes, events);
  const memory = buffer[memoryOf];
  // The resource is foreign code, which may have disposed this buffer.
  if (memory.endReason !== undefined) freeSoonerOrLater(memory);
  memory.assertLive(operation);
  if (isMoved && memory.bytes === capacityBytes) return;
  throw changedMeanwhile(operation);
}

/**
 * Copies a buffer to memory of another resource, which takes the place of the old memory once that is
 * freed. Returns `undefined` if the buffer is of that resource already.
 */
export function copyToResource(buffer: HasMemory, resource: MemoryResource, options: RecastOptions): BufferMemory | undefined {
  const operation = 'recast a buffer';
  const before = buffer[memoryOf];
  before.assertUsable(operation);
  assertMemoryResource(resource, 'resource');
  assertOptions(options, recastOptions);
  assertEvents(options.events);
  if (options.stream !== undefined) assertStream(options.stream, operation);
  if (resource === before.resource) return undefined;
  // A refused free of the old memory would leave the copy in the graph.
  assertNotCaptured(before.stream, operation);
  const { byteLength, bytes, pointer, alignment, label, createdAt } = before;
  const { stream = before.stream } = options;
  const after = emptyMemory(resource, stream, alignment, label, byteLength, bytes, createdAt);
  after.allocate(bytes);
  after.byteLength = byteLength;
  const assertUnchanged = () => {
    buffer[memoryOf].assertLive(operation);
    const isAsBefore = before.pointer === pointer && before.byteLength === byteLength && after.bytes === bytes;
    if (buffer[memoryOf] !== before || !isAsBefore) throw changedMeanwhile(operation);
  };
  try {
    assertUnchanged();
    if (byteLength > 0) copyOrdered({ pointer: after.pointer, stream }, { pointer, stream: before.stream }, byteLength);
    assertUnchanged();
    return after;
  } catch (error) {
    freeSoonerOrLater(after);
    throw error;
  }
}

export function assertEvents(events: unknown): void {
  if (events !== undefined) assertOneOf(events, deallocationEventsWords, 'events');
}

function changedMeanwhile(operation: string): CisternError {
  return new CisternError(
    'ERR_CISTERN_INVALID_STATE',
    `cannot ${operation}: it was changed meanwhile, by a host function or by its resource`,
  );
}
