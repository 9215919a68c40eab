/**
 * Makes room when memory is short: buffers that are not pinned are spilled to host memory, and come back
 * when they are pinned. With a folder, those on the host go on to files when the host is full.
 *
 *     pinned ◄── pin ── on the device ── spill ──► on the host ── host full ──► in a file
 *        └─ end of the pin ─►   ▲                      │                           │
 *                               └─ pin, or prefetch ───┴───────────────────────────┘
 *
 * The host never waits. A copy out runs on a separate stream after the last use of the memory, which is freed on that
 * stream after the copy, so the resources below order the next user of the memory after it. A copy back runs on
 * another separate stream, so that both directions of the bus are used at the same time.
 *
 * Who leaves first is in `SpillMembers`, what goes on to files in `Filing`, and what moves in `SpillableMemory`; this
 * file decides when, and what callers wait for.
 *
 * Invariants: live bytes = Σ bytes allocated and not freed; only the first that waits tries.
 * Cost: an allocation that finds memory takes an addition more; a wait for admission or for files looks at all members.
 */

import { layersOf } from '../../adaptors/layers.js';
import { outOfMemoryThrough, PassThroughAdaptor } from '../../adaptors/pass-through/pass-through-adaptor.js';
import { couldNotLeave, type Helps, type RoomGiver, roomGiver } from '../../adaptors/room-for-limits.js';
import {
  type CisternError,
  DriverError,
  formatValue,
  invalidValue,
  NotAdmittedError,
  OutOfMemoryError,
  reasonOf,
  UnsupportedError,
} from '../../basics/errors.js';
import { LiveInstances } from '../../basics/live-instances.js';
import { formatBytes } from '../../basics/units.js';
import { assertBytes, assertName, assertOneOf, optionNames } from '../../basics/validation.js';
import { bytesOfSizeOrShare } from '../../budget/memory-budget.js';
import { runCollectionStage, tryAgainCollecting } from '../../collector/when-memory-is-short.js';
import { captureStatusOf } from '../../driver/graphs/capture.js';
import { Stream } from '../../driver/streams/stream.js';
import {
  assertMemoryResource,
  type DeallocationEventsOption,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
} from '../../memory-resource.js';
import { seen, tentatively } from '../../observing/failed-allocations.js';
import { defineAdaptor } from '../../resource-kind.js';
import { withoutCaching } from '../../scopes/resource-scope.js';
import { AdmittingResourceAdaptor } from '../admission/admitting-resource-adaptor.js';
import { collectWhileWaiting, stopCollectingFor, type WaitingCalls } from '../waiting/collect-while-waiting.js';
import type { WaitOptions } from '../waiting/wait-options.js';
import { WaitingLine, type WaitRules, WaitTimes } from '../waiting/waiting-line.js';
import { Filing } from './filing.js';
import { PinHolds } from './pin-holds.js';
import { type Lane, SpillFiles } from './spill-files.js';
import { type Spillable, SpillMembers } from './spill-members.js';
import { type SpillPolicy, spillPolicies, spillPolicyWords } from './spill-policy.js';
import type { SpillStatistics } from './spill-statistics.js';

/** Options of {@link SpillingResourceAdaptor}. */
export interface SpillingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * If an allocation would bring the allocated bytes, in spillable buffers or not, above this, buffers are first
   * spilled as far as possible; from 0 to 2^53 - 1.
   * @defaultValue not set: buffers are spilled when the upstream is out of memory
   */
  readonly softBytes?: number | undefined;
  /**
   * Which buffers are spilled first: `'least-recently-used'`; `'cost-of-return'`, which prefers large buffers that are
   * seldom used; or a policy of your own.
   * @defaultValue `'least-recently-used'`
   */
  readonly policy?: (typeof spillPolicyWords)[number] | SpillPolicy | undefined;
  /**
   * A folder on a local disk, which is made if it does not exist. When the host has no memory for a buffer that leaves, those that
   * are there go on to files in this folder, the least recently used first. The files have no names: nobody else can open them, and they end with
   * their buffers, or with the process. Takes 8 MiB of pinned memory to stage them.
   * @defaultValue not set: a buffer for which the host has no memory stays on the device
   */
  readonly folder?: string | undefined;
  /**
   * Above so many bytes of buffers on the host, buffers go on to files in the background, before the host is full: from 0 to 2^53 - 1. As a
   * text, a size such as `'8GiB'`, or a share such as `'50%'` of what the process may use of the host, which follows the limit of a
   * container while the program runs (`memoryBudget` of `cistern/machine`). Leave room for what may leave at once, since an allocation
   * cannot wait for a file. Needs a `folder`.
   * @defaultValue not set: buffers go on when the host has no memory
   */
  readonly hostBytes?: number | string | undefined;
}

