/**
 * Where memory for an allocation comes from: the order in which every resource that keeps memory
 * looks for it. Read `Tries.find` from top to bottom.
 *
 *     allocate ──► own lane ── a block fits ──► its address: a hit, which never comes here
 *                     │
 *                     ▼                                                            who waits
 *     round     1  own memory      the stream's other lane                         nobody
 *       │       2  ready memory    a block of another stream, whose work has run   nobody
 *       │       3  ask             streams that memory is held for; then 2         nobody
 *       │       4  merge ready     all memory of others whose work has run         nobody
 *       │       5  grow            a block from below, unless it refused such      as the upstream does
 *       │       6  others' memory  a block of another stream                       the stream, for that one
 *       │       7  merge           all memory of others, lane by lane              the stream, for each of them
 *       │       8  ask             once more; then 6 and 7                         nobody
 *       │       9  upstream        a block from below; then own memory, 6 and 7    as the upstream does
 *       │      10  ask all         of those streams; if one is idle, a new round   nobody
 *       └──────11  wait            for all of them; if there were any, a new round the host
 *
 *              12  search          blocks that the index passed over               nobody
 *              13  neighbours      others on the device return free blocks; then 1  as their upstreams do
 *              14  error           out of memory
 *
 * First comes what needs no wait: a stream that takes memory of a busy one stands still until that has run what it had
 * queued before the free, for ever if the busy one waits for it. A few lanes are looked at, and the driver is asked about
 * their last events, or their streams. Then the resource grows, if its maximum allows it, and only then its streams wait
 * for each other; with `growth: 'after-waits'`, step 5 is left out. CUDA's own pools have this order, too.
 *
 * A resource composes its tries: it defines how it grows (5, 9) and its error (14), and whether it
 * merges (4, 7) and searches (12). Only the arena has its own way to take others' memory (6).
 *
 * | resource | 2, 6 | 4, 7 | 5 | 9 | 12 |
 * | --- | --- | --- | --- | --- | --- |
 * | pool | a block that fits; if memory is scarce and the request large, first all their memory is merged | yes | an eighth of what it has, or what is missing | as much as it has, or less; free blocks go back if that helps | the stream's lane |
 * | arena | 6 only: the global arena, then a close fit, a ready one first | no | no | what was given back of it; all free memory is returned to the global arena | the global arena |
 * | fixed-size (also the bins of binning) | any block | no | a batch, or less | a batch, or less | no |
 * | caching | a block of the same size | no | a block | a block; free blocks of other sizes go back if that helps | no |
 * | monotonic | a block that is large enough | no | a block, or less | the same; unused blocks of streams first | no |
 *
 * A `PlannedMemoryResource` has no tries: its fallback serves what its plan does not.
 *
 * Under `'eager'` and `'deferred'`, no memory is held for a stream, unless its owner may destroy it
 * unannounced, or a free requested it. Then steps 3, 8, 10 and 11 find no streams.
 *
 * Why did an allocation wait? The stream waits in `reuse` and in `StreamOrdering.joinNext`, both through
 * `StreamLane.order`, and in an arena also if it takes memory from the global arena. The host waits in step
 * 11, for the streams that `StreamOrdering.synchronizeHeld` finds; and in steps 5 and 9 if the upstream waits, or
 * if a monotonic resource takes back blocks of a stream that may no longer exist.
 *
 * What you need not know: how the index finds a block (`suballocation/free-space-index.ts`), how
 * upstream blocks are counted (`upstream-blocks.ts`), and what happens at a trim and at the end
 * (`keeper.ts`). Read next: the `tries` of `pool-memory-resource.ts`, then
 * `stream-ordering/stream-lane.ts`: what a stream waits for.
 *
 * Foreign code may run wherever the upstream is called or the host waits. It may use this very
 * resource, end the stream or dispose everything; so each such place then calls `enter`, which
 * checks again.
 */
import { DriverError, type OutOfMemoryError } from '../../basics/errors.js';
import { assertOneOf } from '../../basics/validation.js';
import { isCapturing } from '../../driver/status.js';
import type { Stream } from '../../driver/streams/stream.js';
import { mostRounds, nextMoment } from '../../kept-memory/neighbours.js';
import type { DevicePointer } from '../../memory-resource.js';
import { mostPassed } from '../../stream-ordering/stream-ordering.js';
import { leastBlockBytes, none } from '../../suballocation/blocks.js';
import { maximumUnits, unitBytes } from '../../suballocation/free-space-index.js';
import type { Keeper, KeptMemory } from './keeper.js';

