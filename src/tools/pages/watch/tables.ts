import type { StatisticsSample } from '../../watch/statistics-sample.js';
import { bytes, type Column, classOf, count, formatted, number, words } from '../common/columns.js';
import { element } from '../common/dom.js';
import { formatCount, formatDuration, formatShare } from '../common/format.js';

/** A table, which is hidden while it has no rows. */
export interface TableContents {
  readonly caption: string;
  readonly columns: readonly Pick<Column<never>, 'head' | 'isNumber'>[];
  /** The first cell of a row is its name. */
  readonly rows: readonly (readonly string[])[];
}

/** What a table of rows shows. */
export function table<Row>(caption: string, rows: readonly Row[], columns: readonly Column<Row>[]): TableContents {
  return { caption, columns, rows: rows.map((row) => columns.map(({ cell }) => cell(row) as string)) };
}

/** All current numbers, but for the lines that hold memory. */
export function numberTables(sample: StatisticsSample): TableContents[] {
  const { devices } = sample;
  const users = devices.flatMap(({ index, users }) => (users ?? []).map((user) => ({ index, ...user })));
  const figures: [string, string][] = [
    ['process id', String(sample.processId)],
    ['live buffers', formatCount(sample.buffers)],
    ['streams', formatCount(sample.streams)],
    ['allocations refused by limits of accounts', formatCount(sample.accountRefusals)],
  ];
  return [
    table('Resources', sample.resources, [
      words('resource', ({ name }) => name),
      bytes('live', ({ liveBytes }) => liveBytes),
      bytes('peak', ({ peakBytes }) => peakBytes),
      bytes('total allocated', ({ totalAllocatedBytes }) => totalAllocatedBytes),
      count('live allocations', ({ liveAllocations }) => liveAllocations),
      count('allocations', ({ allocations }) => allocations),
      count('frees', ({ frees }) => frees),
      count('failed', ({ failedAllocations }) => failedAllocations),
      words('built on', ({ layers }) => layers.join(', ') || '–'),
    ]),
    table('Layers that hold memory', sample.layers, [
      words('layer', ({ name }) => name),
      bytes('reserved', ({ reservedBytes }) => reservedBytes),
      bytes('peak reserved', ({ peakReservedBytes }) => peakReservedBytes),
      bytes('allocated', ({ pool }) => pool?.allocatedBytes),
      bytes('free', ({ pool }) => pool?.freeBytes),
      bytes('largest free', ({ pool }) => pool?.largestFreeBytes),
      formatted('fragmentation', ({ pool }) => pool?.fragmentation, formatShare),
      count('upstream blocks', ({ pool }) => pool?.upstreamBlocks),
      count('growths', ({ pool }) => pool?.growths),
      count('releases', ({ pool }) => pool?.releases),
      count('reuses', ({ pool }) => pool?.reuses),
      count('synchronizations', ({ pool }) => pool?.synchronizations),
    ]),
    table('All libraries', sample.libraries, [
      words('library', ({ name }) => name),
      bytes('on devices', ({ deviceBytes }) => deviceBytes),
      bytes('peak on devices', ({ peakDeviceBytes }) => peakDeviceBytes),
      bytes('on the host', ({ hostBytes }) => hostBytes),
      count('allocations', ({ allocations }) => allocations),
    ]),
    table('Accounts', sample.accounts, [
      words('account', ({ path }) => path),
      bytes('live', ({ liveBytes }) => liveBytes),
      formatted('share of limit', ({ liveBytes, limitBytes }) => (limitBytes ? liveBytes / limitBytes : null), formatShare),
      bytes('limit', ({ limitBytes }) => limitBytes),
      bytes('peak of one', ({ peakBytes }) => peakBytes),
      bytes('left', ({ spilledBytes }) => spilledBytes),
      formatted('waited', ({ waitedMilliseconds }) => waitedMilliseconds, formatDuration),
      count('accounts', ({ accounts }) => accounts),
    ]),
    table('Promised memory', sample.admissions, [
      words('resource', ({ name }) => name),
      bytes('limit', ({ limitBytes }) => limitBytes),
      bytes('promised or used', ({ committedBytes }) => committedBytes),
      count('grants', ({ grants }) => grants),
      count('waiting', ({ waiting }) => waiting),
      bytes('for', ({ waitingBytes }) => waitingBytes),
      count('admitted', ({ admitted }) => admitted),
      count('after a wait', ({ admittedAfterWait }) => admittedAfterWait),
      formatted('longest wait', ({ longestWaitMilliseconds }) => longestWaitMilliseconds, formatDuration),
      count('not admitted', (of) => of.refusedTooLarge + of.refusedAfterTimeout + of.refusedInDeadlock + of.aborted),
    ]),
    table('Spillable buffers', sample.spills, [
      words('resource', ({ name }) => name),
      bytes('on the device', ({ deviceBytes }) => deviceBytes),
      bytes('pinned', ({ pinnedBytes }) => pinnedBytes),
      bytes('on the host', ({ hostBytes }) => hostBytes),
      bytes('in files', ({ fileBytes }) => fileBytes),
      bytes('left', ({ spilledBytes }) => spilledBytes),
      bytes('came back', ({ returnedBytes }) => returnedBytes),
      count('waiting', ({ waiting }) => waiting),
      formatted('longest wait', ({ longestWaitMilliseconds }) => longestWaitMilliseconds, formatDuration),
      count('refused', ({ refusedByHost, refusedByFile }) => refusedByHost + refusedByFile),
    ]),
    table('Devices', devices, [
      words('device', ({ index }) => String(index)),
      words('name', ({ name }) => name),
      bytes('free', ({ freeBytes }) => freeBytes),
      bytes('all', ({ totalBytes }) => totalBytes),
      bytes('managed memory there', ({ managed }) => managed?.residentBytes),
      bytes('moved there', ({ managed }) => managed && managed.bytesFromHost + managed.bytesFromDevices),
      count('faults', ({ managed }) => managed?.faults),
    ]),
    table('Processes on the devices', users, [
      words('device', ({ index }) => String(index)),
      number('process', ({ pid, isOwn }) => `${pid}${isOwn ? ' (this one)' : ''}`),
      words('program', ({ name }) => name ?? null),
      bytes('holds', (user) => user.bytes),
    ]),
    table(
      'Driver calls',
      Object.entries(sample.driverCalls).sort(([, one], [, other]) => other - one),
      [words('function', ([name]) => name), count('calls', ([, calls]) => calls)],
    ),
    table('Process', figures, [words('figure', ([figure]) => figure), number('value', ([, value]) => value)]),
  ];
}

