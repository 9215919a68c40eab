/**
 * The memory of a spillable buffer: on the device or, while that is short, on the host, or in a file.
 *
 *     leave    outward follows the last use ─► copy out ─► device memory is freed on outward
 *     return   memory on homeward, which follows outward ─► copy back ─► host memory is freed on homeward
 *     file     the lane's stream follows the host memory's last use ─► copy of a piece ─► write ─► … ─► host memory is freed on that stream
 *     read     device memory on the lane's stream ─► read of a piece ─► copy ─► … ; until then, the memory is in the file
 *     pin      its stream follows the last use; from then on, that stream has the last use
 *
 * `device.stream` is always a stream that is ordered after every use that has ended, so a move queues behind it, and sets it
 * to its own stream. So no move waits on the host, and a move that fails has only to leave the stream behind it.
 *
 * The way to a file takes several turns of the event loop, and is given up if the contents are needed meanwhile: they are on the host
 * until all is written. The way from a file takes several turns, too, and pins wait for it.
 *
 * Invariants: while nothing moves, exactly one of the three has the contents, unless it is empty or lost; pinned ⇒ it is the device, or
 * the contents are on the way there.
 * Outlives a buffer that is dropped: must not refer to it.
 */

import { CisternError, LifetimeError } from '../../basics/errors.js';
import { BufferMemory, disposed, type HasMemory, memoryOf } from '../../buffers/buffer-memory.js';
import { allocated } from '../../buffers/origin.js';
import { follow } from '../../buffers/transfers/ordered-copy.js';
import { freeSoonerOrLater, type OwnedMemory } from '../../collector/free-unreachable-buffers.js';
import { captureStatusOf } from '../../driver/graphs/capture.js';
import { isAsleepAt } from '../../driver/memory/guarded-addresses.js';
import { assertNotCaptured, assertStream, assertStreamOf, type Stream } from '../../driver/streams/stream.js';
import { atCaptureEnds, atCaptureJoins } from '../../driver/streams/stream-identity.js';
import type { DevicePointer, MemoryResource } from '../../memory-resource.js';
import { lastingStream, type StreamFor } from '../../ownership/bulk-frees.js';
import { innermostFrame, runInFrame, type ScopeFrame } from '../../scopes/resource-scope.js';
import { type Account, currentAccount } from '../accounts/account.js';
import type { AddressUses } from './address-uses.js';
import { followLasting, type Move, type Moves, moveTogether, type Order } from './moves.js';
import type { Lane } from './spill-files.js';
import type { Spillable } from './spill-members.js';
import type { SpillingResourceAdaptor } from './spilling-resource-adaptor.js';
import type { UnnamedFile } from './unnamed-file.js';

/** A use of the memory that has not ended. */
export interface PinState {
  readonly memory: SpillableMemory;
  readonly stream: Stream;
  /** The stream is captured: what uses the memory runs at launches, which the program orders. */
  readonly isCaptured: boolean;
  /** Until this has resolved, the contents are on their way from a file. */
  ready: Promise<void> | undefined;
  /** Notes its end, if it was made in the scope of a grant. */
  end: (() => void) | undefined;
}

/** The uses that have not ended, of all memory. */
const openPins = new Set<PinState>();

atCaptureJoins((identity) => {
  for (const pin of openPins) if (pin.stream.identity === identity) pin.memory.joinCapture(pin);
});

/** Memory whose last use is not ordered yet, as a pin ended while its stream was captured. */
const unsettled = new Set<SpillableMemory>();

atCaptureEnds(() => {
  for (const memory of unsettled) memory.settle();
});