/** An index that allocations are taken from. */
export interface CutMemory extends KeptMemory {
  /** Takes a block for an allocation from a lane. Returns its address, or -1. */
  cut(bytes: number, alignment: number, lane: number, owner: number): number;
  free(block: number, lane: number): void;
  /** If it cuts: whether a lane has a block of `units` units, or only slightly more. */
  hasClose?(units: number, lane: number): boolean;
}

/** An option of resources that keep memory. */
export interface GrowthOption {
  /**
   * Which comes first when the free memory that fits belongs to streams whose work has not run: `'before-waits'` takes more memory from the
   * upstream, within the maximum, so that streams do not wait for each other; `'after-waits'` makes the stream wait, so that the least memory is
   * taken. Free memory that needs no wait comes before both. Allocations that their own stream's memory serves are not affected.
   *
   * RMM's pools wait; CUDA's own grow first.
   * @defaultValue `'before-waits'`
   */
  readonly growth?: 'before-waits' | 'after-waits' | undefined;
}

const growthWords = ['before-waits', 'after-waits'] as const;

/** Whether it grows before streams wait. @throws ArgumentTypeError, ArgumentRangeError for an unknown value. */
export function growsFirst({ growth = 'before-waits' }: GrowthOption): boolean {
  assertOneOf(growth, growthWords, 'growth');
  return growth === 'before-waits';
}

/** `growth` in a specification. */
export const growthOption = {
  type: 'word',
  words: growthWords,
  summary: 'whether it takes more memory before its streams wait for each other',
  default: 'before-waits',
} as const;

/**
 * One close fit in two that needs no wait gives way to a lane with a block 64 times as large. Otherwise a single block wanders among streams that
 * allocate in turns, so that each of their allocations is a miss, although there is free memory for all of them.
 */
const roomyEvery = 2;
const roomyShare = 64;

/** A try: returns an address, or -1. */
type Try = (bytes: number, stream: Stream, alignment: number) => number;

/** The differences between resources. A step that is left out finds nothing. */
export interface Strategy {
  /**
   * Step 6, in place of steps 2 and 6.
   * @defaultValue one block of another stream
   */
  readonly others?: Try | undefined;
  /**
   * Steps 2 and 6: whether a request of `units` units merges all memory of others before it takes a block from `other`, a lane of
   * theirs. Only for memory with `laneWith`.
   * @defaultValue never
   */
  readonly mergesFirst?: ((units: number, stream: Stream, other: number) => boolean) | undefined;
  /** Steps 4 and 7. */
  readonly merges?: boolean | undefined;
  /** Step 5: takes more from the upstream, and returns nothing for that. Returns whether the stream's lane may now serve the request. */
  readonly growBeforeWaits?: ((bytes: number, stream: Stream, alignment: number) => boolean) | undefined;
  /**
   * Step 9: makes room for a request, usually with a block from the upstream. Returns whether the
   * stream's lane, or memory that it can take from others, may now serve the request.
   */
  readonly grow: (bytes: number, stream: Stream, alignment: number, round: number) => boolean;
  /** Step 12: too slow for general use. */
  readonly search?: Try | undefined;
  /** Step 14. */
  readonly outOfMemory: (bytes: number, alignment: number) => OutOfMemoryError;
}

/**
 * Where a {@link StreamOrderedMemoryResource} looks for memory if the stream's own free memory does not serve a request, in
 * order. A resource of your own makes one in its field `tries`, with a {@link Strategy}.
 */
export class Tries {
  /** How often all of another stream's free memory was merged with the requesting stream's. */
  merges = 0;
  /** How often others had a close fit that needed no wait. */
  #closeFits = 0;
  readonly #keeper: Keeper;
  readonly #index: CutMemory;
  readonly #strategy: Strategy;

  constructor(keeper: Keeper, index: CutMemory, strategy: Strategy) {
    this.#keeper = keeper;
    this.#index = index;
    this.#strategy = strategy;
  }

