import { interpose, mailbox, type NativeBinding } from '../../src/driver/native.js';
import type { Stream } from '../../src/driver/streams/stream.js';
import { Device } from '../../src/index.js';

/**
 * A device in simulated time, so that what streams wait for each other can be measured without any noise: every stream runs its own
 * work beside all others, in order. Takes the driver's place until it is disposed. Times are in microseconds.
 */
export class TimedDevice implements Disposable {
  /** The host's time. */
  now = 0;
  /** How often a stream was made to wait for an event that was not complete. */
  waits = 0;
  /** When what is queued on a stream will have run. */
  readonly #ends = new Map<number, number>();
  readonly #events = new Map<number, number>();

  constructor() {
    Device.get();
    interpose((own) => this.#wrappers(own));
  }

  /** Queues work that takes so long, and takes the host `cost`. Returns when it will have run. */
  launch(stream: Stream, duration: number, cost: number): number {
    this.now += cost;
    const end = Math.max(this.now, this.#endOf(stream.handle)) + duration;
    this.#ends.set(stream.handle, end);
    return end;
  }

  /** When everything that is queued will have run. */
  get end(): number {
    return Math.max(this.now, ...this.#ends.values());
  }

  [Symbol.dispose](): void {
    interpose();
  }

  #endOf(stream: number): number {
    return this.#ends.get(stream) ?? 0;
  }

  #wrappers(_own: NativeBinding): Partial<NativeBinding> {
    const answer = (isDone: boolean) => {
      mailbox[0] = 0;
      mailbox[1] = isDone ? 1 : 0;
    };
    return {
      recordEvent: () => {
        this.#events.set(mailbox[0] as number, Math.max(this.now, this.#endOf(mailbox[1] as number)));
        mailbox[0] = 0;
      },
      waitEvent: () => {
        const [stream, event] = mailbox as unknown as [number, number];
        const end = this.#events.get(event) ?? 0;
        if (end > Math.max(this.now, this.#endOf(stream))) this.waits++;
        this.#ends.set(stream, Math.max(this.#endOf(stream), end));
        mailbox[0] = 0;
      },
      queryStream: () => answer(this.#endOf(mailbox[0] as number) <= this.now),
      queryEvent: () => answer((this.#events.get(mailbox[0] as number) ?? 0) <= this.now),
      synchronizeStream: (stream) => {
        this.now = Math.max(this.now, this.#endOf(stream));
        mailbox[0] = 0;
      },
    };
  }
}
