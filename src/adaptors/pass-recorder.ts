import { type EventObserver, observeEvents, unobserveEvents } from '../driver/event-observer.js';
import type { StreamIdentity } from '../driver/stream-identity.js';
import type { DevicePointer } from '../memory-resource.js';
import type { OrderedSequence } from '../plans/sequence.js';
import { type EventRecord, SequenceBuilder } from '../plans/sequence-builder.js';

/** Longer passes are not recorded: a program that begins one and never another must not fill the memory. */
const mostSteps = 2 ** 23;

/**
 * Records a pass: allocations, frees of what was allocated in it, and which streams the program
 * makes wait for each other. Waits that the fallback queues are left out: it may queue others, or
 * none, in the next pass.
 */
export class PassRecorder implements EventObserver {
  readonly #builder = new SequenceBuilder();
  readonly #live = new Map<DevicePointer, number>();
  /** By the number of the recording. */
  readonly #records = new Map<number, EventRecord>();
  #inFallback = 0;
  #steps = 0;

  constructor() {
    observeEvents(this);
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
    if (this.#isRecorded()) this.#live.set(pointer, this.#builder.allocate(bytes, identity));
  }

  freed(pointer: DevicePointer, identity: StreamIdentity): void {
    const number = this.#live.get(pointer);
    this.#live.delete(pointer);
    if (number !== undefined && this.#isRecorded()) this.#builder.free(number, identity);
  }

  eventRecorded(identity: StreamIdentity, version: number): void {
    if (this.#inFallback === 0 && this.#isRecorded()) this.#records.set(version, this.#builder.record(identity));
  }

  eventAwaited(identity: StreamIdentity, version: number): void {
    const record = this.#records.get(version);
    if (this.#inFallback === 0 && record !== undefined && this.#isRecorded()) this.#builder.wait(identity, record);
  }

  /** Ends the recording. Returns what was recorded, or why nothing can be planned from it. */
  end(): OrderedSequence | string {
    unobserveEvents(this);
    return this.#steps > mostSteps ? `the pass has more than ${mostSteps} operations and waits` : this.#builder.finish();
  }

  #isRecorded(): boolean {
    this.#steps++;
    return this.#steps <= mostSteps;
  }
}
