/**
 * One block of memory that all environments of the process share, allocated in superblocks. The
 * state is native and belongs to the process: see `native/addon/global_arena.h`.
 */
import { formatValue, invalidValue, OutOfMemoryError } from '../basics/errors.js';
import { alignUp, formatBytes } from '../basics/units.js';
import type { Device } from '../driver/device.js';
import { mailbox, NativeMemoryKind, NativeStatus, native } from '../driver/native.js';
import { allocationError, check, deallocationError, outOfMemoryStatus, runHostFunctionsIfReady } from '../driver/status.js';
import type { Stream } from '../driver/streams/stream.js';

/** The kinds of memory that an arena can have. */
export type GlobalArenaMemoryKind = 'device' | 'managed' | 'pinned-host';

export const globalArenaMemoryKinds: readonly GlobalArenaMemoryKind[] = ['device', 'managed', 'pinned-host'];

/** The settings that an arena is opened with. */
export interface GlobalArenaSettings {
  readonly name: string;
  readonly device: Device;
  readonly kind: GlobalArenaMemoryKind | undefined;
  /** A multiple of 256. */
  readonly arenaBytes: number | undefined;
  /** A power of two of at least 256. */
  readonly superblockBytes: number | undefined;
}

/** How an arena is used, by all environments. */
export interface GlobalArenaUsage {
  readonly usedBytes: number;
  readonly peakUsedBytes: number;
  readonly largestFreeBytes: number;
  /** How many environments have it open, or hold memory of it. */
  readonly environments: number;
}

/** How a request to other environments ended. */
interface Answers {
  readonly asked: number;
  /** The bytes that had ever been freed in the arena when the request was made. */
  readonly freedBefore: number;
  readonly freedBytes: number;
  readonly hasRoom: boolean;
  /** The request to go on waiting for; 0 if all have answered, or the time is over. */
  readonly request: number;
  /** The threads that have not answered, as Node numbers them. */
  readonly silent: readonly number[];
}

/** The objects of this environment by the number of their arena. */
const known = new Map<number, GlobalArena>();
let isListening = false;

/**
 * This environment's part of an arena. There is one object per arena, which counts the superblocks
 * that the environment has.
 */
export class GlobalArena {
  readonly name: string;
  readonly device: Device;
  readonly kind: GlobalArenaMemoryKind;
  readonly arenaBytes: number;
  readonly superblockBytes: number;
  /** Bytes that this environment holds, in whole superblocks. */
  liveBytes = 0;
  /** The peak of `liveBytes` since `resetPeak`. */
  peakBytes = 0;
  /** Frees superblocks that this environment does not need. Must not throw. */
  giveBack: () => void = () => {};
  /** Its number in the process. */
  readonly number: number;
  #opens = 0;

  private constructor(
    settings: GlobalArenaSettings,
    number: number,
    [arenaBytes, superblockBytes, kind]: readonly [number, number, number],
  ) {
    this.name = settings.name;
    this.device = settings.device;
    this.number = number;
    this.arenaBytes = arenaBytes;
    this.superblockBytes = superblockBytes;
    this.kind = globalArenaMemoryKinds[kind] as GlobalArenaMemoryKind;
  }

  /**
   * Opens an arena. The first environment to open it decides its settings.
   * @throws OutOfMemoryError if its block cannot be allocated.
   * @throws ArgumentRangeError if it was opened with other settings.
   */
  static open(settings: GlobalArenaSettings): GlobalArena {
    const { name, device, kind = 'device', superblockBytes = 1024 * 1024 } = settings;
    // At least one superblock, so that an existing arena can be opened even if its device has no
    // free memory.
    const arenaBytes = wholeSuperblocks(settings.arenaBytes ?? Math.max(device.memoryInfo().freeBytes / 2, 1), superblockBytes);
    const { threadId } = process.getBuiltinModule('node:worker_threads');
    do native().openArena(name, device.index, NativeMemoryKind[kind], arenaBytes, superblockBytes, threadId);
    while (runHostFunctionsIfReady());
    const status = mailbox[0] as number;
    if (status !== NativeStatus.success) throw allocationError(`global arena ${formatValue(name)}`, arenaBytes, status);
    const [, number, ...found] = mailbox as unknown as [number, number, number, number, number];
    const arena = known.get(number) ?? new GlobalArena(settings, number, found);
    known.set(number, arena);
    arena.#opens++;
    try {
      arena.#check(settings);
      if (!isListening) native().onArenaRequest(answerRequests);
      check('listen for other workers');
      isListening = true;
    } catch (error) {
      arena.close();
      throw error;
    }
    return arena;
  }

