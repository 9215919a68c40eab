import { MiB } from '../../basics/units.js';
import { set } from '../../driver/memory/transfer.js';
import { Event } from '../../driver/streams/event.js';
import type { Stream, StreamHold } from '../../driver/streams/stream.js';
import type { DeallocationFence } from '../../memory-resource.js';
import type { ResourceSupport } from './harness.js';
import { assertOutOfMemory, type Block, type TestBed } from './test-bed.js';

type Body = (bed: TestBed) => void;

/** How long a stream gets to do what it must not do yet. */
const patienceMilliseconds = 20;

/**
 * When freed memory may be used. A hold stops a stream, with a write to the memory queued behind
 * it. The memory is freed and allocated for another stream, which writes to it. If that stream did
 * not wait for the first one, its write happens first, and the held write overwrites it after the
 * release.
 */
export function streamOrderCases(supports: ResourceSupport): Record<string, Body> {
  if (!supports.streamOrdered) return { 'serves a stream after another one is disposed': reuseAfterDispose };
  return {
    'reuses freed memory in the order of its stream': (bed) => {
      withHeldWrite(bed, bed.stream, MiB, (block) => {
        bed.free(block);
        return useOn(bed, bed.stream, MiB);
      });
    },
    'reuses freed memory on another stream only in order': (bed) => {
      withHeldWrite(bed, bed.newStream(), MiB, (block, freeing) => {
        bed.free(block, freeing);
        return useOn(bed, bed.newStream(), MiB);
      });
    },
    'keeps the order with every fence of a free': (bed) => {
      for (const fence of ['eager', 'deferred', 'off', 'event'] as const) {
        const freeing = bed.newStream();
        using event = new Event({ device: bed.resource.device });
        withHeldWrite(bed, freeing, MiB, (block) => {
          bed.free(block, freeing, fence === 'event' ? recorded(event, freeing) : fence);
          return useOn(bed, bed.newStream(), MiB);
        });
      }
    },
    'keeps the order if the freeing stream is disposed before its memory is reused': (bed) => {
      const freeing = bed.newStream();
      withHeldWrite(bed, freeing, MiB, (block) => {
        bed.free(block, freeing);
        freeing.dispose();
        return useOn(bed, bed.newStream(), MiB);
      });
    },
    'serves a stream after another one is disposed': reuseAfterDispose,
    ...(supports.reusesAcrossStreams === true && supports.capacityBytes !== undefined ? exhaustedStreamOrderCases() : {}),
  };
}

/** The same if no memory is left except what was freed. */
function exhaustedStreamOrderCases(): Record<string, Body> {
  return {
    'reuses the last memory on another stream only in order': (bed) => {
      for (const fence of [undefined, 'eager', 'deferred', 'event'] as const) {
        const freeing = bed.newStream();
        const bytes = bed.shareOfCapacity(0.6);
        using event = new Event({ device: bed.resource.device });
        withHeldWrite(bed, freeing, bytes, (block) => {
          bed.free(block, freeing, fence === 'event' ? recorded(event, freeing) : fence);
          return useOn(bed, bed.newStream(), bytes);
        });
      }
    },
    'makes a third stream wait for what the second waited for': (bed) => {
      const [first, second, third] = [bed.newStream(), bed.newStream(), bed.newStream()];
      const bytes = bed.shareOfCapacity(0.6);
      withHeldWrite(bed, first, bytes, (block) => {
        bed.free(block, first);
        bed.free(bed.allocate(bytes, second), second);
        return useOn(bed, third, bytes);
      });
    },
    'makes a third stream wait for what a failed allocation on the second gathered': (bed) => {
      const [first, second, third] = [bed.newStream(), bed.newStream(), bed.newStream()];
      const bytes = bed.shareOfCapacity(0.6);
      const rest = bed.allocate(bed.shareOfCapacity(0.3));
      withHeldWrite(bed, first, bytes, (block) => {
        bed.free(block, first);
        const tooMany = bed.shareOfCapacity(0.8);
        assertOutOfMemory(tooMany, () => bed.resource.allocate(tooMany, second));
        return useOn(bed, third, bytes);
      });
      bed.free(rest);
    },
    'keeps the order of the last memory if the freeing stream is disposed': (bed) => {
      const freeing = bed.newStream();
      const bytes = bed.shareOfCapacity(0.6);
      withHeldWrite(bed, freeing, bytes, (block) => {
        bed.free(block, freeing);
        freeing.dispose();
        return useOn(bed, bed.newStream(), bytes);
      });
    },
  };
}

interface Use {
  readonly block: Block;
  readonly stream: Stream;
}

const late = 0xaa;
const lasting = 0x55;

/**
 * Allocates, stops the stream, queues a write behind the stop, and makes `reuse` free the block and
 * use memory on another stream. Then asserts that the late write did not overwrite what the other
 * stream wrote.
 */
function withHeldWrite(bed: TestBed, stream: Stream, bytes: number, reuse: (block: Block, stream: Stream) => Use): void {
  const block = bed.allocate(bytes, stream);
  const hold: StreamHold = stream.hold();
  let use: Use;
  try {
    set(block.pointer, late, 1, bytes, stream);
    use = reuse(block, stream);
    waitAtMost(use.stream, patienceMilliseconds);
  } finally {
    hold.release();
  }
  bed.resource.device.synchronizeSync();
  bed.assertFilled({ pointer: use.block.pointer, bytes: Math.min(bytes, 8 * MiB) }, lasting, use.stream);
  bed.free(use.block, use.stream);
}

function useOn(bed: TestBed, stream: Stream, bytes: number): Use {
  const block = bed.allocate(bytes, stream);
  set(block.pointer, lasting, 1, bytes, stream);
  return { block, stream };
}

/** Leaves this thread's core to the stream meanwhile. */
function waitAtMost(stream: Stream, milliseconds: number): void {
  const nobody = new Int32Array(new SharedArrayBuffer(4));
  const end = Date.now() + milliseconds;
  while (!stream.query() && Date.now() < end) Atomics.wait(nobody, 0, 0, 1);
}

function recorded(event: Event, stream: Stream): DeallocationFence {
  event.record(stream);
  return event;
}

function reuseAfterDispose(bed: TestBed): void {
  for (let i = 0; i < 8; i++) {
    const stream = bed.newStream();
    const block = bed.allocate(MiB, stream);
    bed.fill(block, i, stream);
    bed.assertFilled(block, i, stream);
    bed.free(block, stream);
    stream.dispose();
  }
  const block = bed.allocate(MiB);
  bed.fill(block, 9);
  bed.assertFilled(block, 9);
  bed.free(block);
}
