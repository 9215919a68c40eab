/**
 * Moves of several buffers between the device and the host that begin together. The stream of the copies follows each stream of
 * a last use once, neighbours on both sides are one copy, and what is left is one batch where the driver has batches.
 *
 *     prepared ── copy queued ──► leave, or arrive
 *        └─ refused, or not reached ──► abandon
 *
 * Invariant: the copies that are queued are the first of the list, whatever is refused. Those of the others, if the driver has queued them
 * even so, write to memory that is freed on the same stream, so nobody sees what they write.
 */
import type { BufferMemory } from '../../buffers/buffer-memory.js';
import { follow } from '../../buffers/transfers/ordered-copy.js';
import { assertAwake, beforeWrite } from '../../driver/memory/guarded-addresses.js';
import { mailbox, NativeStatus, native } from '../../driver/native.js';
import { repeatWhileStopped, statusError } from '../../driver/status.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { StreamIdentity } from '../../driver/streams/stream-identity.js';
import { DeviceWaits, lastingStream } from '../../ownership/bulk-frees.js';

/** The contents of a buffer, and the memory that they are about to be copied to: on the stream of that. */
export interface Move {
  readonly moves: Moves;
  readonly from: BufferMemory;
  readonly to: BufferMemory;
  readonly bytes: number;
}

/** Whose contents move. */
export interface Moves {
  /** @throws LifetimeError if there are none any more */
  assertHasContents(): void;
  /** The copy is queued: they are at their new place. May throw; where they are then is for it to say. */
  end(move: Move): void;
  /** It is not: they are where they were. */
  abandon(move: Move): void;
}

/** Makes a stream wait for everything that is queued on another. */
export type Order = (follower: Stream, leader: Stream) => void;

/** The leader may have ended. */
export const followLasting: Order = (follower, leader) => follow(follower, lastingStream(leader));

/** The same for steps of one call: a pair of streams is ordered once, since what the call orders was queued before it. */
export function followOnce(): Order {
  const waits = new DeviceWaits();
  const followed = new Map<StreamIdentity, Set<StreamIdentity>>();
  return (follower, leader) => {
    const lasting = waits.streamFor(leader);
    const leaders = followed.get(follower.identity) ?? new Set();
    followed.set(follower.identity, leaders);
    if (leaders.has(lasting.identity)) return;
    follow(follower, lasting);
    leaders.add(lasting.identity);
  };
}

/**
 * Queues the copies of moves to memory of one stream, and ends each, or abandons it.
 * @param ended called after each that has ended
 * @throws the first error; the moves before it have ended even so, as far as it is that of a copy
 */
export function moveTogether(moves: readonly Move[], ended: (move: Move) => void = () => {}): void {
  let failure: { readonly error: unknown } | undefined;
  const fail = (error: unknown) => {
    failure ??= { error };
  };
  const queued = queueCopies(moves, fail);
  for (const [i, move] of moves.entries()) {
    if (i >= queued) {
      move.moves.abandon(move);
      continue;
    }
    try {
      move.moves.end(move);
      ended(move);
    } catch (error) {
      fail(error);
    }
  }
  if (failure !== undefined) throw failure.error;
}

/** Returns how many are queued. */
function queueCopies(moves: readonly Move[], fail: (error: unknown) => void): number {
  const [first] = moves;
  if (first === undefined) return 0;
  const { stream } = first.to;
  const order = followOnce();
  const list = new Float64Array(3 * moves.length);
  let ready = 0;
  try {
    for (const { moves: mover, from, to, bytes } of moves) {
      mover.assertHasContents();
      order(stream, from.stream);
      assertAwake(to.pointer, bytes, 'copy');
      beforeWrite(to.pointer, bytes, 'copy');
      assertAwake(from.pointer, bytes, 'copy');
      list.set([to.pointer, from.pointer, bytes], 3 * ready);
      ready++;
    }
  } catch (error) {
    fail(error);
  }
  const { handle } = stream;
  repeatWhileStopped(() => native().copyTogether(list.subarray(0, 3 * ready), handle));
  if (mailbox[0] === NativeStatus.success) return ready;
  const queued = mailbox[1] as number;
  fail(statusError(`copy ${moves[queued]?.bytes} bytes`, mailbox[0] as number));
  return queued;
}