  /**
   * Allocates whole superblocks, in the order of a stream. If there is no room, it frees
   * superblocks that this environment does not need, and asks the others to do the same.
   * @param bytes at least 1
   * @param waitMilliseconds how long to wait for the others at most; 0: asks them without waiting
   * @throws OutOfMemoryError, DriverError
   */
  allocate(bytes: number, stream: Stream, waitMilliseconds: number): number {
    let address = this.#tryAllocate(bytes, stream);
    let answers: Answers | undefined;
    if (address === 0 && bytes <= this.arenaBytes) {
      this.giveBack();
      address = this.#tryAllocate(bytes, stream);
      const deadline = performance.now() + waitMilliseconds;
      for (let left = waitMilliseconds; address === 0; left = deadline - performance.now()) {
        answers = this.#ask(bytes, waitMilliseconds, Math.max(left, 0), answers);
        address = this.#tryAllocate(bytes, stream);
        // If there was room, another environment may have taken it.
        if (left <= 0 || !(answers.hasRoom || answers.request > 0)) break;
      }
    }
    if (address === 0) throw this.#outOfMemory(bytes, waitMilliseconds, answers);
    this.liveBytes += alignUp(bytes, this.superblockBytes);
    if (this.liveBytes > this.peakBytes) this.peakBytes = this.liveBytes;
    return address;
  }

  /**
   * Frees an allocation, or any whole superblocks of adjacent ones, in the order of a stream.
   * @throws LifetimeError for memory that is not live here, or not with this size; nothing is then
   * freed.
   */
  deallocate(address: number, bytes: number, stream: Stream): void {
    native().freeSuperblocks(this.number, address, bytes, stream.handle);
    const status = mailbox[0] as number;
    if (status !== NativeStatus.success) throw deallocationError(`global arena ${formatValue(this.name)}`, address, bytes, status);
    this.liveBytes -= alignUp(bytes, this.superblockBytes);
    this.#forgetIfUnneeded();
  }

  usage(): GlobalArenaUsage {
    native().arenaInfo(this.number);
    check(`read the usage of global arena ${formatValue(this.name)}`);
    const [, usedBytes, peakUsedBytes, largestFreeBytes, environments] = mailbox as unknown as [number, number, number, number, number];
    return { usedBytes, peakUsedBytes, largestFreeBytes, environments };
  }

  /** Resets `peakBytes` to the bytes that are live now. */
  resetPeak(): void {
    this.peakBytes = this.liveBytes;
  }

  /** Ends one use of the arena. Live memory can still be freed. */
  close(): void {
    this.#opens--;
    native().closeArena(this.number);
    check(`close global arena ${formatValue(this.name)}`);
    this.#forgetIfUnneeded();
  }

  #forgetIfUnneeded(): void {
    if (this.#opens === 0 && this.liveBytes === 0) known.delete(this.number);
  }

