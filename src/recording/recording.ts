/**
 * Writes recordings as the program runs. A block is written when it is full, when it is a second
 * old and a record comes, and at a flush. Blocks that the file does not take are kept, and the next
 * flush tries again. A record costs a reading of the clock and the work of {@link BlockEncoder},
 * and cannot fail.
 */
import { statSync } from 'node:fs';
import { resolve } from 'node:path';
import { ArgumentTypeError, alreadyDisposed, formatValue, invalidValue } from '../basics/errors.js';
import { assertOptions, optionNames } from '../basics/validation.js';
import type { StreamIdentity } from '../driver/streams/stream-identity.js';
import { observeEvents, unobserveEvents } from '../driver/streams/stream-identity.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../driver/workers/local-object.js';
import { operatingSystemThreadId } from '../driver/workers/thread.js';
import { cancelFlushAtExit, flushAtExit } from '../files/flush-at-exit.js';
import { FileTarget } from '../files/log-target.js';
import { packageVersion } from '../package/root.js';
import { hasScopes, innermostFrame, innermostOf, type ScopeFrame } from '../scopes/resource-scope.js';
import { BlockEncoder } from './block-encoder.js';
import { LayerTable } from './layer-table.js';
import { beginManagedMoves, endManagedMoves, pendingMoves, takeManagedMoves } from './managed-moves.js';
import { NameTable } from './name-table.js';
import { innermostPhase, type Phase } from './phases.js';
import { encodeHeader, RecordKind } from './recording-format.js';
import { StreamTable } from './stream-table.js';

/** If the block is older than this when a record comes, it is written first. */
const maximumAge = 1e9;
/**
 * Longer texts are cut off: a text of this length fits into a block, whatever its characters are.
 */
const maximumTextLength = 16_384;
/** Stacks are long, and are kept for comparison. */
const lastStack = 16_384;
const lastLabel = 65_535;
const lastAccount = 65_535;
const lastStream = 65_535;
/** The most moves that a record takes along, so that it stays fast; a flush takes all of them. */
const movesOfRecord = 2048;

const encoder = new TextEncoder();

/** An account, as far as recordings contain it. */
interface NamedAccount {
  readonly path: string;
}

interface AccountFrame extends ScopeFrame {
  readonly kind: 'account';
  readonly account: NamedAccount;
}

function accountOf(frame: ScopeFrame | undefined): NamedAccount | undefined {
  return innermostOf<AccountFrame>('account', frame)?.account;
}

/** The recordings of this environment that are not disposed. */
const live: Recording[] = [];

/** The recording that gets the moves of managed memory. */
let movesGoTo: Recording | undefined;

/** Options of {@link Recording}. */
export interface RecordingOptions {
  /** The path of the file, which is overwritten if it exists. */
  readonly file: string;
  /**
   * Whether each record is written immediately instead of many at a time. Then nothing is lost if
   * the process is killed, at the cost of a system call per record.
   * @defaultValue false
   */
  readonly autoFlush?: boolean | undefined;
}

const knownOptions = optionNames<RecordingOptions>({ autoFlush: 'boolean', file: true });

/**
 * Writes a recording: a compact log of the calls through {@link RecordingResourceAdaptor}s, the
 * blocks that the pools below them take and return, events and waits, phases ({@link annotate}) and
 * labels. `cistern report`, `convert` and `replay` read it, and so does `readRecordedRun`.
 *
 * Several adaptors can share a recording; each has its own layer. A recording belongs to one
 * thread, so give each worker its own file.
 *
 * Records are collected and written in blocks of 64 KiB, or with the next record if a second has
 * passed; also at {@link Recording.flush}, at dispose, after a failed allocation, and when the
 * process or worker exits normally. If the process is killed, the file can be read up to the last
 * record written.
 *
 * If the file cannot be written, neither records nor memory are lost: an adaptor's `allocate`
 * throws before it calls the upstream; frees succeed, and their records are kept for later.
 *
 * RMM has no counterpart; {@link LoggingResourceAdaptor} writes RMM's log.
 * @example
 * ```ts
 * using recording = new Recording({ file: 'run.cistern' });
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(new RecordingResourceAdaptor(upstream, { recording }));
 * using resource = new RecordingResourceAdaptor(pool, { recording });
 * ```
 */
