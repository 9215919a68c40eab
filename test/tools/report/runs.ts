import { EventKind } from '../../../src/tools/formats/event-columns.js';
import type { RecordedLayer } from '../../../src/tools/formats/layers.js';
import type { RecordedPhase, RecordedRun, RecordingDamage } from '../../../src/tools/formats/recorded-run.js';
import { type RunEvent, runOf } from '../formats/runs.js';

/** The circumstances of an event. Fields left out keep the values of the previous event. */
export interface EventPlace {
  /** Nanoseconds since the previous event. */
  readonly after?: number;
  readonly layer?: string;
  readonly stream?: string;
  readonly thread?: string;
  readonly phase?: string | undefined;
  readonly stack?: string | undefined;
  readonly account?: string | undefined;
}

/** Texts by number. */
class Names {
  readonly all: string[];

  constructor(...first: readonly string[]) {
    this.all = [...first];
  }

  indexOf(name: string): number {
    const index = this.all.indexOf(name);
    return index >= 0 ? index : this.all.push(name) - 1;
  }
}

/** Builds runs like those of recordings, event by event. */
export class RunWriter {
  readonly #events: RunEvent[] = [];
  readonly #layers: RecordedLayer[];
  readonly #streams = new Names();
  readonly #threads = new Names();
  readonly #phases: RecordedPhase[] = [{ name: '', outer: 0 }];
  readonly #stacks = new Names('');
  readonly #labels = new Names('');
  readonly #accounts = new Names('');
  #time = 0;
  #place = { layer: 0, stream: '0x0', thread: '1', phase: 0, stack: '', account: '' };

  /** @param layers outermost first; each lies on the next */
  constructor(...layers: readonly string[]) {
    const names = layers.length > 0 ? layers : ['pool'];
    this.#layers = names.map((name, index) => ({ name, upstream: index + 1 < names.length ? index + 1 : undefined }));
  }

  allocate(pointer: number, bytes: number, place: EventPlace = {}): this {
    return this.add(EventKind.allocate, pointer, bytes, place);
  }

  free(pointer: number, bytes: number, place: EventPlace = {}): this {
    return this.add(EventKind.free, pointer, bytes, place);
  }

  grow(pointer: number, bytes: number, place: EventPlace = {}): this {
    return this.add(EventKind.growth, pointer, bytes, place);
  }

  release(pointer: number, bytes: number, place: EventPlace = {}): this {
    return this.add(EventKind.release, pointer, bytes, place);
  }

  fail(bytes: number, place: EventPlace = {}): this {
    return this.add(EventKind.failure, 0, bytes, place);
  }

  label(pointer: number, label: string): this {
    return this.add(EventKind.label, pointer, this.#labels.indexOf(label), {});
  }

  beginPhase(name: string, outer?: string): this {
    const index = this.#phase(name, outer);
    return this.add(EventKind.phaseBegin, index, 0, { after: 0 });
  }

  endPhase(name: string): this {
    return this.add(EventKind.phaseEnd, this.#phase(name), 0, { after: 0 });
  }

  add(kind: EventKind, first: number, second: number, place: EventPlace): this {
    const { after = 1000, layer, stream, thread, stack } = place;
    const now = this.#place;
    this.#time += after;
    if (layer !== undefined) now.layer = this.#layers.findIndex(({ name }) => name === layer);
    if (stream !== undefined) now.stream = stream;
    if (thread !== undefined) now.thread = thread;
    if ('phase' in place) now.phase = place.phase === undefined ? 0 : this.#phase(place.phase);
    if ('stack' in place) now.stack = stack ?? '';
    if ('account' in place) now.account = place.account ?? '';
    this.#events.push({
      kind,
      layer: now.layer,
      stream: this.#streams.indexOf(now.stream),
      thread: this.#threads.indexOf(now.thread),
      phase: now.phase,
      stack: this.#stacks.indexOf(now.stack),
      account: this.#accounts.indexOf(now.account),
      time: this.#time,
      first,
      second,
    });
    return this;
  }

  finish({ source = 'run.cistern', damage }: { readonly source?: string; readonly damage?: RecordingDamage } = {}): RecordedRun {
    return runOf(this.#events, {
      source,
      startedAt: Date.UTC(2026, 2, 14, 9, 26, 53),
      utcOffsetMinutes: 60,
      layers: this.#layers,
      streams: this.#streams.all,
      threads: this.#threads.all,
      phases: this.#phases,
      stacks: this.#stacks.all,
      labels: this.#labels.all,
      accounts: this.#accounts.all,
      damage,
    });
  }

  #phase(name: string, outer?: string): number {
    const index = this.#phases.findIndex((phase) => phase.name === name);
    return index > 0 ? index : this.#phases.push({ name, outer: outer === undefined ? 0 : this.#phase(outer) }) - 1;
  }
}

