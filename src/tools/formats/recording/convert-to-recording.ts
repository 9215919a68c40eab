import { BlockEncoder } from '../../../recording/block-encoder.js';
import { encodeHeader, maximumBlockNanoseconds, maximumTextBytes, RecordKind } from '../../../recording/recording-format.js';
import { eventsOf, type LoggedEvent } from '../event-columns.js';
import type { DescribedRun, RecordedRun, WrittenEvents } from '../recorded-run.js';

const textEncoder = new TextEncoder();

/** No layer above this can be named as an upstream: its index plus 1 is stored in one byte. */
const lastUpstream = 254;

/**
 * The bytes of a recording that holds a run, block by block. {@link readRecordedRun} turns them
 * into the same run, except for `source` and `damage`.
 * @param written is updated as the blocks are taken
 * @example
 * ```ts
 * const run = await readRecordedRun('trace.csv.gz');
 * await writeWhole('trace.cistern', async (sink) => {
 *   for (const block of encodeRecording(run)) await sink.write(block);
 * });
 * ```
 */
export function encodeRecording(run: RecordedRun, written: WrittenEvents = { count: 0 }): Generator<Uint8Array> {
  return encodeEvents(run, eventsOf(run), written);
}

/**
 * The same for events that are not in columns.
 * @internal
 */
export function* encodeEvents(run: DescribedRun, events: Iterable<Readonly<LoggedEvent>>, written: WrittenEvents): Generator<Uint8Array> {
  yield encodeHeader({
    startedAt: run.startedAt ?? null,
    utcOffsetMinutes: run.utcOffsetMinutes,
    process: null,
    writer: 'cistern convert',
    ...(run.csv === undefined ? {} : { csv: run.csv }),
  });
  const encoder = new RunEncoder(run);
  let count = 0;
  for (const event of events) {
    encoder.append(event);
    count++;
    if (encoder.blocks.length === 0) continue;
    written.count = count;
    yield* encoder.blocks.splice(0);
  }
  encoder.finish();
  yield* encoder.blocks;
}

/** Encodes the events of a run, each preceded by the definitions it refers to. */
class RunEncoder {
  /** Complete blocks that were not yet taken. */
  readonly blocks: Uint8Array[] = [];
  #lastTime = 0;
  readonly #encoder = new BlockEncoder(maximumBlockNanoseconds, (block) => this.blocks.push(block.slice()));
  readonly #layers: Definitions;
  readonly #streams: Definitions;
  readonly #threads: Definitions;
  readonly #phases: Definitions;
  readonly #stacks: Definitions;
  readonly #labels: Definitions;
  readonly #accounts: Definitions;
  readonly #notes: Definitions;
  #thread = 0;
  #phase = 0;
  #account = 0;

  constructor(run: DescribedRun) {
    const { layers, streams, threads, phases, stacks, labels, accounts, notes } = run;
    const define = (heads: readonly number[], names: readonly string[], first = 0): Definitions => ({ heads, names, count: first });
    const all = (kind: RecordKind, names: readonly string[]) => names.map(() => kind);
    this.#layers = define(
      layers.map(
        ({ upstream = -1, isPlace, isGraph }) =>
          RecordKind.defineLayer | (upstream <= lastUpstream ? (upstream + 1) << 8 : 0) | (isPlace ? 1 << 16 : isGraph ? 2 << 16 : 0),
      ),
      layers.map(({ name }) => name),
    );
    this.#streams = define(all(RecordKind.defineStream, streams), streams);
    this.#threads = define(all(RecordKind.defineThread, threads), threads);
    // Entry 0 of the following tables is never defined.
    this.#phases = define(
      phases.map(({ outer, isGraph }) => RecordKind.definePhase | (isGraph ? 1 << 8 : 0) | (outer << 16)),
      phases.map(({ name }) => name),
      1,
    );
    this.#stacks = define(all(RecordKind.defineStack, stacks), stacks, 1);
    this.#labels = define(all(RecordKind.defineLabel, labels), labels, 1);
    this.#notes = define(all(RecordKind.defineNote, notes), notes);
    this.#accounts = define(all(RecordKind.defineAccount, accounts), accounts, 1);
  }

  append({ kind, layer, stream, thread, phase, stack, account, time, first, second }: Readonly<LoggedEvent>): void {
    const isOfPhase = kind === RecordKind.phaseBegin || kind === RecordKind.phaseEnd;
    if (layer >= this.#layers.count) this.#define(this.#layers, layer, time);
    if (stream >= this.#streams.count) this.#define(this.#streams, stream, time);
    if (thread >= this.#threads.count) this.#define(this.#threads, thread, time);
    if (phase >= this.#phases.count) this.#define(this.#phases, phase, time);
    if (isOfPhase && first >= this.#phases.count) this.#define(this.#phases, first, time);
    if (stack >= this.#stacks.count) this.#define(this.#stacks, stack, time);
    if (account >= this.#accounts.count) this.#define(this.#accounts, account, time);
    if (kind === RecordKind.label && second >= this.#labels.count) this.#define(this.#labels, second, time);
    if (thread !== this.#thread) this.#record(RecordKind.thread, time, thread, 0);
    if (phase !== this.#phase) this.#record(RecordKind.phase, time, phase, 0);
    if (account !== this.#account) this.#record(RecordKind.account, time, account, 0);
    if (stack !== 0) this.#record(RecordKind.stack, time, stack, 0);
    this.#thread = thread;
    this.#phase = phase;
    this.#account = account;
    this.#record(kind | (layer << 8) | (stream << 16), time, first, second);
    this.#lastTime = time;
  }

  /** Defines the names that no event refers to, and completes the last block. */
  finish(): void {
    for (const each of [
      this.#layers,
      this.#streams,
      this.#threads,
      this.#phases,
      this.#stacks,
      this.#labels,
      this.#accounts,
      this.#notes,
    ]) {
      this.#define(each, each.names.length - 1, this.#lastTime);
    }
    this.#encoder.close();
  }

  #record(head: number, time: number, first: number, second: number): void {
    this.#closeBefore(time);
    this.#encoder.record(head, time, first, second);
  }

  /** Defines the names up to an index. */
  #define(definitions: Definitions, last: number, time: number): void {
    const { heads, names } = definitions;
    for (; definitions.count <= Math.min(last, names.length - 1); definitions.count++) {
      const name = names[definitions.count] as string;
      let text = textEncoder.encode(name);
      if (text.length > maximumTextBytes) text = textEncoder.encode(name.slice(0, maximumTextBytes / 4));
      this.#closeBefore(time);
      this.#encoder.define(heads[definitions.count] as number, time, definitions.count, text);
    }
  }

  /**
   * Closes the block before a time with a different fraction of a nanosecond: only a block's head
   * can hold fractions.
   */
  #closeBefore(time: number): void {
    if (!Number.isInteger(time - this.#encoder.blockTime)) this.#encoder.close();
  }
}

/** The names of a kind, and how many of them are defined. */
interface Definitions {
  /** The head of the record of each name. */
  readonly heads: readonly number[];
  readonly names: readonly string[];
  count: number;
}
