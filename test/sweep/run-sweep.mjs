/**
 * The whole fault sweep, or only that of the scenarios with one of the texts in their names:
 * `npm run sweep -- [--scenario TEXT]… [--save]`. Prints a table, and exits with 0 only if nothing leaked,
 * crashed or went wrong otherwise. The trials run in separate processes; one that ends early is a crash, and
 * the next continues after that scenario. `--save` enters the sums in docs/proof.md.
 */
import { spawn } from 'node:child_process';
import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { saveFigures, today } from '../../scripts/proof-figures.mjs';
import { deviceUnderTest } from '../support/device-under-test.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
/** A trial takes milliseconds. */
const longestTrialMilliseconds = 60_000;
const columns = ['scenario', 'trials', 'failed', 'errors', 'recovered', 'leaks', 'stranded', 'faults', 'crashes'];

const { values } = parseArgs({
  options: {
    scenario: { type: 'string', multiple: true, default: [''] },
    from: { type: 'string' },
    save: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  console.log(
    `usage: npm run sweep -- [options]

Makes each call of the driver fail in turn, in every scenario.

  --scenario TEXT  only scenarios with this in their names (may be repeated)
  --save           enters the sums in docs/proof.md`,
  );
  process.exit();
}
if (values.from === undefined) await main(values.scenario, values.save);
else await makeTrials(Number(values.from), values.scenario);

async function makeTrials(from, filters) {
  const { runnerImport } = await import('vite');
  const { module } = await runnerImport(fileURLToPath(new URL('sweep-process.ts', import.meta.url)), {
    root,
    configFile: false,
    logLevel: 'error',
    // This version of Node does not support `using`.
    oxc: { target: 'node20' },
  });
  // Written at once, so that nothing is lost if the process crashes.
  await module.sweepAll(from, filters, (message) => writeSync(1, `${JSON.stringify(message)}\n`));
  process.exit(0);
}

async function main(filters, save) {
  const started = performance.now();
  const results = [];
  for (let from = 0; from !== undefined; from = await sweepFrom(from, filters, results));
  if (results.length === 0) throw new Error(`no scenario has ${filters.join(', nor ')} in its name`);
  printTable(results);
  const problems = results.flatMap(({ scenario, problems }) => problems.map((problem) => `${scenario}: ${problem}`));
  for (const problem of problems) console.log(problem);
  const sum = (key) => results.reduce((total, result) => total + result[key], 0);
  const seconds = ((performance.now() - started) / 1000).toFixed(0);
  const [errors, recoveries, pairs] = [sum('errors'), sum('recoveries'), sum('seconds')];
  if (save) {
    const [trials, failed] = [errors + recoveries + sum('untouched'), errors + recoveries + pairs];
    const found = { leaks: sum('leaks'), stranded: sum('stranded'), faults: problems.length, crashes: sum('crashes') };
    const counts = { scenarios: results.length, trials, 'calls failed': failed, errors, recovered: recoveries };
    saveFigures('sweep', [{ 'run on': [today(), ...filters].filter((text) => text !== '').join(', '), ...counts, ...found, seconds }]);
  }
  console.log(
    `\n${results.length} scenarios, ${errors + recoveries + sum('untouched')} trials, ${errors + recoveries + pairs} calls failed;`,
  );
  console.log(`${errors} errors, ${recoveries} recoveries, with two calls failing in ${pairs} of them;`);
  console.log(
    `${sum('leaks')} leaks, ${sum('stranded')} stranded after two, ${sum('crashes')} crashes, ${problems.length} faults in all, in ${seconds} s`,
  );
  process.exit(problems.length === 0 ? 0 : 1);
}

/** Sweeps from one scenario on. Returns where to continue after a crash. */
async function sweepFrom(from, filters, results) {
  const script = fileURLToPath(import.meta.url);
  const child = spawn(process.execPath, ['--no-warnings', script, `--from=${from}`, ...filters.map((text) => `--scenario=${text}`)], {
    env: { ...process.env, ...deviceUnderTest },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let errorText = '';
  child.stderr.on('data', (text) => {
    errorText = `${errorText}${text}`.slice(-2000);
  });
  const closed = new Promise((resolve) => {
    child.once('close', (status, signal) => resolve(signal ?? status));
  });
  let trial;
  let isOver = false;
  let timer = setTimeout(() => {}, 0);
  for await (const line of createInterface({ input: child.stdout })) {
    clearTimeout(timer);
    timer = setTimeout(() => child.kill('SIGKILL'), longestTrialMilliseconds);
    const message = JSON.parse(line);
    if (message.kind === 'trial') trial = message;
    else if (message.kind === 'end') isOver = true;
    else {
      results.push({ ...message.result, crashes: 0 });
      process.stderr.write(`\r${results.length} scenarios`);
    }
  }
  clearTimeout(timer);
  const end = await closed;
  process.stderr.write('\r\u001b[K');
  if (isOver && end === 0) return undefined;
  if (trial === undefined) throw new Error(`the sweep does not begin: ${errorText}`);
  const { scenario, fault, index } = trial;
  const problems = [`${fault}: the process ends (${end}); ${errorText}`];
  results.push({ scenario, errors: 0, recoveries: 0, seconds: 0, untouched: 0, leaks: 0, stranded: 0, crashes: 1, problems });
  return index + 1;
}

function printTable(results) {
  const rows = results.map(({ scenario, errors, recoveries, seconds, untouched, leaks, stranded, problems, crashes }) => {
    const failed = errors + recoveries;
    return [scenario, failed + untouched, failed + seconds, errors, recoveries, leaks, stranded, problems.length, crashes].map(String);
  });
  const widths = columns.map((name, i) => Math.max(name.length, ...rows.map((row) => row[i].length)));
  const format = (row) => row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join('  ');
  console.log([format(columns), ...rows.map(format)].join('\n'));
}