export class SpillableMemory implements OwnedMemory, Spillable, Moves, HasMemory {
  readonly bytes: number;
  uses = 0;
  lastUse = 0;
  rank = 0;
  serial = 0;
  heapPlace = -1;
  readonly #adaptor: SpillingResourceAdaptor;
  /** Who made the buffer pays for its memory, whoever brings it back. */
  readonly #scope: ScopeFrame | undefined = innermostFrame();
  readonly #account: Account | undefined = currentAccount();
  readonly #pins = new Set<PinState>();
  /** Pins that have ended while their streams were captured. */
  #unsettled: PinState[] = [];
  #device: BufferMemory;
  #host: BufferMemory | undefined;
  #file: UnnamedFile | undefined;
  #isGoingToFile = false;
  /** The way back from the file. */
  #reading: Promise<void> | undefined;
  #endReason: string | undefined;
  #isMoving = false;
  readonly #graphs: AddressUses;

  /** @param graphs those that may have the address, by a captured copy of the first contents */
  constructor(device: BufferMemory, adaptor: SpillingResourceAdaptor, graphs: AddressUses) {
    this.#device = device;
    this.bytes = device.bytes;
    this.#adaptor = adaptor;
    this.#graphs = graphs;
    if (this.bytes > 0) adaptor.members.join(this);
  }

  /** The memory on the device. */
  get [memoryOf](): BufferMemory {
    return this.#device;
  }