const knownOptions = optionNames<SpillingResourceAdaptorOptions>({
  deallocationEvents: true,
  folder: true,
  hostBytes: true,
  policy: true,
  softBytes: true,
});

const instances = new LiveInstances<SpillingResourceAdaptor>();

/** @internal The adaptors of this environment that are neither disposed nor collected, in the order of construction. */
export function liveSpillingAdaptors(): SpillingResourceAdaptor[] {
  return instances.all();
}

/**
 * Spills idle buffers from the device to host memory when memory is short. {@link SpillableBuffer}s
 * of a stack with this adaptor keep their contents in host memory, and come back when you pin them.
 * They are spilled:
 *
 * - if the upstream is out of memory, as many as the allocation needs, the least recently used first; then it is tried again;
 * - above `softBytes`, before an allocation;
 * - by {@link SpillingResourceAdaptor.spill};
 * - if the upstream has an {@link AdmittingResourceAdaptor}, as many as the first waiting request
 *   needs, if that many can be spilled.
 *
 * A buffer stays while it is pinned; while another library or process has its memory; while its memory is asleep; and
 * as long as a graph may have its address: until the graph of a capture in which it was made or pinned, or its address read,
 * the executable graphs made from that, and their launches have ended. Buffers that are not spillable stay, too.
 *
 * Stream order: that of the upstream. Copies are queued on streams of this adaptor, after the last use of the
 * memory; the freed memory is ordered after the copy. The host waits only if the upstream or `host` makes it
 * wait, so use a pool of pinned memory as `host`, because pinning and unpinning are slow and wait for the
 * device. The alignment is that of the upstream.
 *
 * In a stack, put accounts and statistics above it, so that they see spilled buffers, and admission and pools
 * below it.
 *
 * RMM has no counterpart; rapidsmpf's spill manager and cuDF's spillable buffers do this.
 * @example
 * ```ts
 * using device = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(device, { maximumBytes: 64 * MiB });
 * using pinned = new PinnedHostMemoryResource();
 * using host = new PoolMemoryResource(pinned);
 * using resource = new SpillingResourceAdaptor(pool, host);
 * using stream = new Stream();
 * using one = new SpillableBuffer(new Uint8Array(40 * MiB), { stream, resource });
 * using other = new SpillableBuffer(40 * MiB, { stream, resource }); // `one` leaves
 * using pin = await one.pin(); // and comes back: `other` leaves
 * console.log(pin.ptr, other.isOnDevice);
 * ```
 */
