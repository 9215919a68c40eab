/**
 * How the memory of one resource sleeps and wakes.
 *
 *     awake ── begin ──► falling asleep ── fallAsleep ──► asleep ── beginWaking ──► waking ── finishWaking ──► awake
 *       ▲                      │ cancel                     ▲                         │ sleepOn
 *       └──────────────────────┘                            └─────────────────────────┘
 *
 * From `begin` on, the addresses count as asleep, so that cistern queues nothing more there. What is queued
 * already is waited for, first without blocking, and at last, for streams that this worker does not know,
 * on the host. Only then contents are read and pages unmapped. Frees are served in every state; one that
 * comes while contents are being copied waits for the copies.
 *
 * Contents are kept in pieces of pinned memory until everything is back, so a wake that fails loses nothing.
 */

import { setImmediate, setTimeout } from 'node:timers/promises';
import { CisternError } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, MiB } from '../../basics/units.js';
import { devicesUsing } from '../../driver/device.js';
import { endWriteGuard, guardWrites, type WriteGuard } from '../../driver/memory/guarded-addresses.js';
import { PlainMemory } from '../../driver/memory/plain-memory.js';
import { queueCopy } from '../../driver/memory/transfer.js';
import type { Extent, VirtualMemory } from '../../driver/memory/virtual-memory.js';
import { Stream } from '../../driver/streams/stream.js';
import type { ResourcesAbove } from '../../observing/resources-above.js';
import type { MemorySleep, SleepableMemory, SleepObserver } from '../../observing/sleepable.js';

/** Pinned memory. */
interface HostPiece {
  readonly host: number;
  readonly hostBytes: number;
}

/** Pinned memory for the next sleep. It still has the contents with which this memory woke; `undefined`: some of that was written or freed since. */
interface StagingPiece extends HostPiece {
  contentsOf: Extent | undefined;
}

/** Memory whose contents a piece on the host had when it woke. */
interface KnownExtent extends Extent {
  readonly piece: StagingPiece;
}

/** A piece of the memory, and where its contents are meanwhile. */
interface KeptPiece extends Extent, HostPiece {}

/** Pinning memory takes long, so the event loop gets a turn after so many bytes. */
const mostPieceBytes = 64 * MiB;

export class Sleeper implements MemorySleep {
  #phase: 'awake' | 'falling asleep' | 'asleep' | 'waking' = 'awake';
  /** Whether it was asleep when it last began to fall asleep: what was left mapped is unmapped then. */
  #wasAsleep = false;
  readonly #memory: VirtualMemory;
  readonly #above: ResourcesAbove<SleepObserver>;
  #kept: KeptPiece[] = [];
  /** Those that still have contents have them of different memory, in the order of its addresses. */
  #staging: StagingPiece[] = [];
  /** Of the last wake. */
  #known: KnownExtent[] = [];
  #guard: WriteGuard | undefined;
  #copiedBytes = 0;
  /** What both are pieces of. */
  readonly #pinned: PlainMemory;
  /** For copies, and for what goes back meanwhile: no stream of the program waits for it. */
  #ownStream: Stream | undefined;
  #isCopying = false;
  /** The resource is disposed. Its memory can still wake. */
  #isClosed = false;

  private constructor({ memory, above }: SleepableMemory) {
    this.#memory = memory;
    this.#above = above;
    this.#pinned = PlainMemory.of('pinned-host', memory.device);
  }

  /** The one of a memory; it is made at the first call. */
  static of(sleepable: SleepableMemory): Sleeper {
    sleepable.sleep ??= new Sleeper(sleepable);
    return sleepable.sleep as Sleeper;
  }

  get isAwake(): boolean {
    return this.#phase === 'awake';
  }

  get mappedBytes(): number {
    return this.#memory.mappedBytes;
  }

