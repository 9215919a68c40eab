/**
 * Fuzzing without libFuzzer, where clang is missing, for the targets that mutate by themselves: node
 * mutate.mjs TARGET SECONDS SEED FOLDER. Ends with 1 at a finding, whose input is in the folder: one that is
 * mishandled, one that takes a minute of CPU time (this process is then ended from outside), or too much memory.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

const mostMilliseconds = 60_000;
const mostResidentBytes = 3 * 2 ** 30;

if (isMainThread) supervise();
else await mutate();

/** A worker mutates, because only another thread can end work that does not end. */
function supervise() {
  const [target, seconds, seed, folder] = process.argv.slice(2);
  const worker = new Worker(fileURLToPath(import.meta.url), { workerData: { target, seconds: Number(seconds), seed: Number(seed) } });
  let [count, input, slowest] = [0, undefined, 0];
  let began = performance.now();
  const fail = (why) => {
    mkdirSync(folder, { recursive: true });
    const file = join(folder, `seed-${seed}-input-${count}`);
    if (input !== undefined) writeFileSync(file, input);
    console.error(`FINDING ${why}\n${file}`);
    process.exit(1);
  };
  worker.on('message', (next) => {
    slowest = Math.max(slowest, performance.now() - began);
    began = performance.now();
    if (next === undefined) {
      console.log(
        `${count} inputs, the slowest ${slowest.toFixed(0)} ms, at most ${(process.resourceUsage().maxRSS / 1024).toFixed(0)} MiB`,
      );
      process.exit(0);
    }
    count++;
    input = next;
  });
  worker.on('error', (error) => fail(error.stack));
  setInterval(() => {
    if (performance.now() - began > mostMilliseconds) fail('an input takes a minute');
    if (process.memoryUsage.rss() > mostResidentBytes) fail('an input takes 3 GiB');
  }, 250);
}

async function mutate() {
  const { target, seconds, seed } = workerData;
  const { runnerImport } = await import('vite');
  const load = async (name) =>
    (
      await runnerImport(fileURLToPath(new URL(`${name}.ts`, import.meta.url)), {
        root: fileURLToPath(new URL('../..', import.meta.url)),
        configFile: false,
        logLevel: 'error',
        oxc: { target: 'node20' },
      })
    ).module;
  const [{ run, anyInput }, { ByteNumbers }] = [await load(target), await load('byte-numbers')];
  const numbers = new ByteNumbers(Buffer.from(String(seed)));
  for (const end = performance.now() + seconds * 1000; performance.now() < end; ) {
    const input = anyInput(numbers);
    parentPort.postMessage(input);
    await run(input);
  }
  parentPort.postMessage(undefined);
}
