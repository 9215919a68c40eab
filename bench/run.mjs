/**
 * Runs the benchmarks and prints their figures next to the limits of baseline.json: `npm run bench
 * -- --help`. Only an error makes it fail; no time does.
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import * as asynchronous from './benchmarks/async.mjs';
import * as buffers from './benchmarks/buffers.mjs';
import * as calls from './benchmarks/calls.mjs';
import * as capacity from './benchmarks/capacity.mjs';
import * as crowds from './benchmarks/crowds.mjs';
import * as device from './benchmarks/device.mjs';
import * as events from './benchmarks/events.mjs';
import * as graphs from './benchmarks/graphs.mjs';
import * as holes from './benchmarks/holes.mjs';
import * as idle from './benchmarks/idle.mjs';
import * as layers from './benchmarks/layers.mjs';
import * as managed from './benchmarks/managed.mjs';
import * as monotonic from './benchmarks/monotonic.mjs';
import * as outside from './benchmarks/outside.mjs';
import * as parse from './benchmarks/parse.mjs';
import * as peers from './benchmarks/peers.mjs';
import * as planned from './benchmarks/planned.mjs';
import * as pool from './benchmarks/pool.mjs';
import * as reports from './benchmarks/report.mjs';
import * as restart from './benchmarks/restart.mjs';
import * as serving from './benchmarks/serving.mjs';
import * as start from './benchmarks/start.mjs';
import * as streams from './benchmarks/streams.mjs';
import * as workers from './benchmarks/workers.mjs';
import { loadCistern, root } from './support/cistern.mjs';
import { Context } from './support/context.mjs';
import { environment } from './support/environment.mjs';
import { findTraces, traceNames } from './support/traces.mjs';

const benchmarks = [
  pool,
  capacity,
  holes,
  asynchronous,
  calls,
  events,
  streams,
  workers,
  managed,
  layers,
  planned,
  monotonic,
  buffers,
  graphs,
  serving,
  crowds,
  idle,
  restart,
  outside,
  parse,
  reports,
  start,
  device,
  peers,
];
let lastProgress = 0;
const names = benchmarks.map(({ name }) => name);

const help = `usage: npm run bench -- [benchmark...] [options]

Benchmarks: ${names.join(', ')} (default: all but device and peers)

  --trace NAME   only this trace; repeatable. ${traceNames.join(', ')}
  --repeat N     samples per process (default 9)
  --rounds N     fresh processes per subject, in turn (default 3)
  --quick        three samples of one process, unless told otherwise; no grid of capacities
  --section NAME only this section of peers; repeatable. ${peers.sections.join(', ')}
  --json FILE    write everything to a file
  --save         write everything to bench/results/DATE-DEVICE.json
  --dist FOLDER  measure another build than dist
  --device NAME  software, the default, or cuda
`;

try {
  await main();
} catch (error) {
  const message = error instanceof Error ? [error.message, error.cause].filter(Boolean).join('\n') : String(error);
  process.stderr.write(`bench: ${message}\n`);
  process.exitCode = 1;
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      trace: { type: 'string', multiple: true },
      repeat: { type: 'string' },
      rounds: { type: 'string' },
      quick: { type: 'boolean' },
      section: { type: 'string', multiple: true },
      json: { type: 'string' },
      save: { type: 'boolean' },
      dist: { type: 'string' },
      device: { type: 'string' },
      help: { type: 'boolean' },
    },
  });
  if (values.help === true) {
    process.stdout.write(help);
    return;
  }
  requireKnown(positionals, names, 'benchmark');
  requireKnown(values.trace ?? [], traceNames, 'trace');
  requireKnown(values.section ?? [], peers.sections, 'section');
  const isQuick = values.quick === true;
  const repeat = positiveInteger(values.repeat, '--repeat') ?? (isQuick ? 3 : 9);
  const rounds = positiveInteger(values.rounds, '--rounds') ?? (isQuick ? 1 : 3);
  if (values.dist !== undefined) process.env['CISTERN_BENCH_DIST'] = resolve(values.dist);
  if (values.device !== undefined) {
    requireKnown([values.device], ['software', 'cuda'], 'device');
    process.env['CISTERN_BENCH_DEVICE'] = values.device;
  }

  const cistern = await loadCistern();
  /** @type {string[]} */
  const skipped = [];
  const skip = (/** @type {string} */ reason) => {
    skipped.push(reason);
    process.stdout.write(`skipped: ${reason}\n`);
  };
  const baseline = JSON.parse(readFileSync(join(root, 'bench/baseline.json'), 'utf8'));
  const chosen = benchmarks.filter((each) =>
    positionals.length === 0 ? each !== peers && each !== device : positionals.includes(each.name),
  );
  const wantedTraces = values.trace ?? tracesFor(chosen.map(({ name }) => name));
  const traces = findTraces(wantedTraces, skip);
  const context = new Context({ cistern, baseline, traces, repeat, rounds, isQuick, sections: values.section, skip, progress });
  try {
    const circumstances = environment(cistern, context.native);
    const started = new Date();
    process.stdout.write(
      `${circumstances.cpu}, ${circumstances.cores} cores, Node ${circumstances.node}, ${circumstances.device}, ` +
        `commit ${circumstances.commit.slice(0, 10)}${circumstances.uncommittedChanges ? ' with changes' : ''}, ` +
        `load ${circumstances.loadAverageBefore.toFixed(1)}; ${repeat} samples in each of ${rounds} processes per subject\n`,
    );
    /** @type {Record<string, { title: string, rows: readonly object[] }>} */
    const results = {};
    for (const benchmark of chosen) {
      const rows = /** @type {any} */ (await benchmark.run(context));
      progress('');
      process.stdout.write(`\n${benchmark.name}: ${benchmark.title}\n\n${benchmark.format(rows, context)}`);
      results[benchmark.name] = { title: benchmark.title, rows };
    }
    const report = { started: started.toISOString(), environment: circumstances, repeat, rounds, skipped, baseline, results };
    const text = `${JSON.stringify(report, undefined, 2)}\n`;
    if (values.json !== undefined) save(values.json, text);
    if (values.save === true)
      save(join(root, 'bench/results', `${started.toISOString().slice(0, 10)}-${fileNameOf(circumstances)}.json`), text);
  } finally {
    progress('');
    context[Symbol.dispose]();
  }
}