/** On a narrow screen, a table of more columns shows a row as a list. */
const mostColumnsAbreast = 3;

/**
 * Tables of numbers that are updated in place, so that a screen reader keeps its
 * position.
 */
export class Tables {
  readonly #place: HTMLElement;

  constructor(place: HTMLElement) {
    this.#place = place;
  }

  show(tables: readonly TableContents[]): void {
    for (const [i, { caption, columns, rows }] of tables.entries()) {
      const table = this.#place.querySelectorAll('table')[i] ?? this.#addTable(caption, columns);
      (table.parentElement as HTMLElement).hidden = rows.length === 0;
      const body = table.tBodies[0] as HTMLTableSectionElement;
      while (body.rows.length > rows.length) body.deleteRow(-1);
      for (const [r, row] of rows.entries()) {
        const line = body.rows[r] ?? body.appendChild(emptyRow(columns));
        for (const [c, text] of row.entries()) {
          const cell = line.cells[c] as HTMLTableCellElement;
          if (cell.textContent !== text) cell.textContent = text;
        }
      }
    }
  }

  #addTable(caption: string, columns: TableContents['columns']): HTMLTableElement {
    const heads = columns.map((column) => element('th', { scope: 'col', class: classOf(column) }, column.head));
    const table = element(
      'table',
      { class: columns.length > mostColumnsAbreast ? 'wide' : undefined },
      element('caption', {}, caption),
      element('thead', {}, element('tr', {}, ...heads)),
      element('tbody'),
    );
    // Wide tables scroll, by keyboard as well.
    this.#place.append(element('div', { class: 'table', tabindex: '0', role: 'group', 'aria-label': caption }, table));
    return table;
  }
}

function emptyRow(columns: TableContents['columns']): HTMLTableRowElement {
  const cells = columns.map((column, i) =>
    i === 0 ? element('th', { scope: 'row' }) : element('td', { class: classOf(column), 'data-column': column.head }),
  );
  return element('tr', {}, ...cells);
}
