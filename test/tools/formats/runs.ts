import fc from 'fast-check';
import { EventKind, type RecordedRun } from '../../../src/tools/formats/index.js';

/** An event of a run, before it is put into columns. */
export interface RunEvent {
  readonly kind: number;
  readonly layer?: number;
  readonly stream?: number;
  readonly thread?: number;
  readonly phase?: number;
  readonly stack?: number;
  readonly account?: number;
  readonly time?: number;
  readonly first: number;
  readonly second: number;
}

/** A run of the given events. It has one layer, stream and thread unless others are given. */
export function runOf(events: readonly RunEvent[], rest: Partial<RecordedRun> = {}): RecordedRun {
  const column = (key: keyof RunEvent) => events.map((event) => event[key] ?? 0);
  return {
    source: 'run',
    startedAt: undefined,
    utcOffsetMinutes: 0,
    layers: [{ name: 'pool', upstream: undefined }],
    streams: ['0x0'],
    threads: ['1'],
    phases: [{ name: '', outer: 0 }],
    stacks: [''],
    labels: [''],
    accounts: [''],
    notes: [],
    eventCount: events.length,
    kinds: Uint8Array.from(column('kind')),
    layerOf: Uint8Array.from(column('layer')),
    streamOf: Uint16Array.from(column('stream')),
    threadOf: Uint16Array.from(column('thread')),
    phaseOf: Uint16Array.from(column('phase')),
    stackOf: Uint32Array.from(column('stack')),
    accountOf: Uint16Array.from(column('account')),
    times: Float64Array.from(column('time')),
    firsts: Float64Array.from(column('first')),
    seconds: Float64Array.from(column('second')),
    damage: undefined,
    skippedRecordCount: 0,
    csv: undefined,
    ...rest,
  };
}

export const allocate = (first: number, second: number, more: Partial<RunEvent> = {}): RunEvent => ({
  kind: EventKind.allocate,
  first,
  second,
  ...more,
});
export const free = (first: number, second: number, more: Partial<RunEvent> = {}): RunEvent => ({
  kind: EventKind.free,
  first,
  second,
  ...more,
});

const text = fc.string({ unit: 'grapheme', maxLength: 60 });
const amount = fc.oneof(fc.nat({ max: 4096 }), fc.maxSafeNat());

/**
 * Any run that can be recorded: its names and events, with times that sometimes go back or leave
 * long pauses.
 */
export const anyRun: fc.Arbitrary<RecordedRun> = fc
  .record({
    layers: fc.array(text, { minLength: 1, maxLength: 4 }),
    streams: fc.array(text, { minLength: 1, maxLength: 4 }),
    threads: fc.array(text, { minLength: 1, maxLength: 3 }),
    phases: fc.array(text, { maxLength: 3 }),
    stacks: fc.array(text, { maxLength: 3 }),
    labels: fc.array(text, { maxLength: 3 }),
    accounts: fc.array(text, { maxLength: 3 }),
    notes: fc.array(text, { maxLength: 2 }),
    startedAt: fc.option(fc.integer({ min: 0, max: 2e12 }), { nil: undefined }),
    utcOffsetMinutes: fc.integer({ min: -720, max: 840 }),
  })
  .chain(({ layers, streams, threads, phases, stacks, labels, accounts, notes, startedAt, utcOffsetMinutes }) => {
    const common = {
      layer: fc.nat({ max: layers.length - 1 }),
      stream: fc.nat({ max: streams.length - 1 }),
      thread: fc.nat({ max: threads.length - 1 }),
      phase: fc.nat({ max: phases.length }),
      stack: fc.nat({ max: stacks.length }),
      account: fc.nat({ max: accounts.length }),
      time: fc.oneof(fc.nat({ max: 1000 }), fc.nat({ max: 2 ** 31 - 1 }), fc.integer({ min: 0, max: 2 ** 45 })),
    };
    const event = fc.oneof(
      fc.record({ ...common, kind: fc.integer({ min: 1, max: 7 }).filter((kind) => kind !== 3), first: amount, second: amount }),
      fc.record({ ...common, kind: fc.constant(EventKind.failure), first: fc.integer(), second: amount }),
      fc.record({ ...common, kind: fc.constantFrom(8, 9), first: fc.nat({ max: phases.length }), second: fc.constant(0) }),
      fc.record({ ...common, kind: fc.constant(EventKind.label), first: amount, second: fc.nat({ max: labels.length }) }),
    );
    return fc.array(event, { maxLength: 60, size: 'max' }).map((events) =>
      runOf(events, {
        // Each lies on the next, so they are already ordered from the program down.
        layers: layers.map((name, i) => ({ name, upstream: i + 1 < layers.length ? i + 1 : undefined })),
        streams,
        threads,
        phases: [{ name: '', outer: 0 }, ...phases.map((name, i) => ({ name, outer: i }))],
        stacks: ['', ...stacks],
        labels: ['', ...labels],
        accounts: ['', ...accounts],
        notes,
        startedAt,
        utcOffsetMinutes,
      }),
    );
  });
