// Builds native/test with each fault of native-faults.mjs in turn, in a copy, and runs the case that must find it.
//   --name TEXT    only faults that contain this (may be repeated)
// Exits with 0 only if every fault was found.
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { nativeFaults } from './native-faults.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const folder = join(root, 'build-tests', 'native-mutants');
const { values } = parseArgs({ options: { name: { type: 'string', multiple: true } } });

function run(command, args) {
  const { status, error, stdout, stderr } = spawnSync(command, args, { encoding: 'utf8', timeout: 300_000, maxBuffer: 2 ** 26 });
  return { isOk: error === undefined && status === 0, output: `${stdout}${stderr}` };
}

function build() {
  const { isOk, output } = run('cmake', ['--build', join(folder, 'build'), '--parallel', '2']);
  if (!isOk) throw new Error(`the native tests do not compile:\n${output}`);
}

const findsNothing = (test) => run(join(folder, 'build', 'software_device_test'), ['--only', test]).isOk;

mkdirSync(folder, { recursive: true });
cpSync(join(root, 'native'), join(folder, 'native'), { recursive: true, preserveTimestamps: true });
run('cmake', ['-S', join(folder, 'native/test'), '-B', join(folder, 'build')]);
build();
let survivors = 0;
for (const [file, all] of Object.entries(nativeFaults)) {
  const source = readFileSync(join(root, file), 'utf8');
  const faults = all.filter(({ fault }) => values.name === undefined || values.name.some((name) => fault.includes(name)));
  for (const { from, test } of faults) {
    if (source.split(from).length !== 2) throw new Error(`${file} does not have exactly one ${JSON.stringify(from)}`);
    if (!findsNothing(test)) throw new Error(`without a fault, the case “${test}” fails or does not exist`);
  }
  for (const { fault, from, to, test } of faults) {
    writeFileSync(
      join(folder, file),
      source.replace(from, () => to),
    );
    build();
    const hasSurvived = findsNothing(test);
    survivors += hasSurvived ? 1 : 0;
    console.log(`${hasSurvived ? 'SURVIVED' : '  killed'} ${file}: ${fault}`);
  }
  writeFileSync(join(folder, file), source);
}
console.log(`${survivors} survived`);
process.exit(survivors === 0 ? 0 : 1);