/** The traces that the chosen benchmarks need. @param {readonly string[]} chosen */
function tracesFor(chosen) {
  if (chosen.some((name) => ['pool', 'capacity', 'events', 'peers'].includes(name))) return traceNames;
  return traceNames.filter(
    (name) =>
      (name === 'dl-training' && chosen.includes('layers')) ||
      (name === 'arrow-etl' && (chosen.includes('streams') || chosen.includes('workers'))) ||
      (planned.traces.includes(name) && chosen.includes('planned')) ||
      (idle.traces.includes(name) && chosen.includes('idle')) ||
      (graphs.traces.includes(name) && chosen.includes('graphs')) ||
      (serving.traces.includes(name) && chosen.includes('serving')) ||
      (parse.traces.includes(name) && chosen.includes('parse')) ||
      (reports.traces.includes(name) && chosen.includes('report')),
  );
}

/** The device's name as a part of a file's name. @param {{ device: string, backend: string }} circumstances */
function fileNameOf({ device: deviceName, backend }) {
  return backend === 'software' ? backend : deviceName.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-');
}

/** Shows the current measurement on a terminal; elsewhere a line now and then, since some take minutes. @param {string} step */
function progress(step) {
  if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${step}`);
  else if (step !== '' && performance.now() - lastProgress > 10_000) {
    process.stderr.write(`${step}\n`);
    lastProgress = performance.now();
  }
}

/** @param {string} file @param {string} text */
function save(file, text) {
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
  process.stdout.write(`\nwritten to ${file}\n`);
}

/** @param {readonly string[]} given @param {readonly string[]} known @param {string} what */
function requireKnown(given, known, what) {
  const wrong = given.find((name) => !known.includes(name));
  if (wrong !== undefined) throw new Error(`there is no ${what} "${wrong}"; there are ${known.join(', ')}`);
}

/** @param {string | undefined} text @param {string} option */
function positiveInteger(text, option) {
  if (text === undefined) return undefined;
  if (!/^[1-9]\d{0,5}$/.test(text)) throw new Error(`${option} takes an integer from 1, got "${text}"`);
  return Number(text);
}