  #check({ kind, superblockBytes, arenaBytes }: GlobalArenaSettings): void {
    const wanted = [
      ['memoryKind', kind, this.kind],
      ['superblockBytes', superblockBytes, this.superblockBytes],
      ['arenaBytes', arenaBytes === undefined ? undefined : wholeSuperblocks(arenaBytes, this.superblockBytes), this.arenaBytes],
    ] as const;
    for (const [option, value, found] of wanted) {
      if (value === undefined || value === found) continue;
      throw invalidValue(
        `${option} must be ${formatValue(found)}, because global arena ${formatValue(this.name)} was opened with that, got ${formatValue(value)}`,
      );
    }
  }

  /** Returns 0 if there is no room. */
  #tryAllocate(bytes: number, stream: Stream): number {
    native().allocateSuperblocks(this.number, bytes, stream.handle);
    if (mailbox[0] === outOfMemoryStatus) return 0;
    check(`allocate ${bytes} bytes`);
    // The stream is now ordered after the events of earlier frees.
    stream.identity.outdateFences();
    return mailbox[1] as number;
  }

  /** @param before the answers so far */
  #ask(bytes: number, waitMilliseconds: number, left: number, before: Answers | undefined): Answers {
    const again = before?.request ?? 0;
    const silent = native().askForSuperblocks(this.number, bytes, waitMilliseconds, left, again);
    check('ask other workers for memory');
    const [, asked, freed, freedNow, hasRoom, request] = mailbox as unknown as [number, number, number, number, number, number];
    const freedBefore = before?.freedBefore ?? freed;
    return {
      asked: before !== undefined && again > 0 ? before.asked : asked,
      freedBefore,
      freedBytes: freedNow - freedBefore,
      hasRoom: hasRoom === 1,
      request,
      silent: [...silent],
    };
  }

  #outOfMemory(bytes: number, waitMilliseconds: number, answers: Answers | undefined): OutOfMemoryError {
    const name = `global arena ${formatValue(this.name)}`;
    const { usedBytes, largestFreeBytes, environments } = this.usage();
    const used = `of its ${formatBytes(this.arenaBytes)}, ${formatBytes(usedBytes)} are in use by ${count(environments, 'worker')}, ${formatBytes(this.liveBytes)} by this one`;
    return new OutOfMemoryError(
      `${name} is out of memory: ${formatBytes(bytes)} (${bytes} bytes) were asked for; ${used}, and the largest free range has ${formatBytes(largestFreeBytes)}${explained(answers, waitMilliseconds)}`,
      {
        requestedBytes: bytes,
        availableBytes: largestFreeBytes,
        limitBytes: this.arenaBytes,
        path: [name],
        ...(answers === undefined ? {} : { stages: [{ stage: 'other-workers', recoveredBytes: answers.freedBytes }] }),
      },
    );
  }
}

/** Whether other environments have asked this one for superblocks. */
export function isAsked(): boolean {
  native().isAskedForSuperblocks();
  return mailbox[1] === 1;
}

/**
 * Frees superblocks that other environments have asked for and that this one does not need. Never
 * throws.
 */
export function answerRequests(): void {
  for (;;) {
    native().takeArenaRequest();
    const [status, number, request] = mailbox as unknown as [number, number, number];
    if (status !== NativeStatus.success || number === 0) return;
    known.get(number)?.giveBack();
    native().answerArenaRequest(number, request);
  }
}

/** The bytes of an arena, rounded up to whole superblocks, but at most to a safe integer. */
function wholeSuperblocks(bytes: number, superblockBytes: number): number {
  return Math.min(alignUp(bytes, superblockBytes), 2 ** 53 - superblockBytes);
}

function explained(answers: Answers | undefined, waitMilliseconds: number): string {
  if (answers === undefined) return '';
  const { asked, freedBytes, silent } = answers;
  if (asked === 0) return '; no other worker has any of it';
  const threads =
    silent.length === 0 ? '' : ` (not: ${silent.map((thread) => (thread === 0 ? 'the main thread' : `worker ${thread}`)).join(', ')})`;
  return `; ${count(asked, 'other worker')} ${asked === 1 ? 'was' : 'were'} asked to return free memory, ${asked - silent.length} answered within ${waitMilliseconds} ms${threads}, and ${formatBytes(freedBytes)} were returned`;
}

function count(number: number, what: string): string {
  return `${number} ${what}${number === 1 ? '' : 's'}`;
}
