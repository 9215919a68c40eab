/**
 * Random programs in the long form: `npm run prove -- --programs 100000 [--seed S] [--path P]`. Exits with 0 only without a violation. With the
 * seed and the path that a violation was printed with, the program that had it is run again.
 */
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { runnerImport } from 'vite';

const { values } = parseArgs({
  options: { programs: { type: 'string', default: '10000' }, seed: { type: 'string' }, path: { type: 'string' } },
});
const programs = values.path === undefined ? wholeNumber('programs') : 1;
const seed = values.seed === undefined ? Math.trunc(Math.random() * 2 ** 31) : wholeNumber('seed');

Object.assign(process.env, { CISTERN_DEVICE: 'software', CISTERN_SOFTWARE_MEMORY: '1GiB', CISTERN_SOFTWARE_DEVICES: '2' });
const { module } = await runnerImport(fileURLToPath(new URL('prove.ts', import.meta.url)), {
  root: fileURLToPath(new URL('../..', import.meta.url)),
  configFile: false,
  logLevel: 'error',
  // Node 20 does not know `using`.
  oxc: { target: 'node20' },
});

const { isTTY } = process.stderr;
const onProgress = isTTY ? (done) => process.stderr.write(`\r${done} of ${programs} programs`) : undefined;
const proof = await module.prove({ programs, seed, path: values.path, onProgress });
if (isTTY) process.stderr.write('\r\u001b[K');
console.log(module.formatProof(proof, seed));
process.exit(proof.violation === undefined ? 0 : 1);

function wholeNumber(name) {
  const number = Number(values[name]);
  if (Number.isSafeInteger(number) && number > 0) return number;
  console.error(`--${name} must be a whole number above 0, got ${values[name]}`);
  process.exit(2);
}
