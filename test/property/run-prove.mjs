/**
 * Random programs in the long form: `npm run prove -- --programs 100000 [--seed S] [--path P]`. Exits with 0 only without a violation. With the
 * seed and the path that a violation was printed with, the program that had it is run again.
 */
import { rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { build } from 'vite';
import { deviceUnderTest } from '../support/device-under-test.mjs';

const { values } = parseArgs({
  options: { programs: { type: 'string', default: '10000' }, seed: { type: 'string' }, path: { type: 'string' } },
});
const programs = values.path === undefined ? wholeNumber('programs') : 1;
const seed = values.seed === undefined ? Math.trunc(Math.random() * 2 ** 31) : wholeNumber('seed');

Object.assign(process.env, deviceUnderTest);
// One file, in which V8 can inline what is imported: run module by module, it takes more than twice the time.
// As deep below the root as a module of `src/driver`, which looks for the addon from there.
const outDir = `build/prove-${process.pid}`;
const root = fileURLToPath(new URL('../..', import.meta.url));
const input = fileURLToPath(new URL('prove.ts', import.meta.url));
await build({ root, configFile: false, logLevel: 'error', build: { ssr: input, outDir, target: 'node20', minify: false } });
const { formatProof, prove } = await import(`../../${outDir}/prove.js`).finally(() => rmSync(`${root}${outDir}`, { recursive: true }));

const { isTTY } = process.stderr;
const onProgress = isTTY ? (done) => process.stderr.write(`\r${done} of ${programs} programs`) : undefined;
const proof = await prove({ programs, seed, path: values.path, onProgress });
if (isTTY) process.stderr.write('\r\u001b[K');
console.log(formatProof(proof, seed));
process.exit(proof.violation === undefined ? 0 : 1);

function wholeNumber(name) {
  const number = Number(values[name]);
  if (Number.isSafeInteger(number) && number >= 0 && values[name] !== '') return number;
  console.error(`--${name} must be a whole number, got ${values[name]}`);
  process.exit(2);
}
