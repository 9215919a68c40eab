import { formatValue, InvalidLogError } from '../errors.js';
import type { AllocationLog } from './allocation-log.js';
import { AllocationLogBuilder } from './allocation-log-builder.js';
import { nearestLayer } from './layers.js';
import type { RecordedRun, RecordingDamage } from './recorded-run.js';
import type { RecordedEvents } from './recorded-run-builder.js';
import { RecordKind } from './recording/recording-format.js';
import { streamHandle } from './stream-handle.js';

/** Makes an {@link AllocationLog} out of a layer of a recording. Which layer that is may not be known before the end. */
export class LayerLogs implements RecordedEvents {
  readonly #source: string;
  /** The name of the layer, or `undefined` for the one nearest to the program. */
  readonly #wanted: string | undefined;
  readonly #names: Pick<RecordedRun, 'layers' | 'streams' | 'threads'>;
  readonly #builders: (AllocationLogBuilder | undefined)[] = [];
  /** What is wrong with a layer. It matters only if that is the one. */
  readonly #faults: (string | undefined)[] = [];
  readonly #threads: number[] = [];
  readonly #streams: number[] = [];
  #eventCount = 0;

  constructor(source: string, wanted: string | undefined, names: Pick<RecordedRun, 'layers' | 'streams' | 'threads'>) {
    this.#source = source;
    this.#wanted = wanted;
    this.#names = names;
  }

  get eventCount(): number {
    return this.#eventCount;
  }

  append(
    kind: RecordKind,
    layer: number,
    stream: number,
    thread: number,
    _phase: number,
    _stack: number,
    _time: number,
    first: number,
    second: number,
  ): void {
    this.#eventCount++;
    if (kind > RecordKind.failure) return;
    const builder = this.#builders[layer] ?? this.#newBuilder(layer);
    if (builder === undefined) return;
    const threadNumber = this.#threads[thread] ?? this.#threadNumber(thread);
    const handle = this.#streams[stream] ?? this.#streamHandle(stream);
    let fault: string | undefined;
    if (kind === RecordKind.failure) builder.fail();
    else if (kind === RecordKind.allocate) fault = builder.allocate(threadNumber, first, second, handle);
    else fault = builder.free(threadNumber, first, second, handle);
    if (fault !== undefined && this.#faults[layer] === undefined) this.#faults[layer] = `event ${this.#eventCount - 1} ${fault}`;
  }

  /**
   * The log of the layer.
   * @throws InvalidLogError where there is no such layer, something is wrong with it, or the recording is damaged and does not merely end early.
   */
  finish(damage: RecordingDamage | undefined): AllocationLog {
    if (damage !== undefined && !damage.isTruncation) {
      throw new InvalidLogError(this.#source, undefined, `is damaged at byte ${damage.offset}: ${damage.fault}`);
    }
    const { layers } = this.#names;
    const layer = nearestLayer(layers, (index) => this.#builders[index] !== undefined, this.#wanted);
    if (layer === undefined && this.#wanted !== undefined) {
      const known = [...new Set(layers.map(({ name }) => name))].join(', ');
      throw new InvalidLogError(this.#source, undefined, `has no layer ${formatValue(this.#wanted)}; there are: ${known || 'none'}`);
    }
    const fault = this.#faults[layer ?? 0];
    if (fault !== undefined) throw new InvalidLogError(this.#source, undefined, fault);
    return (this.#builders[layer ?? 0] ?? new AllocationLogBuilder(this.#source)).finish(damage);
  }

  #newBuilder(layer: number): AllocationLogBuilder | undefined {
    if (this.#wanted !== undefined && this.#names.layers[layer]?.name !== this.#wanted) return undefined;
    const builder = new AllocationLogBuilder(this.#source, this.#names.streams);
    this.#builders[layer] = builder;
    return builder;
  }

  #threadNumber(thread: number): number {
    const name = this.#names.threads[thread] as string;
    const number = /^\d+$/.test(name) ? Number(name) : thread;
    this.#threads[thread] = number;
    return number;
  }

  /** The handle of a stream, or the complement of its index where its name is none. */
  #streamHandle(stream: number): number {
    const handle = streamHandle(this.#names.streams[stream] as string) ?? ~stream;
    this.#streams[stream] = handle;
    return handle;
  }
}
