/**
 * The process that runs the rounds. Its arguments: minutes, seed, and the file for the outcome as JSON.
 */
import { writeFileSync } from 'node:fs';
import { SingleBar } from 'cli-progress';
import Table from 'cli-table3';
import { formatBytes } from '../../src/index.js';
import { minimumRounds } from './growth.js';
import { type Soaked, soak } from './soak.js';

const [minutes = '', seed = '', json = ''] = process.argv.slice(2);
const milliseconds = Number(minutes) * 60_000;
const started = performance.now();
const { isTTY } = process.stderr;
const bar = new SingleBar({
  format: 'stress [{bar}] {percentage}% {detail}',
  stream: process.stderr,
  clearOnComplete: true,
  hideCursor: false,
});
if (isTTY) bar.start(milliseconds, 0, { detail: '' });

const soaked = await soak({
  seed: Number(seed),
  goesOn: () => performance.now() - started < milliseconds,
  onRound: ({ rounds, measures }) => {
    const resident = formatBytes(measures.at(-1)?.residentBytes ?? 0);
    if (isTTY) bar.update(Math.min(performance.now() - started, milliseconds), { detail: `${rounds} rounds, ${resident}` });
  },
});
if (isTTY) bar.stop();
writeFileSync(json, `${JSON.stringify(soaked, undefined, 1)}\n`);
console.log(tableOf(soaked));
for (const violation of soaked.violations) console.log(violation);
if (soaked.rounds < minimumRounds) console.log(`growth is reported only from ${minimumRounds} rounds on`);
console.log(`${soaked.violations.length} violations, seed ${seed}`);
process.exit(soaked.violations.length === 0 ? 0 : 1);

function tableOf({
  rounds,
  checkedRounds,
  programs,
  scenarios,
  traffic,
  churned,
  workers,
  seconds,
  measures,
  peakResidentBytes,
}: Soaked): string {
  const first = measures.at(Math.ceil(measures.length / 3));
  const last = measures.at(-1);
  const bytes = (pick: (each: (typeof measures)[number]) => number) =>
    `${formatBytes(first === undefined ? 0 : pick(first))} to ${formatBytes(last === undefined ? 0 : pick(last))}`;
  const table = new Table({
    colAligns: ['left', 'right'],
    style: { head: [], border: [] },
    chars: { mid: '', 'left-mid': '', 'mid-mid': '', 'right-mid': '' },
  });
  const rows: Record<string, number | string> = {
    seconds: Math.round(seconds),
    rounds,
    'rounds of traffic with the order checker': checkedRounds,
    'random programs': programs.programs,
    'their steps': programs.steps,
    'scenarios of the fault sweep': scenarios,
    'operations of the traffic': traffic.operations,
    'objects made and ended at once': churned,
    'copies compared': traffic.comparisons,
    'buffers left to the collector': traffic.dropped,
    'host functions': programs.callbacks + traffic.hostFunctions,
    'out of memory': programs.refusals + traffic.refusals,
    workers,
    'resident memory at its peak': formatBytes(peakResidentBytes),
    'resident memory after the first third, at the end': bytes(({ residentBytes }) => residentBytes),
    'heap of V8 then': bytes(({ heapBytes }) => heapBytes),
  };
  for (const [name, value] of Object.entries(rows)) table.push([name, typeof value === 'number' ? value.toLocaleString('en-US') : value]);
  return table.toString();
}
