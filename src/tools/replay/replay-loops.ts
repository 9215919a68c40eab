/**
 * The measured loops. They allocate nothing and call only the resource, so that the measurement
 * shows little but the cost of the stack. The case without several streams has its own loop.
 */
import type { Event } from '../../driver/streams/event.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { MemoryResource } from '../../memory-resource.js';
import type { EventChunk } from './allocation-log.js';

/** Replaces the pointer of a failed allocation, whose free is skipped. */
export const failedPointer = -1;

/** The state of the loops. */
export interface LoopState {
  readonly resource: MemoryResource;
  readonly streams: readonly Stream[];
  /** One event per stream, for the waits of the replayed program. */
  readonly events: readonly Event[];
  /** By slot: the pointer of the live allocation. */
  readonly pointers: Float64Array;
  /** By slot: the index of the allocation's stream. Used only with several streams. */
  readonly owners: Uint32Array;
  /** Called with the error thrown at a row; throws if the replay cannot go on. */
  readonly onError: (error: unknown, row: number) => void;
}

/** Replays a chunk on the first stream. */
export function replayOnOneStream(chunk: EventChunk, state: LoopState): void {
  const { operations, sizes, count } = chunk;
  const { resource, pointers, onError } = state;
  const stream = state.streams[0] as Stream;
  for (let row = 0; row < count; row++) {
    const operation = operations[row] as number;
    try {
      if (operation >= 0) {
        pointers[operation] = resource.allocate(sizes[row] as number, stream);
      } else {
        const pointer = pointers[~operation] as number;
        if (pointer !== failedPointer) resource.deallocate(pointer, sizes[row] as number, stream);
      }
    } catch (error) {
      onError(error, row);
      pointers[operation] = failedPointer;
    }
  }
}

/** Replays a chunk on the streams that `streamIndexes` gives for each row. */
export function replayOnStreams(chunk: EventChunk, streamIndexes: Uint32Array, state: LoopState): void {
  const { operations, sizes, count } = chunk;
  const { resource, streams, events, pointers, owners, onError } = state;
  for (let row = 0; row < count; row++) {
    const operation = operations[row] as number;
    const streamIndex = streamIndexes[row] as number;
    const stream = streams[streamIndex] as Stream;
    try {
      if (operation >= 0) {
        pointers[operation] = resource.allocate(sizes[row] as number, stream);
        owners[operation] = streamIndex;
      } else {
        const pointer = pointers[~operation] as number;
        if (pointer === failedPointer) continue;
        const owner = owners[~operation] as number;
        if (owner !== streamIndex && pointer !== 0) {
          const event = events[owner] as Event;
          event.record(streams[owner] as Stream);
          stream.wait(event);
        }
        resource.deallocate(pointer, sizes[row] as number, stream);
      }
    } catch (error) {
      onError(error, row);
      pointers[operation] = failedPointer;
    }
  }
}

/** What {@link observeOnStreams} gathers while replaying. */
export class Observations {
  /** By slot: the bytes of the live allocation, or -1. */
  readonly liveSizes: Float64Array;
  liveBytes = 0;
  peakLiveBytes = 0;
  lowestAddress = Number.POSITIVE_INFINITY;
  highestAddress = 0;
  /**
   * Number of waits needed for frees on a stream other than the allocation's. Each took one event.
   */
  waits = 0;

  constructor(slotCount: number) {
    this.liveSizes = new Float64Array(slotCount).fill(-1);
  }
}

/** Replays a chunk like {@link replayOnStreams}, and gathers observations. Not measured. */
export function observeOnStreams(chunk: EventChunk, streamIndexes: Uint32Array, state: LoopState, seen: Observations): void {
  const { operations, sizes, count } = chunk;
  const { resource, streams, events, pointers, owners } = state;
  for (let row = 0; row < count; row++) {
    const operation = operations[row] as number;
    const bytes = sizes[row] as number;
    const streamIndex = streamIndexes[row] as number;
    const stream = streams[streamIndex] as Stream;
    try {
      if (operation >= 0) {
        const pointer = resource.allocate(bytes, stream);
        pointers[operation] = pointer;
        owners[operation] = streamIndex;
        seen.liveSizes[operation] = bytes;
        seen.liveBytes += bytes;
        if (seen.liveBytes > seen.peakLiveBytes) seen.peakLiveBytes = seen.liveBytes;
        if (bytes > 0 && pointer < seen.lowestAddress) seen.lowestAddress = pointer;
        if (bytes > 0 && pointer + bytes > seen.highestAddress) seen.highestAddress = pointer + bytes;
        continue;
      }
      const slot = ~operation;
      const pointer = pointers[slot] as number;
      if (pointer === failedPointer) continue;
      const owner = owners[slot] as number;
      if (owner !== streamIndex && pointer !== 0) {
        const event = events[owner] as Event;
        event.record(streams[owner] as Stream);
        stream.wait(event);
        seen.waits++;
      }
      resource.deallocate(pointer, bytes, stream);
      seen.liveSizes[slot] = -1;
      seen.liveBytes -= bytes;
    } catch (error) {
      state.onError(error, row);
      pointers[operation] = failedPointer;
      seen.liveSizes[operation] = -1;
    }
  }
}
