/** `cistern/workers`: memory for other workers, and for threads of addons. */
import type { ResourceKind } from '../resource-kind.js';
import { globalArenaKind } from './global-arena-memory-resource.js';
import { threadSafeArenaKind } from './thread-safe-arena-memory-resource.js';

export type { AttachOptions } from './attach-from-worker.js';
export type { GlobalArenaMemoryKind } from './global-arena.js';
export {
  GlobalArenaMemoryResource,
  type GlobalArenaMemoryResourceOptions,
  type GlobalArenaStatistics,
} from './global-arena-memory-resource.js';
export type { BufferMessage, EventMessage, StreamMessage } from './hand-over.js';
export { attachBuffer, detachBuffer, discardBuffer, shareBuffer } from './hand-over-buffers.js';
export { attachEvent, detachEvent, discardEvent, shareEvent } from './hand-over-events.js';
export { attachStream, detachStream, discardStream, shareStream } from './hand-over-streams.js';
export type { ThreadSafeArenaStatistics } from './thread-safe-arena.js';
export { ThreadSafeArenaMemoryResource, type ThreadSafeArenaMemoryResourceOptions } from './thread-safe-arena-memory-resource.js';

/** The kinds of resources of this entry. A specification loads them by itself, unless the program is bundled: see {@link addResourceKinds}. */
export const resourceKinds: readonly ResourceKind[] = [globalArenaKind, threadSafeArenaKind];