/** Numbers from 0 to 1, the same for the same seed. */
function randomNumbers(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const KiB = 1024;
const MiB = 1024 * KiB;
const base = 0x7f4a_0000_0000;

/** First-fit memory in blocks, which gives a run its addresses. */
class Blocks {
  readonly #writer: RunWriter;
  readonly #blocks: { start: number; bytes: number }[] = [];
  readonly live = new Map<number, number>();

  constructor(writer: RunWriter) {
    this.#writer = writer;
  }

  allocate(bytes: number, place: EventPlace): number {
    let pointer = this.#find(bytes);
    if (pointer === undefined) {
      const block = { start: base + this.#blocks.length * 0x1_0000_0000, bytes: Math.max(64 * MiB, 2 ** Math.ceil(Math.log2(bytes))) };
      this.#blocks.push(block);
      this.#writer.grow(block.start, block.bytes, { ...place, layer: 'pool', after: 900 });
      pointer = block.start;
    }
    this.live.set(pointer, bytes);
    this.#writer.allocate(pointer, bytes, { layer: 'statistics', ...place });
    return pointer;
  }

  free(pointer: number, place: EventPlace): void {
    const bytes = this.live.get(pointer) as number;
    this.live.delete(pointer);
    this.#writer.free(pointer, bytes, { layer: 'statistics', ...place });
  }

  #find(bytes: number): number | undefined {
    for (const { start, bytes: blockBytes } of this.#blocks) {
      const inside = [...this.live].filter(([at]) => at >= start && at < start + blockBytes).sort(([a], [b]) => a - b);
      let at = start;
      for (const [pointer, size] of inside) {
        if (pointer - at >= bytes) return at;
        at = pointer + size;
      }
      if (start + blockBytes - at >= bytes) return at;
    }
    return undefined;
  }
}

/**
 * A training loop with two streams, phases, labels, stacks, growth and failures. Its texts contain
 * markup that would end a script or start an element.
 */
export function trainingRun({
  steps = 8,
  source = 'training </script><img src=x onerror="document.title=1">.cistern',
  seed = 1,
} = {}): RecordedRun {
  const random = randomNumbers(seed);
  const writer = new RunWriter('statistics', 'pool');
  const blocks = new Blocks(writer);
  const stack = (...functions: readonly string[]) =>
    [...functions, 'trainStep (train.js:118:9)', 'train (train.js:201:5)', 'main (train.js:240:3)'].join('\n');
  const kernels = ['attention', 'feedForward', 'layerNorm', 'embedding'];
  const weights = Array.from({ length: 12 }, (_, layer) => {
    const place = {
      stream: '0x1',
      phase: undefined,
      stack: stack('new Weights (model.js:31:17)', `buildLayer (model.js:${60 + layer}:11)`),
    };
    const pointer = blocks.allocate((4 + (layer % 3) * 4) * MiB, { ...place, after: 200_000 });
    writer.label(pointer, layer === 3 ? 'weights.3 </script><b>bold</b>' : `weights.${layer}`);
    return pointer;
  });
  for (let step = 0; step < steps; step++) {
    writer.beginPhase('step');
    const activations: number[] = [];
    writer.beginPhase('forward', 'step');
    for (let layer = 0; layer < 12; layer++) {
      const kernel = kernels[layer % kernels.length] as string;
      const place = {
        stream: '0x1',
        thread: '4711',
        phase: 'forward',
        stack: stack(`${kernel} (kernels.js:${20 + layer}:7)`, 'forward (model.js:140:12)'),
      };
      activations.push(blocks.allocate(Math.round((2 + random() * 8) * 64) * 16 * KiB, { ...place, after: 400_000 + random() * 200_000 }));
      for (let small = 0; small < 6; small++) {
        const pointer = blocks.allocate(Math.round(1 + random() * 96) * 2 * KiB, { ...place, after: 20_000 });
        blocks.free(pointer, { after: 30_000 });
      }
      if (layer % 4 === 1) {
        const batch = blocks.allocate(6 * MiB, {
          stream: '0x2',
          thread: '4712',
          phase: 'forward',
          stack: stack('prefetch </script> (loader.js:55:3)', 'nextBatch (loader.js:12:20)'),
          after: 90_000,
        });
        writer.label(batch, `batch ${step}`);
        blocks.free(batch, { stream: '0x1', after: 300_000 });
      }
    }
    writer.endPhase('forward').beginPhase('backward', 'step');
    for (const [layer, pointer] of [...activations.entries()].reverse()) {
      const place = {
        stream: '0x1',
        thread: '4711',
        phase: 'backward',
        stack: stack(`gradient (kernels.js:${80 + layer}:7)`, 'backward (model.js:171:12)'),
      };
      const gradient = blocks.allocate(Math.round((1 + random() * 6) * 64) * 16 * KiB, { ...place, after: 300_000 });
      blocks.free(pointer, { after: 250_000 });
      blocks.free(gradient, { after: 100_000 });
    }
    writer.endPhase('backward').endPhase('step');
    if (step === 5) writer.fail(512 * MiB, { layer: 'statistics', phase: undefined, after: 50_000 });
  }
  for (const pointer of weights.slice(0, 9)) blocks.free(pointer, { phase: undefined, stack: undefined, after: 100_000 });
  return writer.finish({ source, damage: { offset: 4_800, fault: 'the block ends early', isTruncation: true } });
}