export class Recording implements Disposable {
  /** The path of the file. */
  readonly file: string;
  readonly #target: FileTarget;
  readonly #autoFlush: boolean;
  /** Bytes that the target has not yet taken, in order. */
  #unwritten: Uint8Array[] = [];
  #isBehind = false;

  /** The records not yet passed to the target; `undefined` after dispose. */
  #blocks: BlockEncoder | undefined = new BlockEncoder(maximumAge, (block) => this.#write(block));
  /** The clock at time 0, in milliseconds. */
  readonly #origin: number;
  /**
   * The time of the last event, which definitions use, because moves that follow may be older than
   * them.
   */
  #last = 0;
  /** The time of every record while moves are recorded; otherwise NaN. */
  #moveTime = Number.NaN;
  /** The time at which the recording of moves began. */
  #movesBegan = 0;
  /** The layers of the places of managed memory, by place. */
  readonly #places = new Map<number, number>();
  /** The reason for pages that are listed without a move. */
  #presentReason = 'already there';
  /** Whether the moves may go to this recording. */
  #asksForMoves = false;

  /** The last frame examined, and the phase of the next record unless a record changes it. */
  #frame: ScopeFrame | undefined;
  #phase: Phase | undefined;
  #account: NamedAccount | undefined;
  #notes = 0;
  readonly #phases = new Map<Phase, number>();
  readonly #layers = new LayerTable((index, name, upstream, isPlace) => {
    const head = RecordKind.defineLayer | ((upstream === undefined ? 0 : upstream + 1) << 8) | (isPlace ? 1 << 16 : 0);
    this.#define(head, index, name);
  });
  readonly #streams = new StreamTable(lastStream, (index, handle) => this.#define(RecordKind.defineStream, index, handle));
  readonly #stacks = new NameTable(lastStack, '(more stacks)', (index, stack) => this.#define(RecordKind.defineStack, index, stack));
  readonly #accounts = new NameTable(lastAccount, '(more accounts)', (index, path) => this.#define(RecordKind.defineAccount, index, path));
  readonly #labels = new NameTable(lastLabel, '(more labels)', (index, label) => this.#define(RecordKind.defineLabel, index, label));

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { file: this.file, isDisposed: this.isDisposed }, inspection);
  }

  /**
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if the file cannot be opened.
   * @throws ArgumentTypeError for invalid options; ArgumentRangeError if another recording of the
   * thread writes to the file.
   */
  constructor(options: RecordingOptions) {
    assertOptions(options, knownOptions);
    const { file, autoFlush = false } = options;
    if (typeof file !== 'string') throw new ArgumentTypeError(`file must be a string, got ${formatValue(file)}`);
    assertNotRecordedTo(file);
    const thread = operatingSystemThreadId();
    this.file = file;
    refuseCloning(this);
    this.#autoFlush = autoFlush;
    this.#target = new FileTarget(file);
    this.#origin = performance.now();
    this.#write(
      encodeHeader({
        startedAt: Date.now(),
        utcOffsetMinutes: -new Date().getTimezoneOffset(),
        process: process.pid,
        writer: `cistern ${packageVersion()}`,
        clock: Number(process.hrtime.bigint()),
      }),
    );
    this.#define(RecordKind.defineThread, 0, String(thread));
    this.#put(RecordKind.thread, 0, 0);
    if (live.push(this) === 1) observeEvents(eventObserver);
    flushAtExit(this);
  }

  /** Whether the recording is disposed. */
  get isDisposed(): boolean {
    return this.#blocks === undefined;
  }

  /**
   * Writes everything recorded until now.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if it cannot be written; it is kept, to be tried
   * again.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) after dispose.
   */
  flush(): void {
    if (this.isDisposed) throw alreadyDisposed('flush', 'the Recording');
    this.#writeAll();
  }

  /**
   * Writes the remaining records and closes the file. Adaptors that use this recording then pass
   * calls on without recording them. Does nothing the second time.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if the remaining records cannot be written; they
   * are then lost.
   */
  [Symbol.dispose](): void {
    if (this.isDisposed) return;
    live.splice(live.indexOf(this), 1);
    if (live.length === 0) unobserveEvents(eventObserver);
    cancelFlushAtExit(this);
    this.#endMoves();
    this.#streams.clear();
    this.#phases.clear();
    this.#frame = undefined;
    this.#account = undefined;
    try {
      this.#writeAll();
    } finally {
      this.#blocks = undefined;
      this.#unwritten = [];
      this.#isBehind = false;
      this.#target.close();
    }
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** @internal Whether the file did not take the last bytes it was given. */
  get isBehind(): boolean {
    return this.#isBehind;
  }

  /**
   * @internal Adds a layer, or reuses that of an ended resource with the same name and upstream.
   * @param upstream the layer below
   * @param isShared whether resources of this name and upstream share one layer
   */
  addLayer(name: string, upstream: number | undefined, isShared = false): number {
    return this.isDisposed ? 0 : this.#layers.add(name, upstream, false, isShared);
  }

  /** @internal Ends the use of a layer. */
  removeLayer(layer: number): void {
    this.#layers.remove(layer);
  }

  /**
   * @internal From now on, records where the pages of the software device's managed memory are. The
   * first recording of the process that requests this gets the moves, until it is disposed; then
   * another recording of its thread that requested it does.
   */
  recordManagedMemory(): void {
    if (this.isDisposed) return;
    this.#asksForMoves = true;
    if (movesGoTo !== undefined || !beginManagedMoves()) return;
    movesGoTo = this;
    this.#movesBegan = this.#now();
  }

  /**
   * @internal The fields of a record that hold its layer and stream, to be combined with the kind.
   */
  headOf(layer: number, identity: StreamIdentity | undefined): number {
    if (this.isDisposed) return 0;
    const stream = identity === undefined ? this.#streams.indexOfHandle(0, 0) : this.#streams.indexOf(identity);
    return (layer << 8) | (stream << 16);
  }

  /**
   * @internal Adds a record. Allocates nothing, and cannot fail. Returns its position, for
   * `retract`.
   */
  append(head: number, first: number, second: number): number {
    if (hasScopes()) this.#followScopes();
    if (pendingMoves[0] !== 0) recordMoves();
    return this.#put(head, first, second);
  }

  /** @internal Like `append`, with the call stack. */
  appendWithStack(head: number, first: number, second: number, stack: string): void {
    if (this.isDisposed) return;
    if (hasScopes()) this.#followScopes();
    if (pendingMoves[0] !== 0) recordMoves();
    const index = this.#stacks.indexOf(stack);
    this.#put(RecordKind.stack, index, 0);
    this.#put(head, first, second);
  }

  /** @internal Removes a record that turned out to be wrong, unless it is already written. */
  retract(position: number): void {
    this.#blocks?.retract(position);
  }

  /** @internal Names a live allocation. */
  label(layer: number, pointer: number, label: string): void {
    if (this.isDisposed) return;
    const index = this.#labels.indexOf(label);
    this.append(RecordKind.label | (layer << 8), pointer, index);
    this.flushIfAuto();
  }

  /** @internal Adds a human-readable note of the program. */
  note(text: string): void {
    this.#define(RecordKind.defineNote, this.#notes++, text);
  }

  /** @internal Adds the record of an allocation that was made earlier, in the scope of an account. */
  appendHeld(head: number, first: number, second: number, account: NamedAccount | undefined, stack: string | undefined): void {
    this.#setAccount(account);
    if (stack !== undefined) this.#put(RecordKind.stack, this.#stacks.indexOf(stack), 0);
    this.#put(head, first, second);
    this.#setAccount(accountOf(innermostFrame()));
  }

  /** @internal A phase begins. */
  beginPhase(phase: Phase): void {
    this.#recordPhase(RecordKind.phaseBegin, phase, 0);
  }

  /** @internal A phase ends. */
  endPhase(phase: Phase, hasFailed: boolean): void {
    if (pendingMoves[0] !== 0 && movesGoTo === this) {
      const before = this.#phase;
      this.#setPhase(phase);
      this.recordMoves(movesOfRecord);
      this.#setPhase(before);
    }
    this.#recordPhase(RecordKind.phaseEnd, phase, hasFailed && phase.isGraph ? 1 : 0);
  }

  /**
   * @internal Ends a group of records: with `autoFlush` they are written. If the file does not take
   * them, they are kept.
   */
  flushIfAuto(): void {
    if (this.#autoFlush) this.tryFlush();
  }

  /** @internal Like `flush`, but keeps what the file does not take for later. */
  tryFlush(): void {
    if (this.isDisposed) return;
    try {
      this.#writeAll();
    } catch {}
  }

  #recordPhase(kind: number, phase: Phase, second: number): void {
    if (this.isDisposed) return;
    const index = this.#phaseIndex(phase);
    this.append(kind, index, second);
    this.flushIfAuto();
  }

  /** Records a change of phase or account before the next record. */
  #followScopes(): void {
    const frame = innermostFrame();
    if (frame === this.#frame || this.isDisposed) return;
    this.#frame = frame;
    this.#setPhase(innermostPhase(frame));
    this.#setAccount(accountOf(frame));
  }

  #setAccount(account: NamedAccount | undefined): void {
    if (account === this.#account) return;
    this.#account = account;
    this.#blocks?.record(RecordKind.account, this.#last, account === undefined ? 0 : this.#accounts.indexOf(account.path), 0);
  }

  #setPhase(phase: Phase | undefined): void {
    if (phase === this.#phase) return;
    this.#phase = phase;
    const index = phase === undefined ? 0 : this.#phaseIndex(phase);
    this.#blocks?.record(RecordKind.phase, this.#last, index, 0);
  }

  #phaseIndex(phase: Phase): number {
    /** The phase and those around it that are not in the file yet; a recursion could be too deep. */
    const unknown: Phase[] = [];
    for (let each: Phase | undefined = phase; each !== undefined && !this.#phases.has(each); each = each.outer) unknown.push(each);
    for (const each of unknown.reverse()) {
      const outer = each.outer === undefined ? 0 : (this.#phases.get(each.outer) as number);
      const index = this.#phases.size + 1;
      this.#phases.set(each, index);
      this.#define(RecordKind.definePhase | (each.isGraph ? 1 << 8 : 0) | (outer << 16), index, each.name);
    }
    return this.#phases.get(phase) as number;
  }

  #put(head: number, first: number, second: number): number {
    const blocks = this.#blocks;
    if (blocks === undefined) return 0;
    const time = this.#now();
    this.#last = time;
    return blocks.record(head, time, first, second);
  }

  /** Adds a record that is followed by a text. */
  #define(head: number, index: number, text: string): void {
    const shown = text.length > maximumTextLength ? `${text.slice(0, maximumTextLength - 1)}…` : text;
    this.#blocks?.define(head, this.#last, index, encoder.encode(shown));
  }

  /** Whole nanoseconds since the recording began. */
  #now(): number {
    return Number.isNaN(this.#moveTime) ? Math.floor((performance.now() - this.#origin) * 1e6) : this.#moveTime;
  }

  /**
   * @internal Records the moves so far, at their own times if no record is later.
   * @param most approximately the largest number to record
   */
  recordMoves(most: number): void {
    const now = this.#now();
    const began = this.#movesBegan;
    for (const { nanoseconds, pointer, bytes, place, reason, device, stream } of takeManagedMoves(now - began, most)) {
      this.#moveTime = Math.max(this.#last, Math.min(now, began + nanoseconds));
      const layer = this.#placeLayer(place);
      const head = (layer << 8) | (this.#streams.indexOfHandle(device, stream) << 16);
      if (reason === 'left') {
        this.#put(head | RecordKind.free, pointer, bytes);
      } else if (reason === 'lost') {
        this.#presentReason = `after ${bytes} lost moves`;
        this.#put(RecordKind.label | (layer << 8), 0, this.#labels.indexOf(this.#presentReason));
      } else {
        this.#put(head | RecordKind.allocate, pointer, bytes);
        const label = reason === 'already there' ? this.#presentReason : reason;
        this.#put(RecordKind.label | (layer << 8), pointer, this.#labels.indexOf(label));
      }
    }
    this.#moveTime = Number.NaN;
  }

  #endMoves(): void {
    if (movesGoTo !== this) return;
    this.recordMoves(Number.POSITIVE_INFINITY);
    movesGoTo = undefined;
    endManagedMoves();
    for (const other of live) if (other.#asksForMoves) other.recordManagedMemory();
  }

  #placeLayer(place: number): number {
    let layer = this.#places.get(place);
    if (layer === undefined) {
      layer = this.#layers.add(place < 0 ? 'managed at the host' : `managed at device ${place}`, undefined, true);
      this.#places.set(place, layer);
    }
    return layer;
  }

  #writeAll(): void {
    if (movesGoTo === this) this.recordMoves(Number.POSITIVE_INFINITY);
    this.#blocks?.close();
    while (this.#unwritten.length > 0) {
      const bytes = this.#unwritten[0] as Uint8Array;
      const taken = this.#target.write(bytes);
      if (taken < bytes.length) this.#unwritten[0] = bytes.subarray(taken);
      else this.#unwritten.shift();
    }
    this.#isBehind = false;
  }

  /** Passes bytes to the target; those it does not take are kept for `flush`. */
  #write(bytes: Uint8Array): void {
    let written = 0;
    if (!this.#isBehind) {
      try {
        while (written < bytes.length) written += this.#target.write(bytes.subarray(written));
      } catch {}
    }
    if (written === bytes.length) return;
    this.#unwritten.push(bytes.slice(written));
    this.#isBehind = true;
  }
}

