/**
 * Files for contents that even the host has no memory for, and how they get there and back.
 *
 *     host memory ── copy ──► staging ── write ──► file        one lane for what leaves the host,
 *     device memory ◄── copy ── staging ◄── read ── file       and one for what comes back
 *
 * Each lane has a piece of pinned memory of its own, a stream, and one transfer at a time: memory for staging is bounded, and neither
 * direction waits for the other. Reads and writes run on libuv's threads; nobody waits on the host for a copy.
 */
import { mkdirSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { CisternError, formatValue, reasonOf } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, formatBytes, MiB } from '../../basics/units.js';
import type { Device } from '../../driver/device.js';
import { endView, viewFromHost } from '../../driver/memory/host-view.js';
import { PlainMemory } from '../../driver/memory/plain-memory.js';
import { copy } from '../../driver/memory/transfer.js';
import { Stream } from '../../driver/streams/stream.js';
import type { DevicePointer } from '../../memory-resource.js';
import { UnnamedFile } from './unnamed-file.js';

/** How often freeing is tried. */
const mostAttempts = 3;

/** How much is staged at a time. */
const pieceBytes = 4 * MiB;

function fileError(operation: string, error: unknown): CisternError {
  return error instanceof CisternError
    ? error
    : new CisternError('ERR_CISTERN_SPILL_FILE', `cannot ${operation}: ${reasonOf(error)}`, { cause: error });
}

/** One transfer after the other, through a piece of staging memory. */
class Lane {
  readonly #memory: PlainMemory;
  readonly #folder: string;
  readonly stream: Stream;
  #pointer: DevicePointer = 0;
  #view: ArrayBuffer = new ArrayBuffer(0);
  /** The transfer that was begun last; `undefined` once none goes on. */
  #last: Promise<void> | undefined;
  #isEnded = false;

  constructor(device: Device, folder: string) {
    // Not of the adaptor's host resource, which may be disposed while a transfer goes on.
    this.#memory = PlainMemory.of('pinned-host', device);
    this.#folder = folder;
    this.stream = new Stream({ device, nonBlocking: true });
    try {
      this.#pointer = this.#memory.allocate(pieceBytes, ALLOCATION_ALIGNMENT);
      this.#view = viewFromHost(this.#pointer, pieceBytes);
    } catch (error) {
      this.abandon();
      throw error;
    }
  }

  /** Does something after all that was begun before. */
  inTurn<T>(transfer: () => Promise<T>): Promise<T> {
    const result = this.#last === undefined ? transfer() : this.#last.then(transfer);
    const last: Promise<void> = result.then(
      () => this.#hasEnded(last),
      () => this.#hasEnded(last),
    );
    this.#last = last;
    return result;
  }

  /**
   * Writes memory to a new file, as long as that is wanted.
   * @param beforeCopy orders the stream after the memory's last use; false: it is not wanted any more
   * @returns `undefined` if it was not wanted to the end
   */
  async write(pointer: DevicePointer, bytes: number, beforeCopy: () => boolean): Promise<UnnamedFile | undefined> {
    let file: UnnamedFile | undefined;
    try {
      file = new UnnamedFile(this.#folder, 'cistern-spill');
      for (let offset = 0; offset < bytes; offset += pieceBytes) {
        const piece = Math.min(pieceBytes, bytes - offset);
        if (this.#isEnded || !beforeCopy()) {
          await file.close();
          return undefined;
        }
        copy(this.#pointer, pointer + offset, piece, this.stream);
        await this.stream.synchronize();
        await file.write(new Uint8Array(this.#view, 0, piece), offset);
      }
      return file;
    } catch (error) {
      await file?.close();
      throw fileError(`write ${formatBytes(bytes)} to a file in ${formatValue(this.#folder)}`, error);
    }
  }

  /**
   * Reads a file into memory, as long as that is wanted.
   * @returns whether it was wanted to the end
   */
  async read(file: UnnamedFile, pointer: DevicePointer, bytes: number, isWanted: () => boolean): Promise<boolean> {
    try {
      for (let offset = 0; offset < bytes; offset += pieceBytes) {
        const piece = Math.min(pieceBytes, bytes - offset);
        if (!isWanted()) return false;
        await file.read(new Uint8Array(this.#view, 0, piece), offset);
        if (this.#isEnded || !isWanted()) return false;
        copy(pointer + offset, this.#pointer, piece, this.stream);
        await this.stream.synchronize();
      }
      return true;
    } catch (error) {
      throw fileError(`read ${formatBytes(bytes)} back from a file`, error);
    }
  }

  /** No transfer goes on. The staging memory is freed once none uses it. */
  end(): void {
    this.#isEnded = true;
    if (this.#last === undefined) this.#free();
  }

  /** Frees everything. Nobody is told of a failure: the driver may refuse for the moment. */
  abandon(): void {
    void this.#freeSoonerOrLater();
  }

  #hasEnded(transfer: Promise<void>): void {
    if (this.#last !== transfer) return;
    this.#last = undefined;
    if (this.#isEnded) this.abandon();
  }

  async #freeSoonerOrLater(): Promise<void> {
    for (let attempt = 1; ; attempt++) {
      try {
        this.#free();
        return;
      } catch (error) {
        if (attempt === mostAttempts) {
          process.emitWarning(`memory to stage files could not be freed: ${reasonOf(error)}`, { code: 'CISTERN_SPILL_FILE' });
          return;
        }
        await nextTurn();
      }
    }
  }

  /** Can be called again after it has thrown. */
  #free(): void {
    endView(this.#view);
    if (this.#pointer !== 0) this.#memory.deallocate(this.#pointer, pieceBytes, this.stream);
    this.#pointer = 0;
    this.stream.dispose();
  }
}

/** The lanes to and from the files of an adaptor. */
export class SpillFiles {
  /** To files. */
  readonly outward: Lane;
  /** From files. */
  readonly homeward: Lane;

  /**
   * @throws CisternError (`ERR_CISTERN_SPILL_FILE`) if the folder neither exists nor can be made; OutOfMemoryError if the host has no
   * memory for staging; UnsupportedError if the runtime allows no array over it
   */
  constructor(folder: string, device: Device) {
    try {
      mkdirSync(folder, { recursive: true });
    } catch (error) {
      throw fileError(`make the folder ${formatValue(folder)}`, error);
    }
    this.outward = new Lane(device, folder);
    try {
      this.homeward = new Lane(device, folder);
    } catch (error) {
      this.outward.abandon();
      throw error;
    }
  }

  end(): void {
    this.outward.end();
    this.homeward.end();
  }
}

export type { Lane };
