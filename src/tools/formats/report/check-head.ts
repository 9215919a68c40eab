/**
 * Checks what a report says about itself, because a report is untrusted input: its texts have the right
 * types, its columns belong together, and neither their number nor their lengths exceed what the
 * file can hold.
 */
import { maximumNames } from '../event-columns.js';
import { Cost, type ReadingBudget } from '../reading-budget.js';
import { isDate, isUtcOffset } from '../recorded-run.js';
import { type ColumnHead, chunkLength, packedBytes } from './column.js';
import { columnNames, type ReportHead } from './report-data.js';

const maximumLayers = 2 ** 8;
/** The planes of 2^54, the greatest difference of two values. */
const maximumPlanes = 7;

/** A report that is not one that cistern wrote; the message says why. */
export class ReportFault extends Error {}

/**
 * @param bytesOfColumns what follows the head
 * @throws ReportFault, InvalidLogError if the columns are longer than the budget allows
 */
export function checkHead(head: unknown, bytesOfColumns: number, budget: ReadingBudget): asserts head is ReportHead {
  const { columns, spanCount, ...texts } = objectOf(head, 'its head');
  checkTexts(texts);
  const heads = objectOf(columns, 'its columns');
  let bytes = 0;
  const counts: Record<string, number> = {};
  for (const name of columnNames) {
    const column = heads[name];
    checkColumn(column, name);
    budget.spend(column.count * Cost.value, 'columns');
    bytes += packedBytes(column);
    counts[name] = column.count;
  }
  if (Object.keys(heads).length !== columnNames.length) throw new ReportFault('it has columns that are not known');
  if (bytes !== bytesOfColumns) throw new ReportFault(`its columns have ${bytes} bytes, but ${bytesOfColumns} follow its head`);
  for (const [count, ...names] of [
    [spanCount, 'addressOf', 'bytes', 'isBlock', 'layerOf', 'streamOf', 'threadOf', 'phaseOf', 'stackOf', 'accountOf'],
    [counts['changes'], 'times'],
    [counts['labelled'], 'labelOf'],
    [counts['failureTimes'], 'failureBytes', 'failureLayerOf', 'failureStreamOf', 'failurePhaseOf', 'failureAccountOf'],
    [counts['phaseTimes'], 'phaseMarkOf', 'phaseIsEnd'],
  ] as const) {
    const other = names.find((name) => counts[name] !== count);
    if (other !== undefined) throw new ReportFault(`its column ${other} has ${counts[other]} values, and others have ${String(count)}`);
  }
}

function checkTexts(texts: Readonly<Record<string, unknown>>): void {
  const { startedAt = 0, damage, layers, phases } = texts;
  const counts = ['eventCount', 'eventRecordCount', 'eventWaitCount', 'unmatchedFreeCount', 'skippedRecordCount'];
  for (const name of counts) if (!isCount(texts[name])) throw new ReportFault(`its ${name} is not a count`);
  if (!Number.isFinite(texts['durationNanoseconds'])) throw new ReportFault('its duration is not a number');
  if (!isDate(startedAt) || !isUtcOffset(texts['utcOffsetMinutes'])) throw new ReportFault('its date is not a date');
  if (typeof texts['source'] !== 'string') throw new ReportFault('its source is not a text');
  for (const name of ['streams', 'threads', 'stacks', 'labels', 'accounts', 'notes']) {
    const most = name === 'stacks' || name === 'labels' ? Number.POSITIVE_INFINITY : maximumNames;
    if (!listOf(texts[name], name, most).every((text) => typeof text === 'string')) throw new ReportFault(`its ${name} are not all texts`);
  }
  if (damage !== undefined) {
    const { offset, fault, isTruncation } = objectOf(damage, 'its damage');
    if (!isCount(offset) || typeof fault !== 'string' || typeof isTruncation !== 'boolean')
      throw new ReportFault('its damage has no place');
  }
  const layerList = listOf(layers, 'layers', maximumLayers);
  for (const layer of layerList) {
    const { name, upstream = 0 } = objectOf(layer, 'a layer');
    if (typeof name !== 'string' || !isIndex(upstream, layerList))
      throw new ReportFault('a layer has no name, or an upstream that is none');
  }
  const phaseList = listOf(phases, 'phases', maximumNames);
  for (const phase of phaseList) {
    const { name, outer } = objectOf(phase, 'a phase');
    if (typeof name !== 'string' || !isIndex(outer, phaseList)) throw new ReportFault('a phase has no name, or is within one that is none');
  }
}

function checkColumn(column: unknown, name: string): asserts column is ColumnHead {
  const { count, isDelta, chunks } = objectOf(column, `its column ${name}`);
  const isWhole =
    isCount(count) &&
    typeof isDelta === 'boolean' &&
    Array.isArray(chunks) &&
    chunks.length === Math.ceil(count / chunkLength) &&
    chunks.every(isChunkHead);
  if (!isWhole) throw new ReportFault(`its column ${name} is not described as cistern does`);
}

function isChunkHead(chunk: unknown): boolean {
  if (!Array.isArray(chunk) || chunk.length !== 4 || !chunk.every(Number.isSafeInteger)) return false;
  const [, unit, planes] = chunk as readonly number[];
  return (unit as number) >= 1 && (planes as number) >= 0 && (planes as number) <= maximumPlanes;
}

function objectOf(value: unknown, what: string): Readonly<Record<string, unknown>> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw new ReportFault(`${what} is not an object`);
}

function listOf(value: unknown, what: string, most: number): readonly unknown[] {
  if (Array.isArray(value) && value.length <= most) return value;
  throw new ReportFault(`its ${what} are not a list of at most ${most}`);
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function isIndex(value: unknown, list: readonly unknown[]): boolean {
  return isCount(value) && value < list.length;
}
