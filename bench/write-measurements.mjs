// Writes the tables of docs/measurements.md that come from the newest results of a benchmark in bench/results/:
// `node bench/write-measurements.mjs`, after `npm run bench -- pool --save`. A test compares the two.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';
import { markdownTable } from 'markdown-table';

const page = new URL('../docs/measurements.md', import.meta.url);
const folder = new URL('results/', import.meta.url);

/** The newest saved run on the software device that has a benchmark. */
function newest(benchmark) {
  const runs = readdirSync(folder)
    .filter((name) => name.includes('-software') && name.endsWith('.json'))
    .map((name) => JSON.parse(readFileSync(new URL(name, folder), 'utf8')))
    .filter(({ results }) => results?.[benchmark] !== undefined);
  return runs.sort((a, b) => (a.started < b.started ? -1 : 1)).at(-1);
}

const nanoseconds = (value) => (value < 10 ? value.toFixed(1) : String(Math.round(value)));

const writers = {
  pool({ rows }) {
    const traces = [...new Set(rows.map(({ trace }) => trace))];
    const cells = traces.map((trace) => {
      const of = (events) => rows.find((row) => row.trace === trace && row.streams === 'single' && row.events === events);
      const { nullResource, nullNative } = of('deferred');
      const taken = ['eager', 'deferred', 'off'].map((events) => nanoseconds(of(events).nanosecondsPerOperation.minimum));
      return [trace, ...taken, nanoseconds(nullResource.minimum), nanoseconds(nullNative.minimum)];
    });
    const columns = ['trace', "pool, `'eager'`", "pool, `'deferred'`", "pool, `'off'`", 'a resource that does nothing', 'the same in C++'];
    return markdownTable([columns, ...cells], { align: [null, 'r', 'r', 'r', 'r', 'r'], alignDelimiters: false });
  },
  idle({ rows }) {
    const cells = rows.map(({ trace, option, heldBytes, peakBytes, driverCalls, nanosecondsPerPair }) => [
      trace,
      option === 'with' ? '100' : 'no',
      mebibytes(heldBytes),
      mebibytes(peakBytes),
      [...new Set([Math.min(...driverCalls), Math.max(...driverCalls)])].join(' to '),
      nanosecondsPerPair.minimum.toFixed(1),
    ]);
    const columns = ['trace', '`idleMilliseconds`', 'held, MiB', 'at the peak', 'calls that allocate or free', 'ns for a hit and its free'];
    return markdownTable([columns, ...cells], { align: [null, 'r', 'r', 'r', 'r', 'r'], alignDelimiters: false });
  },
  restart({ rows }) {
    const cells = rows.map(({ time, bare, inPlace, ratio, leastRatio }) => [
      time === 'cpu' ? 'CPU time' : 'time',
      ...[bare.median, bare.minimum, inPlace.median, inPlace.minimum].map((value) => value.toFixed(0)),
      ratio.toFixed(2),
      leastRatio.toFixed(2),
    ]);
    const columns = ['ms', 'without, median', 'minimum', 'in place, median', 'minimum', 'ratio of medians', 'of minima'];
    return markdownTable([columns, ...cells], { align: [null, 'r', 'r', 'r', 'r', 'r', 'r'], alignDelimiters: false });
  },
  outside({ rows }) {
    const cells = rows.map(({ calls, stacks, alone, added }) => [
      `\`${calls}\``,
      stacks === 'none' ? 'none' : 'each',
      ...[alone.median, alone.minimum, added.median, added.minimum].map((value) => nanoseconds(Math.max(0, value))),
    ]);
    const columns = ['call', 'stacks', 'alone, median', 'minimum', 'added, medians', 'minima'];
    return markdownTable([columns, ...cells], { align: [null, null, 'r', 'r', 'r', 'r'], alignDelimiters: false });
  },
};

function mebibytes(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)].map((bytes) => Math.round(bytes / 2 ** 20).toLocaleString('en'));
  return least === most ? least : `${least} to ${most}`;
}

/** @returns {string} the page with the tables that the newest results give */
export function pageWithResults() {
  return readFileSync(page, 'utf8').replaceAll(
    /(<!-- results: (\w+) -->\n\n)(?:Measured .*\n\n)?(?:\|.*\n)*/g,
    (_all, marker, benchmark) => {
      const { started, environment, rounds, results } = newest(benchmark);
      const { cpu, cores, node, loadAverageBefore, commit } = environment;
      const when = `Measured on ${started.slice(0, 10)}, commit ${commit.slice(0, 8)}, ${cores} cores of an ${cpu}, Node ${node}, load ${loadAverageBefore}, ${rounds} processes.`;
      return `${marker}${when}\n\n${writers[benchmark](results[benchmark])}\n`;
    },
  );
}

if (argv[1] === fileURLToPath(import.meta.url)) writeFileSync(page, pageWithResults());
