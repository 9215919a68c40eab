import { layersOf } from '../../adaptors/layers.js';
import { outOfMemoryThrough, PassThroughAdaptor } from '../../adaptors/pass-through/pass-through-adaptor.js';
import { couldNotLeave, makeRoomBelow, type RoomMade } from '../../adaptors/room-for-limits.js';
import { type CisternError, OutOfMemoryError } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignDown, alignUp } from '../../basics/units.js';
import { assertBytes, assertPointer } from '../../basics/validation.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { noteFree, servedPointer } from '../../ownership/served-memory.js';
import { defineAdaptor } from '../../resource-kind.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { none } from '../../suballocation/blocks.js';
import { type Account, type Charge, currentAccount, endCharge, formatHolders, holdersWithin, noteCharging, payerOf } from './account.js';

/**
 * Charges each allocation to the current {@link Account}, and credits it when the memory is freed.
 * Outside the scope of an account, nothing is charged.
 *
 * If the upstream runs out of memory, the error names the accounts that hold the most.
 *
 * Stream order and alignment are those of the upstream. Freed memory is credited immediately, even
 * if its stream still uses it. Memory that is freed directly at the upstream, past this adaptor,
 * stays charged.
 *
 * RMM has no counterpart.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new AccountingResourceAdaptor(pool);
 * setCurrentResource(resource);
 * const tenant = new Account({ name: 'tenant-a', limitBytes: 2 * GiB });
 * using stream = new Stream();
 * tenant.run(() => new DeviceBuffer(64 * MiB, { stream }).dispose());
 * console.log(formatBytes(tenant.peakBytes)); // 64 MiB
 * resetCurrentResource();
 * ```
 */
