// Builds native code with each fault of native-faults.mjs and native-graph-faults.mjs in turn, in a copy, and runs the tests
// that must find it: a case of native/test; or a test of test/ over the copy's addon, and over dist/, so `npm run build`
// comes first.
//   --name TEXT    only faults that contain this (may be repeated)
//   --file TEXT    only faults of files whose path contains this (may be repeated)
// Exits with 0 only if every fault was found.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { addonFaults, nativeFaults } from './native-faults.mjs';
import { softwareGraphFaults, strictGraphFaults } from './native-graph-faults.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const folder = join(root, 'build-tests', 'native-mutants');
const { values } = parseArgs({ options: { name: { type: 'string', multiple: true }, file: { type: 'string', multiple: true } } });

function run(command, args, env = {}, timeout = 300_000) {
  const options = { cwd: root, env: { ...process.env, ...env }, encoding: 'utf8', timeout, maxBuffer: 2 ** 26 };
  const { status, error, stdout, stderr } = spawnSync(command, args, options);
  return { isOk: error === undefined && status === 0, output: `${stdout}${stderr}` };
}

function cmake(...args) {
  const { isOk, output } = run('cmake', args, {}, 1_800_000);
  if (!isOk) throw new Error(`the native code does not compile:\n${output}`);
}

/** How faults are looked for by a program of native/test. No case takes longer than seconds. */
const ofProgram = (target, faults) => ({
  faults,
  target,
  passes: ({ test }) => run(join(folder, 'build/Release', target), ['--only', test], {}, 60_000).isOk,
});
const kinds = [
  ofProgram('software_device_test', nativeFaults),
  ofProgram('software_device_test', softwareGraphFaults),
  ofProgram('strict_driver_test', strictGraphFaults),
  // In the addon, by a test of test/.
  {
    faults: addonFaults,
    target: 'addon',
    passes({ file, test }) {
      const vitest = join(root, 'node_modules/vitest/vitest.mjs');
      const args = ['run', '--project', 'unit', '--project', 'gc', '--reporter', 'json', file, '-t', test];
      const { isOk, output } = run(process.execPath, [vitest, ...args], { CISTERN_ADDON: join(folder, 'build/Release/cistern.node') });
      return isOk && !output.includes('"numPassedTests":0,');
    },
  },
];

mkdirSync(folder, { recursive: true });
for (const part of ['CMakeLists.txt', 'package.json', 'include', 'native', 'bench/native', 'examples/addons'])
  cpSync(join(root, part), join(folder, part), { recursive: true, preserveTimestamps: true });
if (!existsSync(join(folder, 'node_modules'))) symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'), 'junction');
// A fault is in one file, which is compiled by itself; better code takes the compiler longer than it saves the tests.
cmake('-S', folder, '-B', join(folder, 'build'), '-DCMAKE_UNITY_BUILD=OFF', '-DCMAKE_CXX_FLAGS_RELEASE=-O1');
const hasOneOf = (text, parts) => parts === undefined || parts.some((part) => text.includes(part));
const chosenOf = ([file, all]) => (hasOneOf(file, values.file) ? all.filter(({ fault }) => hasOneOf(fault, values.name)) : []);
for (const [file, all] of kinds.flatMap(({ faults }) => Object.entries(faults))) {
  const source = readFileSync(join(root, file), 'utf8');
  for (const { from } of all)
    if (source.split(from).length !== 2) throw new Error(`${file} does not have exactly one ${JSON.stringify(from)}`);
}
let survivors = 0;
for (const { faults, target, passes } of kinds) {
  if (!Object.entries(faults).some((entry) => chosenOf(entry).length > 0)) continue;
  const build = () => cmake('--build', join(folder, 'build'), '--target', target, '--parallel', String(availableParallelism()));
  build();
  for (const [file, all] of Object.entries(faults)) {
    const source = readFileSync(join(root, file), 'utf8');
    const chosen = chosenOf([file, all]);
    for (const each of chosen) if (!passes(each)) throw new Error(`without a fault, “${each.test}” fails or does not exist`);
    for (const each of chosen) {
      writeFileSync(
        join(folder, file),
        source.replace(each.from, () => each.to),
      );
      build();
      const hasSurvived = passes(each);
      survivors += hasSurvived ? 1 : 0;
      console.log(`${hasSurvived ? 'SURVIVED' : '  killed'} ${file}: ${each.fault}`);
    }
    writeFileSync(join(folder, file), source);
    if (chosen.length > 0) build();
  }
}
console.log(`${survivors} survived`);
process.exit(survivors === 0 ? 0 : 1);