/** @internal The recordings of this environment that are not disposed. */
export function liveRecordings(): readonly Recording[] {
  return live;
}

function recordMoves(): void {
  movesGoTo?.recordMoves(movesOfRecord);
}

const eventObserver = {
  eventRecorded: (identity: StreamIdentity, version: number) => recordEvent(RecordKind.eventRecord, identity, version),
  eventAwaited: (identity: StreamIdentity, version: number) => recordEvent(RecordKind.eventWait, identity, version),
};

function recordEvent(kind: number, identity: StreamIdentity, version: number): void {
  // An event that was never recorded delays nothing.
  if (version === 0) return;
  for (let i = 0; i < live.length; i++) {
    const recording = live[i] as Recording;
    recording.append(kind | recording.headOf(0, identity), version, 0);
    recording.flushIfAuto();
  }
}

/**
 * Two recordings in one file would overwrite each other. Devices such as `/dev/null` are allowed.
 */
function assertNotRecordedTo(file: string): void {
  const path = resolve(file);
  if (!live.some((recording) => resolve(recording.file) === path) || !statSync(path, { throwIfNoEntry: false })?.isFile()) return;
  throw invalidValue(
    `file must not be written by another Recording of this thread, got ${formatValue(file)}; pass that one to the adaptors`,
  );
}
