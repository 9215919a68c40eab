import { assertOptions, optionNames } from '../basics/validation.js';
import { BufferMemory } from '../buffers/buffer-memory.js';
import { anyMemory } from '../buffers/create-memory.js';
import { creationStack } from '../collector/free-unreachable-buffers.js';
import { collectForOthers } from '../collector/reclaim-unreachable-buffers.js';
import { assertStream, assertStreamOf, type Stream } from '../driver/streams/stream.js';
import { AttachedMemory } from './attached-memory.js';
import { attach, type BufferMessage, checkedMessage, giveBack, messageInfo } from './hand-over.js';

/** Options of {@link attachBuffer}. */
export interface AttachOptions {
  /**
   * The stream that the memory is ordered on from now on. It waits for the work queued on the
   * sender's stream before the hand-over.
   */
  readonly stream: Stream;
}

const knownOptions = optionNames<AttachOptions>({ stream: true });

/** Attaches a buffer from another worker. @param creator the function that the program called */
export function attachedMemory(message: BufferMessage, options: AttachOptions, creator: (...args: never[]) => unknown): BufferMemory {
  const operation = 'attach a buffer';
  const checked = checkedMessage(message);
  assertOptions(options, knownOptions);
  const { stream } = options;
  assertStream(stream, operation);
  const { bytes, byteLength, alignment, isShared, ...place } = messageInfo(checked, operation);
  if (place.memoryKind === 'device') assertStreamOf(stream, place.device);
  const createdAt = creationStack(creator);
  collectForOthers();
  const attached = attach(checked, stream, operation);
  if (bytes === 0) {
    giveBack(attached, stream);
    return anyMemory(0, { stream, alignment, ...(checked.label === undefined ? {} : { label: checked.label }) }, creator);
  }
  const resource = new AttachedMemory(place, { ...attached, bytes }, isShared ? checked : undefined);
  const memory = new BufferMemory(resource, resource, stream, alignment, checked.label, createdAt);
  memory.adopt(attached.pointer, bytes);
  memory.byteLength = byteLength;
  return memory;
}
