/**
 * Returns what nobody has needed for some time to the upstream, in the background.
 *
 *     lanes ── set aside ──► idle ── still there after `idleMilliseconds` ──► upstream
 *       ▲                     │
 *       └──── a miss needs it ┘
 *
 * Two steps instead of one make this exact without a trace of hits: a block of the upstream that is entirely free, and whose work has run,
 * is taken out of the lanes, where hits look. If the program needs it, the next miss puts it back, without a call of the driver.
 * If it does not for the whole time, it is returned. So memory goes between one and two times `idleMilliseconds` after its last use.
 *
 * A program that pauses regularly would pay for each pause. So if the resource grows again soon after it has returned something,
 * the time doubles, up to 64 times; it halves again once a return was not regretted.
 *
 * A step takes a millisecond at most, unless one call takes longer, and goes on a little later. It is put off while
 * something is captured, and, a few times, while streams are busy: a free of plain memory may wait for the device.
 * The timer keeps neither the process nor the resource alive.
 */
import { CisternError } from '../basics/errors.js';
import { isAnythingCaptured, StreamIdentity } from '../driver/streams/stream-identity.js';
import type { Segment } from '../suballocation/blocks.js';

/** The resource whose memory it is. */
export interface IdleMemoryOwner {
  readonly isDisposed: boolean;
  readonly isAsleep: boolean;
  readonly isTaking: boolean;
  readonly deviceIndex: number;
  /** Whether its upstream may wait for the device when it frees. */
  readonly mayWaitAtFrees: boolean;
  /** How often it has taken a block from the upstream. */
  readonly growths: number;
  /** The most bytes that it could do without: those above `keepBytes`. */
  readonly spareBytes: number;
  /** Takes an entirely free block of at most `bytes`, whose work has run, out of its lane. */
  takeUnused(bytes: number): Segment | undefined;
  /** Lets entirely free blocks whose pieces are in several lanes be found by the next call of `takeUnused`. Not if that takes long. */
  joinUnused(): void;
  /** Returns a block to the upstream. If that refuses, the block is in a lane again. */
  returnUnused(segment: Segment): void;
}

interface IdleSegment extends Segment {
  readonly since: number;
}

const longestStepMilliseconds = 1;
const restMilliseconds = 10;
const mostPatience = 64;
const mostPutOffs = 8;
const longestTimer = 2 ** 31 - 1;

export class IdleMemory {
  /** The bytes that were returned because nobody needed them. */
  returnedBytes = 0;
  readonly #owner: IdleMemoryOwner;
  readonly #milliseconds: number;
  #segments: readonly IdleSegment[] = [];
  /** By how much more than `#milliseconds` memory must be idle. */
  #patience = 1;
  /** When something was last returned, and how often the resource had grown by then. */
  #returnedAt: number | undefined;
  #growthsAtReturn = 0;
  #growthsAtStep = -1;
  #putOffs = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(owner: IdleMemoryOwner, milliseconds: number) {
    this.#owner = owner;
    this.#milliseconds = milliseconds;
    this.#wait(this.#period);
  }

  /** What is set aside. */
  get segments(): readonly Segment[] {
    return this.#segments;
  }

  /** Takes the smallest block for a request of `bytes` bytes back; or, with `isExact`, one of that size. */
  take(bytes: number, isExact: boolean): Segment | undefined {
    let best: IdleSegment | undefined;
    for (const segment of this.#segments) {
      if (isExact ? segment.bytes === bytes : segment.bytes >= bytes && (best === undefined || segment.bytes < best.bytes)) best = segment;
    }
    if (best !== undefined) this.#segments = this.#segments.filter((each) => each !== best);
    return best;
  }

  /** Takes the block of at most `bytes` bytes that has been idle longest. */
  takeOldest(bytes: number): Segment | undefined {
    const oldest = this.#segments.find((segment) => segment.bytes <= bytes);
    if (oldest !== undefined) this.#segments = this.#segments.filter((each) => each !== oldest);
    return oldest;
  }

  /** Takes everything back. */
  takeAll(): readonly Segment[] {
    const segments = this.#segments;
    this.#segments = [];
    return segments;
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
  }

  get #period(): number {
    return Math.max(1, (this.#milliseconds * this.#patience) / 2);
  }

  /** Does not keep the resource alive. */
  #wait(milliseconds: number): void {
    const reference = new WeakRef(this);
    this.#timer = setTimeout(() => reference.deref()?.step(), Math.min(milliseconds, longestTimer)).unref();
  }

  /** @internal */
  step(): void {
    const { isDisposed, isAsleep, isTaking } = this.#owner;
    if (isDisposed) return;
    let isDone = true;
    if (!isAnythingCaptured && !isAsleep && !isTaking && !this.#isPutOff()) {
      const now = performance.now();
      this.#learn(now);
      try {
        isDone = this.#returnDue(now) && this.#setAside(now);
      } catch (error) {
        // Nobody could catch it; the memory is in a lane again.
        if (!(error instanceof CisternError)) throw error;
      }
    }
    this.#wait(isDone ? this.#period : restMilliseconds);
  }

  /** Whether streams are busy, and a free might wait for them. */
  #isPutOff(): boolean {
    if (!this.#owner.mayWaitAtFrees || this.#segments.length === 0) return false;
    const identities = StreamIdentity.ofDevice(this.#owner.deviceIndex).filter(({ announcesEnd }) => announcesEnd);
    const isPutOff = this.#putOffs < mostPutOffs && !identities.every((identity) => identity.isIdle());
    this.#putOffs = isPutOff ? this.#putOffs + 1 : 0;
    return isPutOff;
  }

  /** Whether the last return was regretted. */
  #learn(now: number): void {
    if (this.#returnedAt === undefined) return;
    if (this.#owner.growths > this.#growthsAtReturn) this.#patience = Math.min(mostPatience, 2 * this.#patience);
    else if (now - this.#returnedAt > 4 * this.#milliseconds * this.#patience) this.#patience = Math.max(1, this.#patience / 2);
    else return;
    this.#returnedAt = undefined;
  }

  /** Returns what has been idle for long enough. Returns whether that is all of it. */
  #returnDue(now: number): boolean {
    const due = this.#segments.filter(({ since }) => now - since >= this.#milliseconds * this.#patience);
    for (const segment of due) {
      // Foreign code may have taken it back.
      if (!this.#segments.includes(segment)) continue;
      this.#segments = this.#segments.filter((each) => each !== segment);
      this.#returnedAt = now;
      this.#growthsAtReturn = this.#owner.growths;
      this.#owner.returnUnused(segment);
      this.returnedBytes += segment.bytes;
      if (performance.now() - now > longestStepMilliseconds) return false;
    }
    return true;
  }

  /** Sets aside what is entirely free. Returns whether that is all of it. */
  #setAside(now: number): boolean {
    const hasGrown = this.#owner.growths !== this.#growthsAtStep;
    this.#growthsAtStep = this.#owner.growths;
    for (let hasJoined = hasGrown; ; ) {
      const held = this.#segments.reduce((sum, { bytes }) => sum + bytes, 0);
      const segment = this.#owner.takeUnused(this.#owner.spareBytes - held);
      if (segment !== undefined) this.#segments = [...this.#segments, { ...segment, since: now }];
      else if (hasJoined) return true;
      else {
        hasJoined = true;
        this.#owner.joinUnused();
      }
      if (performance.now() - now > longestStepMilliseconds) return false;
    }
  }
}