  /**
   * Finds a block for a stream whose own lane has none.
   * @throws the error of step 14; also any other error of the upstream
   */
  find(bytes: number, stream: Stream, alignment: number): DevicePointer {
    this.#keeper.lastMiss = nextMoment();
    this.#keeper.roundsLeft = mostRounds;
    this.#keeper.answerRequests(stream);
    for (;;) {
      const address = this.#findHere(bytes, stream, alignment);
      if (address !== none) return address;
      if (!this.#keeper.askNeighbours(bytes, stream)) throw this.#strategy.outOfMemory(bytes, alignment);
    }
  }

  /** Steps 1 to 12. */
  #findHere(bytes: number, stream: Stream, alignment: number): number {
    const { ordering } = this.#keeper;
    for (let round = 0; ; round++) {
      const { releases } = this.#keeper;
      const address = this.#withoutTheHost(bytes, stream, alignment, round);
      if (address !== none) return address;
      // If memory was returned to the upstream, the upstream may now serve this.
      if (this.#keeper.releases === releases && !ordering.queryAllHeld(stream)) {
        const synchronized = this.#keeper.synchronizeHeld(stream);
        if (synchronized === 0) break;
        this.#keeper.synchronizations += synchronized;
      }
      this.#keeper.enter(stream);
      const own = this.#own(bytes, stream, alignment);
      if (own !== none) return own;
    }
    return this.#strategy.search?.(bytes, stream, alignment) ?? none;
  }

  /** Steps 1 to 9. */
  #withoutTheHost(bytes: number, stream: Stream, alignment: number, round: number): number {
    const { ordering, held } = this.#keeper;
    held.refusal = undefined;
    let address = this.#withoutWaits(bytes, stream, alignment);
    if (address === none) address = this.#othersOrMerge(bytes, stream, alignment);
    if (address === none && ordering.queryHeld(stream)) address = this.#othersOrMerge(bytes, stream, alignment);
    if (address === none && this.#keeper.takeBackIdle(0, stream, true)) address = this.#own(bytes, stream, alignment);
    if (address === none && this.#strategy.grow(bytes, stream, alignment, round)) {
      address = this.#own(bytes, stream, alignment);
      if (address === none) address = this.#ownSecond(bytes, stream, alignment);
      if (address === none) address = this.#othersOrMerge(bytes, stream, alignment);
    }
    return address;
  }

