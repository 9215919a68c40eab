/**
 * The process in which one target is fuzzed, started by run-fuzz.mjs: node fuzz-process.mjs FUZZER
 * BUNDLE COUNTERS ARGUMENTS…
 *
 * With `--replay TARGET FILES…` it runs the target on those inputs only, without libFuzzer, with
 * the installed addon.
 */
import { readFileSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';

const [first, second, third, ...rest] = process.argv.slice(2);
if (first === '--replay') await replay(second, [third, ...rest]);
else await fuzz(first, second, Number(third), rest);

async function fuzz(fuzzerPath, bundle, counterCount, libFuzzerArguments) {
  const fuzzer = createRequire(import.meta.url)(fuzzerPath);
  globalThis.branchCounters = new Uint8Array(counterCount);
  const target = await import(pathToFileURL(bundle).href);
  const report = (error) => {
    writeSync(2, `\nFINDING ${error instanceof Error ? error.stack : error}\n${target.describe?.() ?? ''}\n`);
    fuzzer.finish(false);
  };
  process.on('uncaughtException', (error) => target.isExpected?.(error) || report(error));
  // Loads everything lazy before libFuzzer asks what there is to cover.
  await target.run(new Uint8Array(0));
  // The command with which libFuzzer starts itself when it merges corpora.
  const command = [process.execPath, ...process.argv.slice(1, 5)].join(' ');
  fuzzer.run([command, ...libFuzzerArguments], globalThis.branchCounters, async (bytes) => {
    try {
      await target.run(bytes);
    } catch (error) {
      report(error);
      return;
    }
    fuzzer.finish(true);
  });
}

async function replay(name, files) {
  const { runnerImport } = await import('vite');
  const { module: target } = await runnerImport(fileURLToPath(new URL(`${name}.ts`, import.meta.url)), {
    root: fileURLToPath(new URL('../..', import.meta.url)),
    configFile: false,
    logLevel: 'error',
    // This version of Node does not support `using`.
    oxc: { target: 'node20' },
  });
  process.on('uncaughtException', (error) => {
    if (target.isExpected?.(error)) return;
    console.error(error);
    process.exit(1);
  });
  for (const file of files) {
    try {
      await target.run(readFileSync(file));
    } catch (error) {
      console.error(`${file}: ${error.stack}\n${target.describe?.() ?? ''}`);
      process.exit(1);
    }
  }
  console.log(`${files.length} inputs passed`);
  process.exit(0);
}
