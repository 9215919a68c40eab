/**
 * Everything that a resource does, as a sequence: the addresses it gives, its calls of the upstream, and the
 * driver's calls for events and waits. Nothing in it depends on time or on addresses of the machine, so two
 * versions of the same resource can be compared call by call.
 */
import { createHash } from 'node:crypto';
import { interpose, mailbox, type NativeBinding } from '../../src/driver/native.js';
import {
  Device,
  type DevicePointer,
  type GrowingMemoryResource,
  type MemoryResource,
  OutOfMemoryError,
  type Stream,
} from '../../src/index.js';

/** Numbers from 0 to 2^32 - 1, the same for the same seed. */
export function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
    return (mixed ^ (mixed >>> 15)) >>> 0;
  };
}

/** Takes the driver's place until it is disposed: streams and events answer by chance, by a seed. */
export class LoggedCalls implements Disposable {
  /** How often each kind of call came. */
  readonly counts: Record<string, number> = {};
  readonly #hash = createHash('sha256');
  /** The lines themselves, if asked for. */
  readonly lines: string[] | undefined;
  #pending: string[] = [];
  readonly #streams = new Map<number, number>();
  readonly #events = new Map<number, number>();
  #eventCount = 0;

  /** @param idleShare of 256 queries, how many answer that the work has run */
  constructor(seed: number, idleShare: number, keepsLines = false) {
    if (keepsLines) this.lines = [];
    Device.get();
    const random = randomNumbers(seed);
    interpose((own) => this.#wrappers(own, () => (random() & 255) < idleShare));
  }

  /** Adds a line. */
  add(kind: string, ...values: readonly (number | string)[]): void {
    this.counts[kind] = (this.counts[kind] ?? 0) + 1;
    const line = `${kind} ${values.join(' ')}`;
    this.lines?.push(line);
    this.#pending.push(line);
    if (this.#pending.length >= 1024) this.#flush();
  }

  /** Names a stream by a number that does not change from run to run. */
  name(stream: Stream, number: number): void {
    this.#streams.set(stream.handle, number);
  }

  /** Ends the sequence, and returns its digest. */
  digest(): string {
    this.#flush();
    return this.#hash.digest('hex').slice(0, 16);
  }

  [Symbol.dispose](): void {
    interpose();
  }

  #flush(): void {
    if (this.#pending.length > 0) this.#hash.update(`${this.#pending.join('\n')}\n`);
    this.#pending = [];
  }

  #wrappers(own: NativeBinding, isIdle: () => boolean): Partial<NativeBinding> {
    const stream = (handle: number) => this.#streams.get(handle) ?? 'other';
    const event = (handle: number) => this.#events.get(handle) ?? 'other';
    const answer = (kind: string, name: number | string) => {
      const idle = isIdle();
      this.add(kind, name, idle ? 1 : 0);
      mailbox[0] = 0;
      mailbox[1] = idle ? 1 : 0;
    };
    return {
      createEvent: (device, timing) => {
        own.createEvent(device, timing);
        this.#events.set(mailbox[1] as number, ++this.#eventCount);
        this.add('create event', this.#eventCount);
      },
      recordEvent: () => {
        this.add('record', event(mailbox[0] as number), stream(mailbox[1] as number));
        own.recordEvent();
      },
      waitEvent: () => {
        this.add('wait', stream(mailbox[0] as number), event(mailbox[1] as number));
        own.waitEvent();
      },
      queryStream: () => answer('query stream', stream(mailbox[0] as number)),
      queryEvent: () => answer('query event', event(mailbox[0] as number)),
      synchronizeStream: (handle) => {
        this.add('synchronize', stream(handle));
        own.synchronizeStream(handle);
      },
      synchronizeDevice: (device) => {
        this.add('synchronize device', device);
        own.synchronizeDevice(device);
      },
    };
  }
}

/** An upstream that has addresses, but no memory: those that were given back are handed out again, lowest first. */
export class LoggedUpstream implements MemoryResource {
  readonly memoryKind = 'device';
  readonly device = Device.get();
  /** Called in the middle of a call, as a host function is. */
  interruption: (() => void) | undefined;
  readonly #log: LoggedCalls;
  readonly #name: string;
  readonly #limitBytes: number;
  #usedBytes = 0;
  /** Free ranges in address order; the last one has no end. */
  readonly #free: { start: number; end: number }[];

  constructor(log: LoggedCalls, name: string, limitBytes: number, start = 2 ** 44) {
    this.#log = log;
    this.#name = name;
    this.#limitBytes = limitBytes;
    this.#free = [{ start, end: Number.POSITIVE_INFINITY }];
  }

  allocate(bytes: number, stream: Stream, alignment = 256): DevicePointer {
    if (bytes > this.#limitBytes - this.#usedBytes) {
      this.#log.add(`${this.#name} refuses`, bytes);
      throw new OutOfMemoryError('no more', { requestedBytes: bytes, limitBytes: this.#limitBytes, path: [this.#name] });
    }
    const fits = ({ start, end }: { start: number; end: number }) => Math.ceil(start / alignment) * alignment + bytes <= end;
    const place = this.#free.findIndex(fits);
    const range = this.#free[place] as { start: number; end: number };
    const pointer = Math.ceil(range.start / alignment) * alignment;
    const pieces = [
      { start: range.start, end: pointer },
      { start: pointer + bytes, end: range.end },
    ];
    this.#free.splice(place, 1, ...pieces.filter(({ start, end }) => start < end));
    this.#usedBytes += bytes;
    this.#log.add(`${this.#name} serves`, bytes, pointer, stream.isDisposed ? 'ended' : 'live');
    this.#interrupt();
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number): void {
    this.#log.add(`${this.#name} takes back`, pointer, bytes);
    this.#usedBytes -= bytes;
    const place = this.#free.findIndex(({ start }) => start > pointer);
    this.#free.splice(place, 0, { start: pointer, end: pointer + bytes });
    for (let i = Math.max(place - 1, 0); i + 1 < this.#free.length && i <= place; ) {
      const [range, next] = [this.#free[i], this.#free[i + 1]] as [{ end: number }, { start: number; end: number }];
      if (range.end === next.start) {
        range.end = next.end;
        this.#free.splice(i + 1, 1);
      } else i++;
    }
    this.#interrupt();
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {}

  #interrupt(): void {
    const run = this.interruption;
    this.interruption = undefined;
    run?.();
  }
}

/** The same, growing in place in pages of 64 KiB. */
export class LoggedGrowingUpstream extends LoggedUpstream implements GrowingMemoryResource {
  readonly granularityBytes = 65536;
  readonly reservedBytes = 0;
  readonly peakReservedBytes = 0;

  resetPeakReservedBytes(): void {}

  override allocate(bytes: number, stream: Stream, alignment = 65536): DevicePointer {
    return super.allocate(bytes, stream, Math.max(alignment, 65536));
  }
}