  /** The bytes whose contents are kept on the host. */
  get keptBytes(): number {
    return this.#kept.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Those of them that were copied when it fell asleep. */
  get copiedBytes(): number {
    return this.#copiedBytes;
  }

  /** @throws CisternError (`ERR_CISTERN_INVALID_STATE`) while the memory is on the way to another state. */
  assertSettled(operation: string): void {
    if (this.#phase === 'awake' || this.#phase === 'asleep') return;
    throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: it is ${this.#phase}; await the call before`);
  }

  /** From now on, uses of the memory are refused. */
  begin(): void {
    this.#wasAsleep = this.#phase === 'asleep';
    this.#phase = 'falling asleep';
    this.#memory.isAsleep = true;
    for (const resource of this.#above.fromTheTop()) resource.forgetLastStream();
  }

  /**
   * Waits for what is queued, makes the resources above give free memory back, and keeps the contents if asked to.
   * @param isUnchanged what is still on the host from the last sleep need not be copied
   */
  async prepare(keepsContents: boolean, isUnchanged: boolean): Promise<void> {
    if (this.#wasAsleep) return;
    this.#copiedBytes = 0;
    this.#freeKept();
    await this.#awaitDevices();
    await this.#unlessStalled(() => this.#memory.awaitBeforeSleep());
    for (const resource of this.#above.fromTheTop()) resource.trim(this.#stream);
    // What they have is older than what is now on the device.
    if (!(keepsContents && isUnchanged)) this.#changed(0, Number.POSITIVE_INFINITY);
    if (keepsContents) await this.#copying(() => this.#keepContents());
  }

  /** `prepare` or `fallAsleep` has failed, and nothing was unmapped: the memory is as it was before `begin`. */
  cancel(): void {
    this.#phase = this.#wasAsleep ? 'asleep' : 'awake';
    if (this.#wasAsleep) return;
    this.#memory.isAsleep = false;
    this.#guardContents();
    this.#tryRelease();
  }

  /** Gives the memory back to the device. What the driver refuses to unmap stays until the next call. */
  async fallAsleep(): Promise<void> {
    try {
      await this.#unlessStalled(() => this.#memory.unmap());
      this.#phase = 'asleep';
    } catch (error) {
      if (this.#memory.mappedBytes === this.#memory.liveBytes) this.cancel();
      else this.#phase = 'asleep';
      throw error;
    }
  }

  /** From now on, other calls for the memory are refused. */
  beginWaking(): void {
    this.#phase = 'waking';
  }

  /** Maps memory again, and fills it. If this throws, `sleepOn` must follow. */
  async wake(): Promise<void> {
    this.#memory.mapAgain();
    await this.#copying(() => {
      for (const { address, bytes, host } of this.#kept) {
        for (const part of this.#liveWithin(address, bytes))
          queueCopy(part.address, host + part.address - address, part.bytes, this.#stream);
      }
    });
  }

  /** A wake, of this memory or of another, has failed: all stays asleep. */
  async sleepOn(): Promise<void> {
    try {
      await this.#unlessStalled(() => this.#memory.unmap());
    } finally {
      this.#phase = 'asleep';
    }
  }

  /** Everything is back: the memory can be used, and of the host's only so much is kept for the next sleep. */
  finishWaking(stagingBytes: number): void {
    if (this.#phase === 'waking') {
      this.#phase = 'awake';
      this.#memory.isAsleep = false;
    }
    if (this.#phase !== 'awake') return;
    let stays = this.#staging.reduce((sum, { hostBytes }) => sum + hostBytes, 0);
    while (stays > stagingBytes) stays -= this.#freeLast(this.#staging);
    this.#kept = this.#kept.filter((piece) => {
      const fits = stays + piece.hostBytes <= stagingBytes;
      if (fits) {
        stays += piece.hostBytes;
        const contentsOf = this.#isLive(piece) ? { address: piece.address, bytes: piece.bytes } : undefined;
        this.#staging.push({ host: piece.host, hostBytes: piece.hostBytes, contentsOf });
      }
      return !fits;
    });
    this.#guardContents();
    this.#release();
  }

  /** Copies may be using the memory. */
  beforeFree(): void {
    if (this.#isCopying) this.#stream.synchronizeSync();
  }

  freed(pointer: number, bytes: number): void {
    this.#changed(pointer, bytes);
    if (this.#memory.liveBytes === 0) this.#tryRelease();
  }

  close(): void {
    this.#isClosed = true;
    this.#endGuard();
    this.#release();
  }

  /** Gives back what nothing needs any more, once no copy uses it. What the driver refuses to free is freed by a later call. */
  #release(): void {
    if (this.#isCopying) return;
    if (this.#memory.liveBytes === 0 || this.#phase === 'awake') this.#freeKept();
    if (!this.#isClosed) return;
    while (this.#staging.length > 0) this.#freeLast(this.#staging);
    this.#ownStream?.dispose();
    this.#ownStream = undefined;
  }

  #tryRelease(): void {
    try {
      this.#release();
    } catch {
      // The next call tries again.
    }
  }

  /** From now on, what is written through cistern is no longer known to be on the host. */
  #guardContents(): void {
    this.#endGuard();
    this.#known = this.#staging.flatMap((piece) => (piece.contentsOf === undefined ? [] : [{ ...piece.contentsOf, piece }]));
    const [first, last] = [this.#known[0], this.#known.at(-1)];
    if (first === undefined || last === undefined || this.#isClosed) return;
    const beforeWrite = (pointer: number, bytes: number) => this.#changed(pointer, bytes);
    this.#guard = { begin: first.address, end: last.address + last.bytes, beforeWrite };
    guardWrites(this.#guard);
  }

  #endGuard(): void {
    if (this.#guard !== undefined) endWriteGuard(this.#guard);
  }

  /** What the host has of this memory may no longer be what it contains. */
  #changed(pointer: number, bytes: number): void {
    let first = 0;
    for (let end = this.#known.length; first < end; ) {
      const middle = (first + end) >> 1;
      const { address, bytes: length } = this.#known[middle] as KnownExtent;
      if (address + length > pointer) end = middle;
      else first = middle + 1;
    }
    for (let i = first; i < this.#known.length; i++) {
      const { address, piece } = this.#known[i] as KnownExtent;
      if (address >= pointer + bytes) break;
      piece.contentsOf = undefined;
    }
  }

  get #stream(): Stream {
    this.#ownStream ??= new Stream({ device: this.#memory.device, nonBlocking: true });
    return this.#ownStream;
  }

  /** Lets the program go on while the devices work. */
  async #awaitDevices(): Promise<void> {
    await Promise.all(devicesUsing('device', this.#memory.device).map((device) => device.synchronize()));
  }

  /** A call returns false while a hold, or a host function of another worker, stalls a stream. */
  async #unlessStalled(call: () => boolean): Promise<void> {
    while (!call()) {
      await setTimeout(1);
      await this.#awaitDevices();
    }
  }

  async #copying(queue: () => void | Promise<void>): Promise<void> {
    const stream = this.#stream;
    this.#isCopying = true;
    try {
      await queue();
      await stream.synchronize();
    } catch (error) {
      try {
        stream.synchronizeSync();
      } catch {
        // The device is in error.
      }
      throw error;
    } finally {
      this.#isCopying = false;
      this.#tryRelease();
    }
  }

  async #keepContents(): Promise<void> {
    for (const { address, bytes } of this.#memory.liveExtents()) {
      for (let offset = 0; offset < bytes; offset += mostPieceBytes) {
        const piece = { address: address + offset, bytes: Math.min(mostPieceBytes, bytes - offset) };
        if (this.#liveWithin(piece.address, piece.bytes).length === 0) continue;
        const known = this.#takeKnown(piece);
        const { host, hostBytes } = known ?? this.#takeOnHost(piece.bytes);
        this.#kept.push({ ...piece, host, hostBytes });
        if (known !== undefined) continue;
        // Some of it may have been freed while the event loop had its turn, or just now by a host function.
        for (const part of this.#liveWithin(piece.address, piece.bytes)) {
          queueCopy(host + part.address - piece.address, part.address, part.bytes, this.#stream);
          this.#copiedBytes += part.bytes;
        }
        await setImmediate();
      }
    }
    // Now kept in other pieces, or freed.
    for (const piece of this.#staging) piece.contentsOf = undefined;
  }

  /** The piece that still has the contents of this memory. */
  #takeKnown({ address, bytes }: Extent): HostPiece | undefined {
    const place = this.#staging.findIndex(({ contentsOf }) => contentsOf?.address === address && contentsOf.bytes === bytes);
    return place < 0 ? undefined : this.#staging.splice(place, 1)[0];
  }

  /** Whether nothing of the memory is free. */
  #isLive({ address, bytes }: Extent): boolean {
    return this.#liveWithin(address, bytes).reduce((sum, part) => sum + part.bytes, 0) === bytes;
  }

  /** The smallest piece of an earlier sleep that fits, or a new one. */
  #takeOnHost(bytes: number): HostPiece {
    const fitting = this.#staging.filter(({ hostBytes }) => hostBytes >= bytes).sort((a, b) => a.hostBytes - b.hostBytes);
    const [smallest] = fitting;
    if (smallest === undefined) return { host: this.#pinned.allocate(bytes, ALLOCATION_ALIGNMENT), hostBytes: bytes };
    this.#staging.splice(this.#staging.indexOf(smallest), 1);
    return smallest;
  }

  #liveWithin(address: number, bytes: number): Extent[] {
    return this.#memory.liveExtents().flatMap((extent) => {
      const begin = Math.max(extent.address, address);
      const end = Math.min(extent.address + extent.bytes, address + bytes);
      return begin < end ? [{ address: begin, bytes: end - begin }] : [];
    });
  }

  #freeKept(): void {
    while (this.#kept.length > 0) this.#freeLast(this.#kept);
  }

  #freeLast(pieces: HostPiece[]): number {
    const { host, hostBytes } = pieces.at(-1) as HostPiece;
    this.#pinned.deallocate(host, hostBytes, this.#stream);
    pieces.pop();
    return hostBytes;
  }
}
