import type { StreamIdentity } from '../driver/streams/stream-identity.js';
import { type EventObserver, observeEvents, unobserveEvents } from '../driver/streams/stream-identity.js';
import type { DevicePointer } from '../memory-resource.js';
import { AddressMap } from '../suballocation/address-map.js';
import { none } from '../suballocation/blocks.js';
import type { OrderedSequence } from './sequence.js';
import { type EventRecord, SequenceBuilder } from './sequence-builder.js';

/**
 * Longer passes are not recorded, because a program that begins one and never another must not fill the
 * memory.
 */
const mostSteps = 2 ** 20;
/** The most waits to record, because planning takes time for each. */
const waitsPerOperation = 4;
const spareWaits = 1024;

/** Ends the recordings of owners that were collected within a pass. A `WeakRef` would be kept by each event. */
const abandoned = new FinalizationRegistry<PassRecorder>(unobserveEvents);

/**
 * Records a pass: its allocations, their frees, and the waits between streams that the program
 * makes. Waits that the fallback queues are left out, because it may queue others, or none, in the
 * next pass.
 */
export class PassRecorder implements EventObserver {
  /** `undefined` once the pass is too long. */
  #builder: SequenceBuilder | undefined = new SequenceBuilder();
  #live = new AddressMap();
  /** By the number of the recording. */
  readonly #records = new Map<number, EventRecord>();
  #inFallback = 0;
  #steps = 0;

  /** The recording ends by itself if its owner is collected. */
  constructor(owner: object) {
    observeEvents(this);
    abandoned.register(owner, this, this);
  }

  /** Calls the fallback. */
  passOn<T>(call: () => T): T {
    this.#inFallback++;
    try {
      return call();
    } finally {
      this.#inFallback--;
    }
  }

  allocated(pointer: DevicePointer, bytes: number, identity: StreamIdentity): void {
    if (this.#builder === undefined) return;
    this.#live.insert(pointer, this.#builder.allocate(bytes, identity));
    this.#count();
  }

  freed(pointer: DevicePointer, identity: StreamIdentity): void {
    const number = typeof pointer === 'number' ? this.#live.take(pointer) : none;
    if (number === none) return;
    this.#builder?.free(number, identity);
    this.#count();
  }

  eventRecorded(identity: StreamIdentity, version: number): void {
    const record = this.#inFallback === 0 ? this.#builder?.record(identity) : undefined;
    if (record === undefined) return;
    this.#records.set(version, record);
    this.#count();
  }

  eventAwaited(identity: StreamIdentity, version: number): void {
    const record = this.#inFallback === 0 ? this.#records.get(version) : undefined;
    const builder = this.#builder;
    if (record === undefined || builder === undefined) return;
    if (builder.waitCount >= waitsPerOperation * builder.operationCount + spareWaits) return;
    if (builder.wait(identity, record)) this.#count();
  }

  /** Ends the recording. Returns the recorded sequence, or why it cannot be planned. */
  end(): OrderedSequence | string {
    abandoned.unregister(this);
    unobserveEvents(this);
    return this.#builder?.finish() ?? `the pass has more than ${mostSteps} operations and events`;
  }

  #count(): void {
    if (++this.#steps <= mostSteps) return;
    unobserveEvents(this);
    this.#builder = undefined;
    this.#live = new AddressMap();
    this.#records.clear();
  }
}
