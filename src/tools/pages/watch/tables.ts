import type { StatisticsSample } from '../../watch/statistics-sample.js';
import { element } from '../common/dom.js';
import { formatBytes, formatCount, formatDuration, formatShare } from '../common/format.js';

/** A table, which is hidden while it has no rows. */
export interface TableContents {
  readonly caption: string;
  readonly columns: readonly string[];
  /** The first cell of a row is its name. */
  readonly rows: readonly (readonly string[])[];
}

/** All current numbers, but for the lines that hold memory. */
export function numberTables({
  resources,
  layers,
  devices,
  libraries,
  driverCalls,
  buffers,
  streams,
  accounts,
  accountRefusals,
  admissions,
  spills,
  processId,
}: StatisticsSample): TableContents[] {
  return [
    {
      caption: 'Resources',
      columns: ['resource', 'live', 'peak', 'total allocated', 'live allocations', 'allocations', 'frees', 'failed', 'built on'],
      rows: resources.map((resource) => [
        resource.name,
        ...[resource.liveBytes, resource.peakBytes, resource.totalAllocatedBytes].map(formatBytes),
        ...[resource.liveAllocations, resource.allocations, resource.frees, resource.failedAllocations].map(formatCount),
        resource.layers.join(', ') || '–',
      ]),
    },
    {
      caption: 'Layers that hold memory',
      columns: [
        'layer',
        'reserved',
        'peak reserved',
        'allocated',
        'free',
        'largest free',
        'fragmentation',
        'upstream blocks',
        'growths',
        'releases',
        'reuses',
        'synchronizations',
      ],
      rows: layers.map(({ name, reservedBytes, peakReservedBytes, pool }) => [
        name,
        ...[reservedBytes, peakReservedBytes].map(formatBytes),
        ...(pool === null
          ? Array<string>(9).fill('–')
          : [
              ...[pool.allocatedBytes, pool.freeBytes, pool.largestFreeBytes].map(formatBytes),
              formatShare(pool.fragmentation),
              ...[pool.upstreamBlocks, pool.growths, pool.releases, pool.reuses, pool.synchronizations].map(formatCount),
            ]),
      ]),
    },
    {
      caption: 'All libraries',
      columns: ['library', 'on devices', 'peak on devices', 'on the host', 'allocations'],
      rows: libraries.map(({ name, deviceBytes, peakDeviceBytes, hostBytes, allocations }) => [
        name,
        ...[deviceBytes, peakDeviceBytes, hostBytes].map(formatBytes),
        formatCount(allocations),
      ]),
    },
    {
      caption: 'Accounts',
      columns: ['account', 'live', 'share of limit', 'limit', 'peak of one', 'left', 'waited', 'accounts'],
      rows: accounts.map(({ path, liveBytes, limitBytes, peakBytes, spilledBytes, waitedMilliseconds, accounts: count }) => [
        path,
        formatBytes(liveBytes),
        limitBytes === null || limitBytes === 0 ? '–' : formatShare(liveBytes / limitBytes),
        limitBytes === null ? '–' : formatBytes(limitBytes),
        ...[peakBytes, spilledBytes].map(formatBytes),
        formatDuration(waitedMilliseconds),
        formatCount(count),
      ]),
    },
    {
      caption: 'Promised memory',
      columns: [
        'resource',
        'limit',
        'promised or used',
        'grants',
        'waiting',
        'for',
        'admitted',
        'after a wait',
        'longest wait',
        'not admitted',
      ],
      rows: admissions.map((admission) => [
        admission.name,
        ...[admission.limitBytes, admission.committedBytes].map(formatBytes),
        ...[admission.grants, admission.waiting].map(formatCount),
        formatBytes(admission.waitingBytes),
        ...[admission.admitted, admission.admittedAfterWait].map(formatCount),
        formatDuration(admission.longestWaitMilliseconds),
        formatCount(admission.refusedTooLarge + admission.refusedAfterTimeout + admission.refusedInDeadlock + admission.aborted),
      ]),
    },
    {
      caption: 'Spillable buffers',
      columns: [
        'resource',
        'on the device',
        'pinned',
        'on the host',
        'in files',
        'left',
        'came back',
        'waiting',
        'longest wait',
        'refused',
      ],
      rows: spills.map((spill) => [
        spill.name,
        ...[spill.deviceBytes, spill.pinnedBytes, spill.hostBytes, spill.fileBytes, spill.spilledBytes, spill.returnedBytes].map(
          formatBytes,
        ),
        formatCount(spill.waiting),
        formatDuration(spill.longestWaitMilliseconds),
        formatCount(spill.refusedByHost + spill.refusedByFile),
      ]),
    },
    {
      caption: 'Devices',
      columns: ['device', 'name', 'free', 'all', 'managed memory there', 'moved there', 'faults'],
      rows: devices.map(({ index, name, freeBytes, totalBytes, managed }) => [
        String(index),
        name,
        ...[freeBytes, totalBytes].map(formatBytes),
        ...(managed === null
          ? Array<string>(3).fill('–')
          : [
              formatBytes(managed.residentBytes),
              formatBytes(managed.bytesFromHost + managed.bytesFromDevices),
              formatCount(managed.faults),
            ]),
      ]),
    },
    {
      caption: 'Processes on the devices',
      columns: ['device', 'process', 'program', 'holds'],
      rows: devices.flatMap(({ index, users }) =>
        (users ?? []).map(({ pid, name, bytes, isOwn }) => [
          String(index),
          `${pid}${isOwn ? ' (this one)' : ''}`,
          name ?? '–',
          bytes === undefined || bytes === null ? '–' : formatBytes(bytes),
        ]),
      ),
    },
    {
      caption: 'Driver calls',
      columns: ['function', 'calls'],
      rows: Object.entries(driverCalls)
        .sort(([, one], [, other]) => other - one)
        .map(([name, calls]) => [name, formatCount(calls)]),
    },
    {
      caption: 'Process',
      columns: ['figure', 'value'],
      rows: [
        ['process id', String(processId)],
        ['live buffers', formatCount(buffers)],
        ['streams', formatCount(streams)],
        ['allocations refused by limits of accounts', formatCount(accountRefusals)],
      ],
    },
  ];
}

/** On a narrow screen, a table of more columns shows a row as a list. */
const mostColumnsAbreast = 3;

const textColumns: ReadonlySet<string> = new Set(['name', 'built on']);

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

  #addTable(caption: string, columns: readonly string[]): HTMLTableElement {
    const heads = columns.map((name, i) => element('th', { scope: 'col', class: classOf(name, i) }, name));
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

function emptyRow(columns: readonly string[]): HTMLTableRowElement {
  const cells = columns.map((name, i) =>
    i === 0 ? element('th', { scope: 'row' }) : element('td', { class: classOf(name, i), 'data-column': name }),
  );
  return element('tr', {}, ...cells);
}

function classOf(column: string, index: number): string | undefined {
  return index === 0 || textColumns.has(column) ? undefined : 'number';
}
