import { describe, expect, test } from 'vitest';
import { chromeTrace } from '../../../../src/tools/formats/chrome-trace/convert-to-chrome-trace.js';
import { EventKind, type RecordedRun, readRecordedRun } from '../../../../src/tools/formats/index.js';
import { arrowEtl } from '../logs.js';
import { allocate, free, runOf } from '../runs.js';

interface TraceEvent {
  readonly ph: string;
  readonly pid: number;
  readonly tid?: number;
  readonly ts?: number;
  readonly id?: number;
  readonly name: string;
  readonly cat?: string;
  readonly args?: Readonly<Record<string, unknown>>;
}

interface Trace {
  readonly displayTimeUnit: string;
  readonly otherData: object;
  readonly traceEvents: readonly TraceEvent[];
}

function traceOf(run: RecordedRun): Trace {
  return JSON.parse([...chromeTrace(run)].join('')) as Trace;
}

/** All events except the names of processes and threads, as short texts. */
function told(run: RecordedRun): string[] {
  const { traceEvents } = traceOf(run);
  return traceEvents
    .filter(({ ph }) => ph !== 'M')
    .map(
      ({ ph, pid, ts, id, name, args }) =>
        `${ts} ${ph} ${pid} ${name}${id === undefined ? '' : ` #${id}`}${ph === 'C' ? ` ${args?.['bytes']}` : ''}`,
    );
}

describe('a trace for Perfetto', () => {
  test('has slices for allocations and phases, counters, and instant events for the rest', () => {
    const run = runOf(
      [
        { kind: EventKind.phaseBegin, first: 1, second: 0, time: 1000 },
        { kind: EventKind.growth, layer: 1, first: 4096, second: 2048, time: 1500, phase: 1 },
        allocate(4096, 1024, { time: 2001, phase: 1, stack: 1, stream: 1 }),
        { kind: EventKind.label, first: 4096, second: 1, time: 2002 },
        allocate(0, 0, { time: 2003 }),
        { kind: EventKind.phaseBegin, first: 1, second: 0, time: 2500 },
        { kind: EventKind.phaseEnd, first: 1, second: 0, time: 2600 },
        { kind: EventKind.failure, first: 0, second: 2048, time: 3000 },
        { kind: EventKind.eventRecord, first: 7, second: 0, time: 3100 },
        { kind: EventKind.eventWait, first: 7, second: 0, time: 3200, stream: 1 },
        free(4096, 1024, { time: 4000, stream: 0 }),
        free(4096, 1024, { time: 4100 }),
        { kind: EventKind.release, layer: 1, first: 4096, second: 2048, time: 5000 },
        { kind: EventKind.phaseEnd, first: 1, second: 0, time: 6000 },
        { kind: EventKind.phaseEnd, first: 1, second: 0, time: 6001 },
      ],
      {
        startedAt: 0,
        layers: [
          { name: 'limiting', upstream: 1 },
          { name: 'pool "a"', upstream: undefined },
        ],
        streams: ['0x0', '0x5'],
        phases: [
          { name: '', outer: 0 },
          { name: 'forward', outer: 0 },
        ],
        stacks: ['', 'f (a.js:1:2)'],
        labels: ['', 'w'],
      },
    );
    expect(told(run)).toEqual([
      '1 b 1 forward #0',
      '1.5 i 3 growth: 2 KiB',
      '1.5 C 3 reserved bytes 2048',
      '2.001 b 2 1 KiB #1',
      '2.001 C 2 live bytes 1024',
      '2.001 C 2 live bytes on stream 0x5 1024',
      '2.002 i 2 label: w',
      '2.5 b 1 forward #2',
      '2.6 e 1 forward #2',
      '3 i 2 failure: 2 KiB',
      '3.1 i 1 event recorded',
      '3.2 i 1 event awaited',
      '4 e 2 1 KiB #1',
      '4 C 2 live bytes 0',
      '4 C 2 live bytes on stream 0x5 0',
      '5 i 3 release: 2 KiB',
      '5 C 3 reserved bytes 0',
      '6 e 1 forward #0',
    ]);
    const { displayTimeUnit, otherData, traceEvents } = traceOf(run);
    expect([displayTimeUnit, otherData]).toEqual(['ns', { source: 'run', startedAt: '1970-01-01T00:00:00.000Z' }]);
    expect(traceEvents.filter(({ name }) => name === 'process_name').map(({ pid, args }) => [pid, args?.['name']])).toEqual([
      [1, 'program'],
      [2, 'limiting'],
      [3, 'pool "a"'],
    ]);
    expect(traceEvents.find(({ cat }) => cat === 'allocation')?.args).toEqual({
      pointer: '0x1000',
      bytes: 1024,
      stream: '0x5',
      phase: 'forward',
      stack: 'f (a.js:1:2)',
    });
  });

  test('ends an allocation whose address is allocated again', () => {
    expect(told(runOf([allocate(256, 1), allocate(256, 2)])).filter((text) => !text.includes(' C '))).toEqual([
      '0 b 2 1 B #0',
      '0 e 2 1 B #0',
      '0 b 2 2 B #1',
    ]);
  });

  test('comes in pieces, and holds every allocation of a real log', async () => {
    const run = await readRecordedRun(arrowEtl);
    const pieces = [...chromeTrace(run)];
    expect(pieces.length).toBeGreaterThan(100);
    for (const piece of pieces) expect(piece.length).toBeLessThan(100_000);
    const { traceEvents } = JSON.parse(pieces.join('')) as Trace;
    const begins = traceEvents.filter(({ ph }) => ph === 'b');
    const ends = new Set(traceEvents.filter(({ ph }) => ph === 'e').map(({ id }) => id));
    const allocations = run.kinds.reduce((count, kind, i) => (kind === EventKind.allocate && run.seconds[i] !== 0 ? count + 1 : count), 0);
    expect(begins).toHaveLength(allocations);
    expect(begins.every(({ id }) => ends.has(id))).toBe(true);
    const counters = traceEvents.filter(({ ph }) => ph === 'C');
    expect(Math.max(...counters.slice(0, 100_000).map(({ args }) => args?.['bytes'] as number))).toBeGreaterThan(2 ** 20);
    expect(counters.at(-1)?.args).toEqual({ bytes: 0 });
  });
});