export class SpillingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'SpillingResourceAdaptor';
  /** The resource for spilled buffers, of pinned host memory. */
  readonly host: MemoryResource;
  /** As given; `undefined` if it was not. */
  readonly softBytes: number | undefined;
  readonly #files: SpillFiles | undefined;
  readonly #filing: Filing | undefined;
  readonly #members: SpillMembers;
  readonly #registration = instances.add(this);
  readonly #admitting: readonly AdmittingResourceAdaptor[];
  /** @internal */
  readonly pinHolds: PinHolds;
  /** V8: boxed numbers. */
  readonly #liveBytes = new Float64Array(1);
  readonly #line = new WaitingLine(true, new WaitTimes());
  readonly #waitingCalls: WaitingCalls = {
    keepProcessAlive: () => true,
    served: () => this.#line.times.waits,
    // What is pinned by garbage comes back only after a collection.
    onSecond: () => this.#line.memoryFreed(),
  };
  #outward: Stream | undefined;
  #homeward: Stream | undefined;
  #refusedByHost = 0;
  /** Why a buffer could not leave, since the last allocation began to make room. */
  #hostRefusal: CisternError | undefined;
  #failedForAdmission = 0;

  /**
   * @param host a resource of pinned host memory, which should keep freed memory, such as a pool
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid resource or option; CisternError (`ERR_CISTERN_SPILL_FILE`) if the folder cannot be
   * made, OutOfMemoryError if there is no memory to stage files in.
   */
  constructor(upstream: MemoryResource, host: MemoryResource, options: SpillingResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    assertMemoryResource(host, 'host');
    if (host.memoryKind !== 'pinned-host') {
      throw invalidValue(`host must be a resource of pinned host memory, got one of kind ${formatValue(host.memoryKind)}`);
    }
    const { softBytes, policy = 'least-recently-used', folder, hostBytes } = options;
    if (softBytes !== undefined) assertBytes(softBytes, 'softBytes');
    if (folder !== undefined) assertName(folder, 'folder');
    const mostHostBytes = () =>
      typeof hostBytes === 'string' ? bytesOfSizeOrShare(hostBytes, 'hostBytes', host.memoryKind, this.device) : hostBytes;
    if (hostBytes !== undefined) assertBytes(mostHostBytes(), 'hostBytes');
    if (hostBytes !== undefined && folder === undefined)
      throw invalidValue(`hostBytes must not be given without a folder, got ${hostBytes}`);
    this.host = host;
    this.softBytes = softBytes;
    this.#members = new SpillMembers(policyOf(policy));
    this.#files = folder === undefined ? undefined : new SpillFiles(folder, this.device);
    if (this.#files !== undefined) this.#filing = new Filing(this.#files, this.#members, mostHostBytes, () => this.isIdle());
    this.#admitting = layersOf(upstream).filter((layer) => layer instanceof AdmittingResourceAdaptor);
    this.pinHolds = new PinHolds(this.#admitting);
    for (const admitting of this.#admitting) admitting.takeFrom(this);
  }

  /** What is where, and what has moved. */
  statistics(): SpillStatistics {
    let [deviceBytes, pinnedBytes, hostBytes, fileBytes] = [0, 0, 0, 0];
    for (const { devicePointer, bytes, isPinned, isInFile } of this.#members) {
      if (isInFile) fileBytes += bytes;
      else if (devicePointer === 0) hostBytes += bytes;
      else deviceBytes += bytes;
      if (isPinned) pinnedBytes += bytes;
    }
    return Object.freeze({
      buffers: this.#members.size,
      deviceBytes,
      pinnedBytes,
      hostBytes,
      fileBytes,
      liveBytes: this.#liveBytes[0] as number,
      spills: this.#members.spills,
      spilledBytes: this.#members.spilledBytes,
      returns: this.#members.returns,
      returnedBytes: this.#members.returnedBytes,
      refusedByHost: this.#refusedByHost,
      filed: this.#filing?.filed ?? 0,
      filedBytes: this.#filing?.filedBytes ?? 0,
      refusedByFile: this.#filing?.refused ?? 0,
      failedForAdmission: this.#failedForAdmission,
      waiting: this.#line.length,
      waits: this.#line.times.waits,
      waitedMilliseconds: this.#line.times.milliseconds,
      longestWaitMilliseconds: this.#line.times.longestMilliseconds,
    });
  }

  /**
   * Spills buffers until this many bytes are free for others, or no more can be spilled. Does not wait: the copies
   * are queued, and the next user of the memory is ordered after them.
   * @param bytes an integer from 0 to 2^53 - 1
   * @defaultValue bytes all that can be spilled
   * @returns the bytes of the spilled buffers
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid number; LifetimeError (`ERR_CISTERN_DISPOSED`) once disposed; DriverError if the
   * driver refuses a copy: that buffer stays, with its contents, and so do others that were to leave together with it.
   */
  spill(bytes: number = Number.MAX_SAFE_INTEGER): number {
    assertBytes(bytes);
    this.assertLive('spill');
    const before = this.#members.spilledBytes;
    this.#spill(bytes, () => true);
    return this.#members.spilledBytes - before;
  }

  /**
   * Moves buffers that are on the host to files until so many of the host's bytes are free, or no more can go. Does not block.
   * @param bytes an integer from 0 to 2^53 - 1
   * @defaultValue bytes all that are on the host
   * @returns the bytes of the buffers that have gone
   * @throws CisternError (`ERR_CISTERN_SPILL_FILE`) if a file cannot be made or written, as on a full disk: that buffer stays on the host; its `cause` is the
   * system's error.
   * @throws UnsupportedError without a `folder`; ArgumentTypeError, ArgumentRangeError for an invalid number; LifetimeError
   * (`ERR_CISTERN_DISPOSED`) once disposed; DriverError if the driver refuses a copy.
   */
  async spillToFiles(bytes: number = Number.MAX_SAFE_INTEGER): Promise<number> {
    assertBytes(bytes);
    this.assertLive('move buffers to files');
    if (this.#filing === undefined)
      throw new UnsupportedError('cannot move buffers to files: the SpillingResourceAdaptor was given no folder');
    return this.#filing.move(bytes);
  }

  /**
   * @throws OutOfMemoryError if nothing more can be spilled, and the upstream still has no memory. If buffers could not leave
   * since the host has no memory, or the driver refuses it, the `cause` is an `AggregateError` of both errors.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    if (this.softBytes !== undefined) this.#keepBelow(this.softBytes, bytes);
    for (;;) {
      let pointer: DevicePointer;
      try {
        pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
      } catch (error) {
        if (!(error instanceof OutOfMemoryError)) throw error;
        if (!this.#makeRoom(bytes, stream)) throw this.#withHostRefusal(error);
        continue;
      }
      this.#liveBytes[0] = (this.#liveBytes[0] as number) + bytes;
      return pointer;
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    if (pointer === 0) return;
    const liveBytes = this.#liveBytes;
    liveBytes[0] = (liveBytes[0] as number) - bytes;
    this.#line.memoryFreed();
  }

  /**
   * Ends allocation through this object, and all waits. Buffers that are on the host can no longer
   * come back, so dispose them first. Memory allocated through it can still be freed through it.
   * Neither the upstream nor `host` is disposed. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    instances.delete(this.#registration);
    this.#outward?.dispose();
    this.#homeward?.dispose();
    this.#filing?.end();
    this.#line.wakeAll();
  }

  /** @internal The stream of copies to the host. */
  get outward(): Stream {
    this.assertMoves();
    this.#outward ??= this.#newStream();
    return this.#outward;
  }

  /** @internal The stream of copies to the device. */
  get homeward(): Stream {
    this.assertMoves();
    this.#homeward ??= this.#newStream();
    return this.#homeward;
  }

  /** @internal What reads files; there is one if there are files. */
  get fromFiles(): Lane {
    this.assertMoves();
    return (this.#files as SpillFiles).homeward;
  }

  /** @internal @throws LifetimeError if it moves no buffers any more. */
  assertMoves(): void {
    this.assertLive('move a buffer');
  }

  /** @internal Whether it still moves buffers. */
  get isLive(): boolean {
    return !this.isDisposed;
  }

  /** @internal Those that may leave. */
  get members(): SpillMembers {
    return this.#members;
  }

  /** @internal The member no longer has memory. */
  remove(member: Spillable): void {
    if (this.#members.remove(member)) this.#line.memoryFreed();
  }

  /** @internal A member can leave that could not: whoever waits may have its memory. */
  isIdle(): void {
    this.#line.memoryFreed();
    for (const admitting of this.#admitting) admitting.admitBySpilling();
  }

  /** @internal Memory of the host for a member; 0 if there is none, which counts for nothing if it is tentative. */
  allocateHost(bytes: number, isTentative: boolean): DevicePointer {
    try {
      const allocate = () => withoutCaching(() => this.host.allocate(bytes, this.outward));
      return this.served(tentatively(allocate), bytes, this.outward, this.host);
    } catch (error) {
      // A driver that refuses pinned memory is a host without memory, too.
      if (!(error instanceof OutOfMemoryError || error instanceof DriverError)) throw error;
      if (isTentative) return 0;
      this.#refusedByHost++;
      this.#hostRefusal = error;
      this.#filing?.moveInBackground(bytes);
      return 0;
    }
  }

  /** @internal For an admission below, or limits above. Who frees memory or ends a pin has done that, and whoever waits goes on waiting. */
  get [roomGiver](): RoomGiver {
    return this;
  }

  /** @internal */
  giveIfEnough(bytes: number, helps: Helps): 'given' | 'lacking' | 'refused' {
    this.#hostRefusal = undefined;
    if (this.isDisposed) return 'lacking';
    try {
      if (!this.#members.canGive(bytes, helps)) return 'lacking';
      return this.#spill(bytes, helps) >= bytes ? 'given' : 'refused';
    } catch {
      this.#failedForAdmission++;
      return 'refused';
    }
  }

  /** @internal */
  get hostRefusal(): CisternError | undefined {
    return this.#hostRefusal;
  }

  /** @internal Does something that needs memory: if there is none, again after garbage was collected, unless the call waits for it in the line. */
  reclaiming<T>(attempt: () => T): T {
    try {
      return tentatively(attempt);
    } catch (error) {
      if (this.#line.isTrying) throw seen(error);
      try {
        return tryAgainCollecting(error, () => tentatively(attempt));
      } catch (last) {
        throw seen(last);
      }
    }
  }

  /** @internal Does something that needs memory, as soon as there is enough, in the order of the calls. */
  inTurn<T>(attempt: () => T, options: WaitOptions): Promise<Awaited<T>> {
    return this.#line.run(attempt, options, this.#rules());
  }

  #rules(): WaitRules {
    const began = performance.now();
    let withdraw: (() => void) | undefined;
    return {
      resource: this,
      isShortage: () => true,
      begin: () => collectWhileWaiting(this.#waitingCalls),
      beforeAttempt: () => this.assertLive('wait for memory'),
      beforeWaiting: (wait, isTurn) => {
        this.assertLive('wait for memory');
        if (isTurn && !this.#mayBecomeFree()) return runCollectionStage('major-collection') > 0 ? 'try' : 'give up';
        this.pinHolds.noteOthers(this.#othersMayGiveBack());
        withdraw ??= this.pinHolds.wait(() => wait.endWith('refused'));
        return 'wait';
      },
      failure: (end, shortage) => (end === 'refused' ? this.#waitsInVain(shortage) : (shortage ?? this.#noTime(began))),
      gaveUp: (shortage) => this.#withFileFailure(shortage),
      over: () => {
        withdraw?.();
        if (this.#line.length === 0) stopCollectingFor(this.#waitingCalls);
      },
    };
  }

  #newStream(): Stream {
    return new Stream({ device: this.device, nonBlocking: true });
  }

  /** Makes room for an allocation below the soft limit, as far as that is possible. */
  #keepBelow(softBytes: number, bytes: number): void {
    assertBytes(bytes);
    const excess = (this.#liveBytes[0] as number) + bytes - softBytes;
    if (excess > 0) this.#spill(excess, () => true);
  }

  /** Returns whether something was freed, so that an allocation may succeed now. */
  #makeRoom(bytes: number, stream: Stream): boolean {
    this.#hostRefusal = undefined;
    this.assertUsable(stream);
    if (runCollectionStage('settle') > 0) return true;
    // A captured stream cannot wait for a copy that is not in its graph.
    if (captureStatusOf(stream.handle) !== 'none') return false;
    return this.#spill(bytes, () => true) > 0;
  }

  #spill(bytes: number, helps: Helps): number {
    const left = this.#members.spill(bytes, helps);
    if (left > 0) this.#filing?.keepHostBelow();
    return left;
  }

  /** Whether somebody who goes on may give memory back: what is pinned, or allocated for others. */
  #mayBecomeFree(): boolean {
    return this.#mayComeBack(({ isPinned }) => isPinned);
  }

  /** Whether somebody may do so of whom no grant is known. */
  #othersMayGiveBack(): boolean {
    return this.#mayComeBack(({ isPinnedOutsideGrants }) => isPinnedOutsideGrants);
  }

  #mayComeBack(isUsed: (member: Spillable) => boolean): boolean {
    return this.#filing?.isGoingOn === true || this.#members.mayComeBack(this.#liveBytes[0] as number, isUsed);
  }

  /** The error of an allocation for which no buffer could leave, with the reason if that was the host's. */
  #withHostRefusal(shortage: OutOfMemoryError): unknown {
    const refusal = this.#hostRefusal;
    if (refusal === undefined) return this.passOn(shortage);
    return couldNotLeave(this.constructor.name, shortage, refusal);
  }

  /** A shortage that a file would have prevented names what was wrong with it. */
  #withFileFailure(shortage: OutOfMemoryError): OutOfMemoryError {
    const failure = this.#filing?.failure;
    if (failure === undefined) return shortage;
    const { name } = this.constructor;
    const message = `${shortage.message}; buffers could not go on to files: ${reasonOf(failure)}`;
    return outOfMemoryThrough(name, shortage, shortage.requestedBytes, message, failure as Error);
  }

  #waitsInVain(shortage: OutOfMemoryError | undefined): NotAdmittedError {
    const live = this.#liveBytes[0] as number;
    return new NotAdmittedError(
      'cannot wait for memory: all who pin buffers, or hold promised memory, wait for more, and this call is the youngest of the lowest priority; end a pin or return memory before you try again',
      { reason: 'deadlock', requestedBytes: shortage?.requestedBytes ?? 0, limitBytes: live },
    );
  }

  #noTime(began: number): OutOfMemoryError {
    const waited = Math.round(performance.now() - began);
    return new OutOfMemoryError(
      `the time is over after ${waited} ms, and ${this.#line.length - 1} others wait for memory; ${formatBytes(this.#liveBytes[0] as number)} are allocated`,
      { requestedBytes: 0, path: [this.constructor.name] },
    );
  }
}

function policyOf(policy: NonNullable<SpillingResourceAdaptorOptions['policy']>): SpillPolicy {
  if (typeof policy === 'object' && policy !== null && typeof policy.rank === 'function') return policy;
  assertOneOf(policy, spillPolicyWords, 'policy');
  return spillPolicies[policy];
}

/** `spilling` in a specification. */
export const spillingKind = defineAdaptor({
  name: 'spilling',
  role: 'pass-through',
  summary: 'spills idle buffers to host memory when memory is short',
  options: {
    host: { type: 'resource', summary: 'the resource for spilled buffers: pinned host memory', required: true },
    hostBytes: { type: 'size', takesShare: true, summary: 'above this, buffers go on to files before the host is full' },
    folder: { type: 'text', summary: 'a folder for files, where they go on to when the host is full', default: 'none' },
    softBytes: { type: 'size', summary: 'above this, buffers are spilled before an allocation' },
    policy: { type: 'word', words: spillPolicyWords, summary: 'which buffers are spilled first', default: 'least-recently-used' },
  },
  example: 'spilling(cuda, host=pool(pinned-host))',
  create: ({ upstream, options: { host, ...options } }) => new SpillingResourceAdaptor(upstream, host, options),
});