  /** The resource that the memory is of now. */
  get resource(): MemoryResource {
    return (this.#host ?? this.#device).resource;
  }

  /** The stack that allocates and frees the memory on the device. */
  get stack(): MemoryResource {
    return this.#device.resource;
  }

  get label(): string | undefined {
    return this.#device.label;
  }

  get createdAt(): string | undefined {
    return this.#device.createdAt;
  }

  /** The address, wherever it is: 0 only if it is empty, in a file, or freed. */
  get pointer(): DevicePointer {
    return this.#device.pointer || (this.#host?.pointer ?? 0);
  }

  get devicePointer(): DevicePointer {
    return this.#device.pointer;
  }

  get isOnDevice(): boolean {
    return this.#host === undefined && this.#file === undefined && this.endReason === undefined;
  }

  get isOnHost(): boolean {
    return this.#host !== undefined && !this.#isGoingToFile && !this.#isMoving && this.endReason === undefined;
  }

  get isInFile(): boolean {
    return this.#file !== undefined;
  }

  get isPinned(): boolean {
    return this.#pins.size > 0;
  }

  get isPinnedOutsideGrants(): boolean {
    for (const { end } of this.#pins) if (end === undefined) return true;
    return false;
  }

  get endReason(): string | undefined {
    return this.#endReason ?? this.#device.endReason ?? this.#host?.endReason;
  }

  get canLeave(): boolean {
    if (!this.isIdle) return false;
    const { stream } = this.#device;
    return stream.isDisposed || captureStatusOf(stream.handle) === 'none';
  }

  get isIdle(): boolean {
    const { pointer, bytes } = this.#device;
    if (pointer === 0 || this.isPinned || this.#isMoving || this.#endReason !== undefined) return false;
    if (!this.#graphs.isEmpty || this.#unsettled.length > 0) return false;
    return !(this.#device.isUsedByOthers || isAsleepAt(pointer, bytes));
  }

  assertLive(operation: string): void {
    const { endReason } = this;
    if (endReason !== undefined) throw new LifetimeError('ERR_CISTERN_DISPOSED', `cannot ${operation}: ${endReason}`);
    this.#assertSettled(operation);
  }

  prepareToLeave(isTentative: boolean): Move | undefined {
    return this.#prepareToMove(() => {
      const { outward, host: resource } = this.#adaptor;
      const pointer = this.#adaptor.allocateHost(this.bytes, isTentative);
      if (pointer === 0) return undefined;
      const host = newMemory(resource, outward, this.#device);
      host.hold(pointer, this.bytes);
      return { moves: this, from: this.#device, to: host, bytes: this.bytes };
    });
  }

  end({ from, to }: Move): void {
    try {
      if (from === this.#device) this.#leave(to);
      else this.#arrive(to);
    } finally {
      this.#isMoving = false;
    }
  }

  abandon({ to }: Move): void {
    this.#isMoving = false;
    freeSoonerOrLater(to);
  }

  assertHasContents(): void {
    const { endReason } = this;
    if (endReason !== undefined) throw new LifetimeError('ERR_CISTERN_DISPOSED', `cannot move a buffer: ${endReason}`);
  }

  #leave(host: BufferMemory): void {
    const device = this.#device;
    // From here on: whoever finds the buffer unreachable meanwhile must see that it has memory.
    this.#host = host;
    try {
      device.stream = host.stream;
      device.freeNow();
    } catch (error) {
      // A resource that lost the memory cannot give it back, but the contents are here.
      if (device.pointer !== 0 || device.endReason !== undefined) {
        this.#host = undefined;
        freeSoonerOrLater(host);
      }
      throw error;
    }
    this.#account?.noteSpill(this.bytes);
  }

  #arrive(device: BufferMemory): void {
    const host = this.#host as BufferMemory;
    this.#device = device;
    this.#host = undefined;
    host.stream = device.stream;
    freeSoonerOrLater(host);
    this.#adaptor.members.cameBack(this);
  }

  async goToFile(lane: Lane): Promise<boolean> {
    const host = this.#host;
    if (host === undefined || !this.isOnHost) return false;
    this.#isGoingToFile = true;
    // Nothing moves between the steps of the lane.
    const isStillThere = () => this.#host === host && host.pointer !== 0;
    try {
      const file = await lane.inTurn(() =>
        lane.write(host.pointer, this.bytes, () => {
          if (!isStillThere()) return false;
          follow(lane.stream, lastingStream(host.stream));
          // Whoever frees the memory, or brings the contents back, comes after the copy.
          host.stream = lane.stream;
          return true;
        }),
      );
      if (file === undefined) return false;
      if (!isStillThere()) {
        await file.close();
        return false;
      }
      this.#file = file;
      this.#host = undefined;
      freeSoonerOrLater(host);
      return true;
    } finally {
      this.#isGoingToFile = false;
    }
  }

  /**
   * Brings back those that are on the host, or none, and begins to read those that are in files. Does not count as a use.
   * @throws OutOfMemoryError and others; those before a copy that the driver refuses have come back even so.
   */
  static returnAll(memories: readonly SpillableMemory[]): void {
    const moves: Move[] = [];
    // In this order, the neighbours of the host are likely to be neighbours on the device, too.
    const sorted = memories.toSorted((a, b) => a.pointer - b.pointer);
    try {
      for (const memory of sorted) {
        const move = memory.#prepareToReturn();
        if (move !== undefined) moves.push(move);
      }
    } catch (error) {
      for (const move of moves) move.moves.abandon(move);
      throw error;
    }
    moveTogether(moves);
  }

  #prepareToReturn(): Move | undefined {
    if (this.#file !== undefined && this.#reading === undefined) this.#beginToRead(this.#file);
    const host = this.#host;
    // It may be in the list twice.
    if (host === undefined || this.#isMoving) return undefined;
    return this.#prepareToMove(() => {
      const device = runInFrame(this.#scope, () => this.#newDeviceMemory(this.#adaptor.homeward));
      return { moves: this, from: host, to: device, bytes: this.bytes };
    });
  }

  /** From here on it moves, if this returns a move: until that has ended, or is abandoned. */
  #prepareToMove(prepare: () => Move | undefined): Move | undefined {
    this.#isMoving = true;
    let move: Move | undefined;
    try {
      move = prepare();
    } finally {
      this.#isMoving = move !== undefined;
    }
    return move;
  }

  #beginToRead(file: UnnamedFile): void {
    const lane = this.#adaptor.fromFiles;
    const device = this.#moving(() => runInFrame(this.#scope, () => this.#newDeviceMemory(lane.stream)));
    const isWanted = () => this.#file === file && device.pointer !== 0;
    const read = async () => {
      try {
        const isComplete = await lane.inTurn(() => lane.read(file, device.pointer, this.bytes, isWanted));
        if (!isComplete || !isWanted()) {
          this.#adaptor.assertMoves();
          throw new LifetimeError('ERR_CISTERN_DISPOSED', `cannot bring a buffer back: ${device.endReason ?? disposed}`);
        }
        this.#device = device;
        this.#file = undefined;
        void file.close();
        this.#adaptor.members.cameBack(this);
      } catch (error) {
        freeSoonerOrLater(device);
        throw error;
      } finally {
        this.#reading = undefined;
      }
      this.#adaptor.isIdle();
    };
    this.#reading = read();
    // Who pins it is told.
    this.#reading.catch(() => {});
  }

  prefetch(): void {
    this.assertLive('prefetch a buffer');
    SpillableMemory.returnAll([this]);
    this.noteUse();
  }

  /** Begins a use on a stream, and brings the memory back if need be. */
  pin(stream: Stream): PinState {
    const state = this.beginPin(stream);
    try {
      SpillableMemory.returnAll([this]);
      this.finishPin(state);
    } catch (error) {
      this.cancelPin(state);
      throw error;
    }
    return state;
  }

  /** The memory stays from here on. `finishPin` must follow once it is on the device, or on the way there, or `cancelPin`. */
  beginPin(stream: Stream): PinState {
    const operation = 'pin a buffer';
    this.assertLive(operation);
    assertStream(stream, operation);
    if (this.stack.memoryKind === 'device') assertStreamOf(stream, this.stack.device);
    const state: PinState = {
      memory: this,
      stream,
      isCaptured: captureStatusOf(stream.handle) !== 'none',
      ready: undefined,
      end: undefined,
    };
    if (state.isCaptured && !this.isOnDevice) {
      const where = this.#file === undefined ? 'on the host' : 'in a file';
      throw new CisternError(
        'ERR_CISTERN_CAPTURING',
        `cannot ${operation}: it is ${where}, and cannot come back in a capture; pin it before`,
      );
    }
    state.end = this.#adaptor.pinHolds.begin();
    this.#pins.add(state);
    openPins.add(state);
    return state;
  }

  finishPin(state: PinState, order: Order = followLasting): void {
    if (state.isCaptured) this.noteCapture(state);
    if (this.#reading !== undefined) {
      state.ready = this.#reading.then(() => {
        if (this.#pins.has(state)) this.#follow(state, followLasting);
      });
      // Nobody may wait for a pin that is undone.
      state.ready.catch(() => {});
    } else if (!state.isCaptured) this.#follow(state, order);
  }

  /** Nobody has used it. */
  cancelPin(state: PinState): void {
    this.#removePin(state);
  }

  #removePin(state: PinState): void {
    if (this.#pins.delete(state)) state.end?.();
    openPins.delete(state);
    if (!this.isPinned) this.#adaptor.members.mayLeave(this);
  }

  /**
   * Whoever has the pin may use the address now, perhaps in a capture: the memory then stays as long as the graph exists.
   * @throws DriverError if the driver does not tell
   */
  noteCapture({ stream }: PinState): void {
    this.#graphs.note(stream);
  }

  /** The stream of a pin, whose address somebody may have, is captured from now on. If the driver does not tell more, the memory stays for good. */
  joinCapture({ stream }: PinState): void {
    this.#graphs.noteUser(stream);
  }

  /** For the policy: a call that pins has succeeded. */
  noteUse(): void {
    if (this.bytes > 0) this.#adaptor.members.used(this);
  }

  /** Orders the stream of a pin after every use so far, and whatever uses the memory next after it. */
  use(state: PinState, order: Order = followLasting): BufferMemory {
    const device = this.#device;
    if (state.isCaptured) {
      throw new CisternError('ERR_CISTERN_CAPTURING', 'cannot use a pin in a capture by its methods; capture copies to and from its ptr');
    }
    this.noteCapture(state);
    if (device.stream.identity !== state.stream.identity || device.stream.isDisposed) {
      order(state.stream, device.stream);
      device.stream = state.stream;
    }
    return device;
  }

  /** Orders a new pin after what has been queued for the others, too. */
  #follow(state: PinState, order: Order): void {
    this.use(state, order);
    for (const { stream, isCaptured } of [...this.#pins, ...this.#unsettled]) {
      if (!isCaptured && stream.identity !== state.stream.identity) order(state.stream, stream);
    }
  }

  /** Ends a use. If that is refused, it goes on. */
  unpin(state: PinState): void {
    if (!this.#pins.has(state)) return;
    this.#settle(state);
    this.#removePin(state);
    if (!this.isPinned) this.settle();
  }

  hasPin(state: PinState): boolean {
    return this.#pins.has(state);
  }

  dispose(): void {
    if (this.#endReason !== undefined) return;
    this.#assertSettled('dispose a buffer');
    for (const state of this.#pins) this.#settle(state);
    this.#settleAll();
    this.#endReason = this.endReason ?? disposed;
    try {
      this.#free((memory) => memory.freeNow());
    } finally {
      if (this.pointer !== 0) this.#endReason = undefined;
      else for (const state of this.#pins) this.#removePin(state);
    }
  }

  /** The buffer is gone. */
  free(streamFor?: StreamFor): void {
    // What is in a file has no address, by which it would be kept for another try, and its way back ends by itself.
    if (this.#file === undefined) this.#assertSettled('free a buffer');
    this.#settleAll();
    this.#free((memory) => memory.free(streamFor));
  }

  /** @throws CisternError (`ERR_CISTERN_INVALID_STATE`) in foreign code that runs while it moves. */
  #assertSettled(operation: string): void {
    if (this.#isMoving) throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: its contents are being moved`);
  }

  #free(free: (memory: BufferMemory) => void): void {
    free(this.#device);
    if (this.#host !== undefined) free(this.#host);
    // A read that goes on is not wanted any more.
    void this.#file?.close();
    this.#file = undefined;
    this.#adaptor.remove(this);
  }

  /** The last use of the memory is ordered after the use of a pin. */
  #settle(state: PinState): void {
    const { stream, isCaptured } = state;
    const device = this.#device;
    if (device.pointer === 0 || isCaptured) return;
    const isSame = device.stream.identity === stream.identity && !stream.isDisposed;
    if (!stream.isDisposed && captureStatusOf(stream.handle) !== 'none') {
      this.#graphs.note(stream);
      if (!isSame) this.#unsettled.push(state);
      if (!isSame) unsettled.add(this);
      return;
    }
    if (isSame && stream.identity.announcesEnd) return;
    // The owner of a foreign stream may end it before the memory is used again.
    const next = isSame && this.#adaptor.isLive ? this.#adaptor.homeward : lastingStream(device.stream);
    follow(next, lastingStream(stream));
    device.stream = next;
  }

  /** Orders the last use of the memory after pins that ended while their streams were captured. Does not throw. */
  settle(): void {
    try {
      this.#settleAll();
    } catch {
      // The next capture or pin that ends tries again.
    }
    if (this.#unsettled.length === 0) this.#adaptor.isIdle();
  }

  /** @throws CisternError (`ERR_CISTERN_CAPTURING`) while one is captured. */
  #settleAll(): void {
    for (const state of this.#unsettled) {
      if (!state.stream.isDisposed) assertNotCaptured(state.stream, 'order the last use of a buffer');
      this.#settle(state);
      this.#unsettled = this.#unsettled.filter((each) => each !== state);
    }
    unsettled.delete(this);
  }

  #moving<T>(move: () => T): T {
    this.#isMoving = true;
    try {
      return move();
    } finally {
      this.#isMoving = false;
    }
  }

  #newDeviceMemory(stream: Stream): BufferMemory {
    const memory = newMemory(this.stack, stream, this.#device);
    memory.allocateAtOnce(this.bytes);
    memory.byteLength = this.bytes;
    return memory;
  }
}

function newMemory(resource: MemoryResource, stream: Stream, { alignment, label, createdAt }: BufferMemory): BufferMemory {
  return new BufferMemory(allocated, resource, stream, alignment, label, createdAt);
}
