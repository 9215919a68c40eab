import { EventKind } from '../../src/tools/formats/event-columns.js';
import { readRecordedRun } from '../../src/tools/formats/read-recorded-run.js';
import type { RecordedRun } from '../../src/tools/formats/recorded-run.js';

const words = new Map<number, string>(Object.entries(EventKind).map(([word, kind]) => [kind, word]));

/** An event of a recording, in words. */
export interface RecordedEvent {
  readonly kind: string;
  readonly layer: string | undefined;
  readonly stream: string | undefined;
  /** The names of the phases around it, joined by slashes. */
  readonly phase: string;
  readonly stack: string;
  readonly time: number;
  readonly first: number;
  readonly second: number;
}

/** Reads a recording; damage is an error. */
export async function readRecording(file: string): Promise<RecordedRun> {
  const run = await readRecordedRun(file);
  if (run.damage !== undefined) throw new Error(`${file} is damaged at ${run.damage.offset}: ${run.damage.fault}`);
  return run;
}

/** Every event of a recording. */
export function eventsOf(run: RecordedRun): RecordedEvent[] {
  return Array.from({ length: run.eventCount }, (_, i) => ({
    kind: words.get(run.kinds[i] as number) as string,
    layer: run.layers[run.layerOf[i] as number]?.name,
    stream: run.streams[run.streamOf[i] as number],
    phase: phasePath(run, run.phaseOf[i] as number),
    stack: run.stacks[run.stackOf[i] as number] as string,
    time: run.times[i] as number,
    first: run.firsts[i] as number,
    second: run.seconds[i] as number,
  }));
}

/** Every event as text: kind, layer, and both numbers. */
export function rowsOf(run: RecordedRun): string[] {
  return eventsOf(run).map(({ kind, layer, first, second }) => `${kind} ${layer} ${first} ${second}`);
}

/** The names of a phase and those around it, joined by slashes. */
export function phasePath(run: RecordedRun, phase: number): string {
  const names: string[] = [];
  for (let each = phase; each !== 0; each = run.phases[each]?.outer ?? 0) names.unshift(run.phases[each]?.name as string);
  return names.join('/');
}

/** Each layer with its upstream, such as `pool on cuda`, sorted. */
export function layersOf(run: RecordedRun): string[] {
  return run.layers.map(({ name, upstream }) => (upstream === undefined ? name : `${name} on ${run.layers[upstream]?.name}`)).sort();
}
