/**
 * Which streams of a pass wait for which.
 *
 * Before a stream's first request in a pass, it waits for all other streams that have used the block. Then it waits before it takes memory of another
 * stream: the plan lists these places. With one stream, nothing is recorded.
 *
 * A pass becomes irregular once the plan no longer determines which stream waits for which: with several streams, once the fallback has
 * served a request, whose wait is then missing; and always, once a stream has ended or free memory was gathered on another. Until the
 * next pass, every request then waits for all other streams that have used the block.
 */
import type { Stream } from '../driver/streams/stream.js';
import { StreamLane } from '../stream-ordering/stream-lane.js';
import type { StreamOrdering } from '../stream-ordering/stream-ordering.js';
import type { Plan } from './plan.js';
import type { PlannedBlock } from './planned-block.js';
import { withPredecessors } from './predecessors.js';

export class PassOrder {
  isIrregular = false;
  readonly #block: PlannedBlock;
  readonly #ordering: StreamOrdering;
  /** By allocation: the streams of the plan whose memory it takes over. */
  #sources: ReadonlyMap<number, readonly number[]> = new Map();
  /** By stream of the plan: the stream that the pass uses. */
  #bound: (Stream | undefined)[] = [];
  /** Lanes of streams that used the block in this pass; and those recorded when the pass began. */
  #touched = new Set<number>();
  #recorded = new Set<number>();
  /** Lanes of streams that have waited for the others in this pass. */
  #hasWaited = new Set<number>();

  constructor(block: PlannedBlock, ordering: StreamOrdering) {
    this.#block = block;
    this.#ordering = ordering;
  }

  setPlan(plan: Plan, isSingleStream: boolean): void {
    this.#sources = isSingleStream ? new Map() : streamChanges(plan);
  }

  /** Whether memory never goes from one stream to another within the plan. */
  get isEachForItself(): boolean {
    return this.#sources.size === 0;
  }

  /** A pass begins. If several streams used the block in the last one, an event is recorded on each. */
  begin(): void {
    const recorded = new Set<number>();
    for (const number of this.#touched.size > 1 ? this.#touched : []) {
      const lane = this.#ordering.lane(number);
      if (!(lane instanceof StreamLane) || !lane.identity.announcesEnd || this.#block.isEmpty(number)) continue;
      lane.freeRecorded();
      recorded.add(number);
    }
    // Every stream of the last pass has waited for those that used the block before it.
    if (this.#hasWaited.size > 0) {
      for (const { number } of this.#ordering.lanes) if (!this.#touched.has(number)) this.#block.forget(number);
    }
    this.#recorded = recorded;
    this.#touched = new Set();
    this.#hasWaited = new Set();
    this.#bound = [];
    this.isIrregular = false;
  }

  /** The stream that stands for one of the plan, if one does. */
  standingFor(number: number): Stream | undefined {
    return this.#bound[number];
  }

  /** Makes a stream stand for one of the plan, unless another does. */
  letStandFor(number: number, stream: Stream): void {
    this.#bound[number] ??= stream;
  }

  /** Whether a stream stands for none of the plan. */
  standsForNone({ identity }: Stream): boolean {
    return !this.#bound.some((stream) => stream?.identity === identity);
  }

  hasWaited(lane: number): boolean {
    return this.#hasWaited.has(lane);
  }

  /** A stream uses the block. */
  touch(lane: number): void {
    this.#block.use(lane);
    this.#touched.add(lane);
  }

  /** A stream makes its next request: first it waits for the other streams that used the block, unless it has. */
  enter(stream: Stream, lane: number): void {
    if (this.isIrregular || !this.#hasWaited.has(lane)) {
      for (const other of [...this.#ordering.laneNumbers()]) if (other !== lane) this.#waitFor(other, stream);
      this.#hasWaited.add(lane);
    }
    this.touch(lane);
  }

  /** Makes a stream wait for the streams whose memory an allocation takes over. */
  waitForSources(allocation: number, stream: Stream): void {
    for (const number of this.#sources.get(allocation) ?? []) {
      const other = this.#bound[number];
      if (other === undefined || other.identity === stream.identity) continue;
      const lane = other.isDisposed ? this.#laneOfDisposed(other) : this.#ordering.laneOf(other, 'allocate');
      if (lane === undefined) continue;
      this.#recorded.delete(lane.number);
      this.#waitFor(lane.number, stream);
    }
  }

  /** Another object may stand for the same stream. If none does, the stream has ended, and `enter` has waited for all. */
  #laneOfDisposed({ identity }: Stream): StreamLane | undefined {
    for (const lane of this.#ordering.lanes) if (lane.identity === identity) return lane;
    return undefined;
  }

  /** A stream has the block from the upstream. The others wait for the upstream's earlier users through this one. */
  tookBlock(lane: number): void {
    this.#hasWaited = new Set([lane]);
    this.#recorded.clear();
    this.touch(lane);
  }

  /** A stream is about to wait for all others, and then stands for what they did. Those that have live memory go on using it. */
  gather(lane: number): void {
    // When these streams last freed memory is unknown.
    for (const each of this.#ordering.lanes) if (!this.#block.isEmpty(each.number) && each.identity.announcesEnd) each.freeUnrecorded();
    this.#touched.add(lane);
    this.becomeIrregular();
  }

  becomeIrregular(): void {
    this.isIrregular = true;
    // What was recorded at the beginning does not cover this pass.
    this.#recorded.clear();
  }

  /**
   * Another stream may get the number of a lane, and then seems to have waited: an irregular pass does not ask.
   * Returns whether the pass is irregular from now on.
   */
  laneEnded(lane: number, ended: number): boolean {
    if (!this.#touched.delete(lane)) return false;
    this.#touched.add(ended);
    this.becomeIrregular();
    return true;
  }

  #waitFor(number: number, stream: Stream): void {
    if (this.#block.isEmpty(number)) return;
    const lane = this.#ordering.lane(number);
    if (lane instanceof StreamLane && !this.#recorded.has(number) && lane.identity.announcesEnd) lane.freeUnrecorded();
    this.#ordering.order(stream, number);
  }
}

/**
 * For each allocation that takes over bytes from other streams: those that allocated or freed them
 * last. The streams before those are ordered by the waits of the allocations in between, on the streams that allocated: of
 * memory that was never used, the stream of the free need not come after those.
 */
function streamChanges(plan: Plan): Map<number, readonly number[]> {
  const { starts, predecessors } = withPredecessors(plan);
  const changes = new Map<number, readonly number[]>();
  for (let a = 0; a < plan.sizes.length; a++) {
    const from = new Set<number>();
    for (const before of predecessors.subarray(starts[a], starts[a + 1])) {
      for (const stream of [plan.streams[before] as number, plan.freeStreams[before] as number])
        if (stream >= 0 && stream !== plan.streams[a]) from.add(stream);
    }
    if (from.size > 0) changes.set(a, [...from]);
  }
  return changes;
}