export class AccountingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name: string = 'AccountingResourceAdaptor';
  /** The number of the account that each live allocation is charged to. */
  readonly #charged = new AddressMap();

  /** @throws ArgumentTypeError, ArgumentRangeError for an invalid upstream or option. */
  constructor(upstream: MemoryResource, options: DeallocationEventsOption = {}) {
    super(upstream, options);
    noteCharging();
  }

  /** @internal The largest request that the current account, and those around it, leave room for. */
  roomBytes(): number {
    let room = Number.POSITIVE_INFINITY;
    for (let account = currentAccount(); account !== undefined; account = account.parent) {
      room = Math.min(room, (account.limitBytes ?? Number.POSITIVE_INFINITY) - account.liveBytes);
    }
    return room === Number.POSITIVE_INFINITY ? room : alignDown(Math.max(0, room), ALLOCATION_ALIGNMENT);
  }

  /**
   * Above a {@link SpillingResourceAdaptor}, idle {@link SpillableBuffer}s that a limit counts leave before it refuses.
   * @throws OutOfMemoryError, with `account`, `limitBytes`, `availableBytes` and `holders`, if the limit
   * of the current account, or of one around it, would be exceeded; also the upstream's error.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    assertBytes(bytes);
    const account = currentAccount();
    if (account === undefined || bytes === 0) return this.#allocateUncharged(bytes, stream, alignment);
    const chargedBytes = alignUp(bytes, ALLOCATION_ALIGNMENT);
    const charge = account.charge(chargedBytes);
    if (charge !== 'made') this.#answer(charge, account, bytes, chargedBytes, stream);
    try {
      // Not through `served` and `freed` (V8: inlining).
      const { upstream } = this;
      const pointer = servedPointer(upstream.allocate(bytes, stream, alignment), upstream, bytes, stream);
      // This memory was freed past this adaptor, which no longer knows its bytes.
      this.#charged.insert(pointer, account.confirm());
      return pointer;
    } catch (error) {
      throw this.#uncharged(error, account, chargedBytes);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    // Before the call: a host function that runs during it may be given the same memory again.
    const number = typeof pointer === 'number' ? this.#charged.take(pointer) : none;
    try {
      const { upstream } = this;
      noteFree(upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents), upstream);
    } catch (error) {
      throw this.#stillCharged(error, pointer, number);
    }
    if (number !== none) endCharge(number, alignUp(bytes, ALLOCATION_ALIGNMENT));
  }

  /**
   * The account that a live allocation of this adaptor is charged to. Use it to find out whose memory an address
   * is; the account's `labels` say what your program knows about it.
   * @returns `undefined` if no account is charged, or the allocation is not live
   */
  accountOf(pointer: DevicePointer): Account | undefined {
    assertPointer(pointer);
    const number = this.#charged.get(pointer);
    return number === none ? undefined : payerOf(number);
  }

  /** @internal The account that any layer of a resource charges for an allocation. */
  static accountThrough(resource: MemoryResource, pointer: DevicePointer): Account | undefined {
    for (const layer of layersOf(resource)) {
      const account = layer instanceof AccountingResourceAdaptor ? layer.accountOf(pointer) : undefined;
      if (account !== undefined) return account;
    }
    return undefined;
  }

  protected override passOn(error: unknown): unknown {
    if (!(error instanceof OutOfMemoryError) || error.holders.length > 0) return super.passOn(error);
    const holders = holdersWithin();
    if (holders.length === 0) return super.passOn(error);
    const { name } = this.constructor;
    return outOfMemoryThrough(name, error, error.requestedBytes, `${error.message}${formatHolders(holders)}`, error, holders);
  }

  // Rare errors are apart (V8: inlining).

  /** The error of an allocation that failed: its charge ends. */
  #uncharged(error: unknown, account: Account, chargedBytes: number): unknown {
    account.undo(chargedBytes);
    return this.passOn(error);
  }

  /** The error of a free that failed: its charge stays. */
  #stillCharged(error: unknown, pointer: DevicePointer, number: number): unknown {
    if (number !== none) this.#charged.insert(pointer, number);
    return error;
  }

  #allocateUncharged(bytes: number, stream: Stream, alignment: number | undefined): DevicePointer {
    try {
      return this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      throw this.passOn(error);
    }
  }

  /**
   * If a charge was refused, makes it after spillable buffers that the limit counts have left, or throws; then calls the
   * functions of the soft limits that it crossed.
   */
  #answer(first: 'crossed' | 'refused', account: Account, bytes: number, chargedBytes: number, stream: Stream): void {
    let charge: Charge = first;
    while (charge === 'refused') {
      const { kept, isGiven } = this.#spillFor(account, chargedBytes, stream);
      if (!isGiven) throw this.#refusal(account, bytes, chargedBytes, kept);
      charge = account.charge(chargedBytes);
    }
    try {
      account.notifySoftLimits(chargedBytes);
      this.assertUsable(stream);
    } catch (error) {
      account.undo(chargedBytes);
      throw error;
    }
  }

  /** Lets idle spillable buffers leave that are charged to the account whose limit refuses a charge, if that is enough. */
  #spillFor(account: Account, chargedBytes: number, stream: Stream): RoomMade {
    const { account: limited, missingBytes } = account.refusing(chargedBytes);
    const isCounted = (pointer: DevicePointer) => this.accountOf(pointer)?.isWithin(limited) === true;
    const made = makeRoomBelow(this.upstream, missingBytes, stream, isCounted);
    this.assertUsable(stream);
    return made;
  }

  #refusal(account: Account, bytes: number, chargedBytes: number, kept: CisternError | undefined): OutOfMemoryError {
    const { name } = this.constructor;
    const refusal = account.refusal(bytes, chargedBytes, name);
    return kept === undefined ? refusal : couldNotLeave(name, refusal, kept);
  }
}

/** `accounting` in a specification. */
export const accountingKind = defineAdaptor({
  name: 'accounting',
  role: 'pass-through',
  summary: 'charges allocations to the account in whose scope they are made',
  options: {},
  example: 'accounting(cuda)',
  create: ({ upstream, options }) => new AccountingResourceAdaptor(upstream, options),
});
