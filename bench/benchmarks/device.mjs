/** What the calls of a device cost by themselves and through pools, on an idle and on a busy stream; sleep; and pinned memory. */
import { formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

export const name = 'device';
export const title = "The device's own calls and what spares them: pairs, calls on a busy stream, sleep, pinned memory";

const GiB = 2 ** 30;
const MiB = 2 ** 20;
const pools = ['eager', 'deferred', 'off'].map((events) => `pool(cuda, initialBytes=2GiB, deallocationEvents=${events})`);
const stacks = ['cuda', 'cuda-async', 'virtual', ...pools, 'arena(cuda, arenaBytes=2GiB)'];

/** @param {Context} context */
export async function run(context) {
  const rows = [];
  const device = context.cistern.Device.get();
  const { freeBytes } = device.memoryInfo();
  // The software device's memory is the host's, and here all of it is written.
  const most = device.backend === 'software' ? GiB : 8 * GiB;
  const { repeat } = context;
  /** @param {string} section @param {string} resource @param {number} bytes */
  const measure = async (section, resource, bytes) => {
    context.progress(`${section}: ${resource}`);
    rows.push({ section, resource, bytes, ...(await runSubject('device', { section, resource, bytes, repeat })) });
  };
  for (const bytes of [MiB, 256 * MiB]) for (const resource of [...stacks, 'pinned-host']) await measure('pairs', resource, bytes);
  for (const resource of stacks) await measure('busy', resource, 64 * MiB);
  await measure('sleep', 'virtual', Math.min(most, 2 ** Math.floor(Math.log2(freeBytes / 2))));
  for (const options of ['', ...[0, 1, 4, 16].map((threads) => `(populateThreads=${threads})`)]) {
    await measure('pinned', `pinned-host${options}`, most);
  }
  return rows;
}

/** @param {any[]} rows */
export function format(rows) {
  /** @param {string} section @param {readonly string[]} titles @param {(row: any) => string[]} cells */
  const table = (section, titles, cells) =>
    formatTable(
      [section, 'MiB', ...titles],
      rows.filter((row) => row.section === section).map((row) => [row.resource, formatNumber(row.bytes / MiB, 0), ...cells(row)]),
    );
  /** @param {Figures} figures */
  const both = ({ median, minimum }) => [formatNumber(median), formatNumber(minimum)];
  return [
    table('pairs', ['ns, median', 'minimum'], ({ pair }) => both(pair)),
    table(
      'busy',
      ['allocate, us', 'minimum', 'free, us', 'minimum', 'waited', 'waited', 'busy, ms'],
      ({ allocate, free, busy, waitingAllocations, waitingFrees, of }) => [
        ...both(allocate),
        ...both(free),
        `${waitingAllocations} of ${of}`,
        `${waitingFrees} of ${of}`,
        formatNumber(busy.median / 1000),
      ],
    ),
    table('sleep', ['sleep, ms/GiB', 'wake', 'without contents', 'wake'], ({ sleepKept, wakeKept, sleepEmpty, wakeEmpty }) =>
      [sleepKept, wakeKept, sleepEmpty, wakeEmpty].map(({ median }) => formatNumber(median)),
    ),
    table('pinned', ['allocate, ms', 'free'], ({ allocate, free }) => [formatNumber(allocate), formatNumber(free)]),
  ].join('\n');
}