  /** Steps 1 to 5. */
  #withoutWaits(bytes: number, stream: Stream, alignment: number): number {
    const { ordering } = this.#keeper;
    let address = this.#ownSecond(bytes, stream, alignment);
    if (address === none) address = this.#ready(bytes, stream, alignment);
    // Before any merging, which would leave the other streams without memory of their own.
    if (address === none && ordering.queryHeld(stream)) address = this.#ready(bytes, stream, alignment);
    if (address === none) address = this.#merge(bytes, stream, alignment, true);
    // Merging also finds lanes that were known to be idle once, and must be queried again.
    if (address === none && ordering.queryHeld(stream)) {
      address = this.#ready(bytes, stream, alignment);
      if (address === none) address = this.#merge(bytes, stream, alignment, true);
    }
    if (address === none && this.#keeper.takeBackIdle(leastBlockBytes(bytes, alignment), stream)) {
      address = this.#own(bytes, stream, alignment);
      if (address === none) address = this.#ownSecond(bytes, stream, alignment);
      if (address === none) address = this.#ready(bytes, stream, alignment);
    }
    const { growBeforeWaits } = this.#strategy;
    // If there is nothing to wait for, step 9 follows anyway.
    if (address !== none || growBeforeWaits === undefined || ordering.fullLane(stream) === none) return address;
    if (!growBeforeWaits(bytes, stream, alignment)) return none;
    address = this.#own(bytes, stream, alignment);
    return address === none ? this.#ownSecond(bytes, stream, alignment) : address;
  }

  /** The lane that had no block at first. */
  #own(bytes: number, stream: Stream, alignment: number): number {
    return this.#cut(this.#keeper.ordering.ownLaneOf(stream).number, bytes, stream, alignment);
  }

  /** Step 1. */
  #ownSecond(bytes: number, stream: Stream, alignment: number): number {
    const second = this.#keeper.ordering.secondLaneOf(stream);
    return second === undefined ? none : this.#cut(second.number, bytes, stream, alignment);
  }

  /** Step 2. */
  #ready(bytes: number, stream: Stream, alignment: number): number {
    return this.#strategy.others === undefined ? this.#fromOthers(bytes, stream, alignment, true) : none;
  }

  /** Step 6. */
  #others(bytes: number, stream: Stream, alignment: number): number {
    if (this.#strategy.others !== undefined) return this.#strategy.others(bytes, stream, alignment);
    return this.#fromOthers(bytes, stream, alignment, false);
  }

  /** With `isReady`, only memory for which the stream need not wait. */
  #fromOthers(bytes: number, stream: Stream, alignment: number, isReady: boolean): number {
    const { ordering } = this.#keeper;
    if (this.#index.laneWith !== undefined) {
      // Found by its size, and so enough for any alignment.
      const units = leastBlockBytes(bytes, alignment) / unitBytes;
      if (units > maximumUnits) return none;
      let other = isReady ? ordering.readyLaneWith(stream, units) : ordering.laneWith(stream, units);
      if (other !== none && this.#strategy.mergesFirst?.(units, stream, other) === true) {
        const address = this.#mergeAll(bytes, stream, alignment, isReady);
        if (address !== none) return address;
      }
      if (isReady && other !== none && this.#index.hasClose?.(units, other) && ++this.#closeFits % roomyEvery === 0) {
        const roomy = ordering.readyLaneWith(stream, Math.min(units * roomyShare, maximumUnits));
        if (roomy !== none) other = roomy;
      }
      return other === none ? none : this.reuse(other, bytes, stream, alignment);
    }
    let passed = 0;
    for (const other of ordering.others(stream)) {
      if (isReady && !ordering.lane(other).hasRun()) {
        if (++passed === mostPassed) break;
        continue;
      }
      const address = this.reuse(other, bytes, stream, alignment);
      if (address !== none) return address;
    }
    return none;
  }

  /**
   * Takes a block from a lane of others, if one fits. The stream waits for the work that was queued before the
   * block was freed.
   */
  reuse(other: number, bytes: number, stream: Stream, alignment: number): number {
    const address = this.#cut(other, bytes, stream, alignment);
    if (address === none) return none;
    try {
      this.#keeper.ordering.order(stream, other);
    } catch (error) {
      this.#index.free(this.#index.usedBlock(address), other);
      throw error;
    }
    this.#keeper.reuses++;
    return address;
  }

  /** As steps 4 and 7, but merges all of these lanes, or as many as the driver orders the stream after. */
  #mergeAll(bytes: number, stream: Stream, alignment: number, isReady: boolean): number {
    this.#keeper.ordering.askAgain();
    try {
      while (this.#mergeNext(stream, isReady) !== undefined) {}
    } catch (error) {
      if (!(error instanceof DriverError || isCapturing(error))) throw error;
    }
    return this.#cut(this.#keeper.ordering.mergingLaneOf(stream).number, bytes, stream, alignment);
  }

  /** Merges one more lane with the stream's own. Returns whose it was, or `undefined` if there was none. */
  #mergeNext(stream: Stream, isReady: boolean): 'own' | 'others' | undefined {
    const from = this.#keeper.ordering.joinNext(stream, isReady);
    if (from === 'others') this.merges++;
    return from;
  }

  /** Steps 4 and 7. The stream waits for each lane that is merged with its own, unless that is ready, until a block fits. */
  #merge(bytes: number, stream: Stream, alignment: number, isReady: boolean): number {
    if (this.#strategy.merges !== true) return none;
    const { ordering } = this.#keeper;
    ordering.askAgain();
    for (let from = this.#mergeNext(stream, isReady); from !== undefined; from = this.#mergeNext(stream, isReady)) {
      const address = this.#cut(ordering.mergingLaneOf(stream).number, bytes, stream, alignment);
      if (address !== none) return address;
    }
    return none;
  }

  #othersOrMerge(bytes: number, stream: Stream, alignment: number): number {
    const address = this.#others(bytes, stream, alignment);
    return address === none ? this.#merge(bytes, stream, alignment, false) : address;
  }

  #cut(lane: number, bytes: number, { identity }: Stream, alignment: number): number {
    return this.#index.cut(bytes, alignment, lane, identity.serial);
  }
}
