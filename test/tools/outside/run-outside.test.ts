import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { EventKind } from '../../../src/tools/formats/event-columns.js';
import { readRecordedRun } from '../../../src/tools/formats/index.js';
import { prepareOutsideRun } from '../../../src/tools/outside/run-outside.js';
import { runCistern } from '../cli/run-cistern.js';
import { deviceBytesOfSteps, inFolder, outside, outsideEnvironment, outsideProgram, readOutside, runOutside } from './outside.js';
import { tinyModel } from './tiny-model.js';

/** Another Node, whose V8 differs: OUTSIDE_NODE=/path/to/node. */
const node = process.env['OUTSIDE_NODE'] ?? process.execPath;
/** In an empty folder: npm install --ignore-scripts onnxruntime-node, 291 MB; OUTSIDE_ORT=…/node_modules/onnxruntime-node */
const ort = process.env['OUTSIDE_ORT'] ?? installed('onnxruntime-node');
const llama = process.env['OUTSIDE_LLAMA'];
const koffi = process.env['OUTSIDE_KOFFI'] ?? installed('koffi');
const main = fileURLToPath(new URL('../../../dist/tools/cli/main.js', import.meta.url));
const client = () => outsideProgram('client');

function installed(name: string): string | undefined {
  try {
    return createRequire(import.meta.url).resolve(name);
  } catch {
    return undefined;
  }
}

describe.skipIf(outside.path === undefined)('cistern run', () => {
  test('records what is allocated in every way to the driver', () =>
    inFolder(async (folder) => {
      const file = join(folder, 'run.cistern');
      const { code, stdout, stderr } = await runOutside(file, [], [client(), 'ways']);
      expect([code, stdout]).toEqual([0, '0\n'.repeat(18)]);
      expect(stderr).toMatch(/^note: process \d+: 9 allocations, 2\.93 KiB of device memory at the peak; recorded in /);
      const { run, allocations } = await readOutside(file);
      expect(run.damage).toBeUndefined();
      // By dlsym, cuGetProcAddress with either flag, its old form, and linking.
      expect(allocations.map(({ bytes, stream, label }) => [bytes, stream, label])).toEqual([
        [1000, 'host', ''],
        [2000, '0x1', 'cuMemAllocAsync'],
        [1001, 'host', ''],
        [2001, '0x1', 'cuMemAllocAsync'],
        [1002, 'host', ''],
        [2002, '0x2', 'cuMemAllocAsync'],
        [1003, 'host', ''],
        [2003, '0x1', 'cuMemAllocAsync'],
        [3000, 'host', ''],
      ]);
      expect(new Set(allocations.map(({ layer, isFreed }) => `${layer} ${isFreed}`))).toEqual(new Set(['device 0 true']));
      // A library that links with the driver is told apart from the program.
      expect(allocations.map(({ account }) => account)).toEqual([...Array<string>(8).fill('client'), 'liblinked.so']);
    }));

  test('copies of cudart, one linked statically and one not, are recorded alike', () =>
    inFolder(async (folder) => {
      const file = join(folder, 'run.cistern');
      expect(await runOutside(file, ['-q'], [client(), 'runtimes'])).toMatchObject({ code: 0, stdout: '0\n'.repeat(4), stderr: '' });
      const { allocations } = await readOutside(file);
      expect(allocations.map(({ bytes, account, isFreed }) => [bytes, account, isFreed])).toEqual([
        [1000, 'client', true],
        [2000, 'client', true],
      ]);
      for (const { stack } of allocations) expect(stack).not.toContain('cudart');
    }));

  test('a library that is loaded where another one was unloaded has its own account', () =>
    inFolder(async (folder) => {
      const names = ['libone.so', 'libtwo.so'];
      const libraries = names.map((name) => join(folder, name));
      for (const library of libraries) copyFileSync(outsideProgram('liblinked.so'), library);
      const file = join(folder, 'run.cistern');
      const { code, stdout, stderr } = await runOutside(file, ['-q'], [client(), 'unload', ...libraries]);
      expect([code, stderr]).toEqual([0, '']);
      const lines = stdout.trim().split('\n');
      // Both have been at one address.
      expect(new Set(lines).size).toBeLessThan(lines.length);
      const { allocations } = await readOutside(file);
      expect(allocations.map(({ bytes, account }) => [bytes, account])).toEqual(
        [1, 2, 3, 4, 5, 6].map((bytes) => [bytes, names[(bytes - 1) % 2]]),
      );
    }));

  test('leaves a program that uses no device alone', () =>
    inFolder(async (folder) => {
      const file = join(folder, 'run.cistern');
      writeFileSync(file, 'not touched');
      expect(await runOutside(file, [], [client(), 'none'])).toMatchObject({ code: 7, stdout: '', stderr: '' });
      expect(await runOutside(file, [], ['sh', '-c', 'echo out; echo err >&2; exit 3'])).toMatchObject({
        code: 3,
        stdout: 'out\n',
        stderr: 'err\n',
      });
      expect(readFileSync(file, 'utf8')).toBe('not touched');
      expect(readdirSync(folder)).toEqual(['run.cistern']);
    }));

  test('passes on signals, and says which one ended the program', () =>
    inFolder(async (folder) => {
      const file = join(folder, 'run.cistern');
      const waits = 'trap "exit 9" TERM; echo ready; while :; do sleep 0.05; done';
      const handled = await runOutside(file, [], ['sh', '-c', waits], (child) => child.stdout?.once('data', () => child.kill('SIGTERM')));
      expect(handled.code).toBe(9);
      const killed = await runOutside(file, [], ['sh', '-c', 'kill -9 $$']);
      expect([killed.code, killed.stderr]).toEqual([137, 'sh was ended by SIGKILL\n']);
    }));

  test('says what is wrong with its arguments', () =>
    inFolder(async (folder) => {
      const file = join(folder, 'run.cistern');
      const refused = async (options: readonly string[], program: readonly string[]) => {
        const { code, stderr } = await runOutside(file, options, program);
        expect(code).toBe(2);
        return stderr;
      };
      expect(await refused([], ['./no-such-program'])).toBe('error: ./no-such-program is not a program that was found\n');
      expect(await refused(['--limit', 'lots'], ['true'])).toContain('It must be a size such as 512MiB.');
      expect(await refused(['--limit', '=1GiB'], ['true'])).toContain('NAME=6GiB');
      expect(await refused(['--limit', `${'n'.repeat(116)}=1GiB`], ['true'])).toContain(
        'the name of a limit must have fewer than 116 bytes',
      );
      expect(await refused(['--stacks', 'many'], ['true'])).toContain('It must be a size such as 512MiB.');
    }));

  test('does not replace a log without --force', () =>
    inFolder(async (folder) => {
      const file = join(folder, 'run.cistern');
      await runOutside(file, ['-q'], [client(), 'ways']);
      const before = readFileSync(file);
      expect((await runOutside(file, [], [client(), 'ways'])).stderr).toContain('use --force to replace it');
      expect(readFileSync(file)).toEqual(before);
      expect(await runOutside(file, ['--force', '-q'], [client(), 'ways'])).toMatchObject({ code: 0, stderr: '' });
    }));

  test('a recording that another program still writes is replaced, and that program goes on', () =>
    inFolder(async (folder) => {
      const file = join(folder, 'run.cistern');
      const two = `"$0" threads 3 & sleep 0.5; CISTERN_RUN= "$1" "$2" run -q -f -o "${file}" -- "$0" take 1000 3 > /dev/null; wait $!; echo "ended with $?"`;
      const { stdout, stderr } = await runOutside(file, ['-q'], ['sh', '-c', two, client(), process.execPath, main]);
      expect(stdout).toBe('ended with 0\n');
      expect(stderr).toContain('is not written any further: No such file or directory; the program goes on');
      expect((await readOutside(file)).allocations.map(({ bytes }) => bytes)).toEqual([1000, 1000, 1000]);
    }));

  test('covers the processes that a program starts, each in a file of its own', () =>
    inFolder(async (folder) => {
      const { code } = await runOutside(join(folder, 'run.cistern'), [], [client(), 'fork']);
      expect(code).toBe(0);
      const files = readdirSync(folder).sort();
      expect(files).toHaveLength(3);
      expect(files.join()).toMatch(/^(?:run\.\d+\.cistern,){2}run\.cistern$/);
      const bytes = await Promise.all(
        files.map(async (file) => (await readOutside(join(folder, file))).allocations.map((allocation) => allocation.bytes)),
      );
      expect(bytes.sort()).toEqual([[111111], [333333, 222222], [444444]]);
    }));

  test("a function that neither allocates nor frees is the driver's own", () =>
    inFolder(async (folder) => {
      const { stdout } = await runOutside(join(folder, 'run.cistern'), [], [client(), 'owners']);
      expect(stdout).toBe('libcistern-run.so libcuda.so.1 libcuda.so.1 \n'.repeat(4));
    }));

  test('a form of a function that it does not know goes to the program as it is', () =>
    inFolder(async (folder) => {
      expect(await runOutside(join(folder, 'run.cistern'), [], [client(), 'newer'])).toMatchObject({ stdout: '4711\n', stderr: '' });
    }));

  test('dlsym answers as to its caller', () =>
    inFolder(async (folder) => {
      expect(await runOutside(join(folder, 'run.cistern'), [], [client(), 'next'])).toMatchObject({ code: 0, stderr: '' });
    }));

  test('a process may end while its threads allocate, and its recording is whole', () =>
    inFolder(async (folder) => {
      const file = join(folder, 'run.cistern');
      expect((await runOutside(file, [], [client(), 'threads', '0.3'])).code).toBe(0);
      const { run, allocations } = await readOutside(file);
      // What threads allocate after the process has closed its file may make it grow again.
      expect(run.damage?.isTruncation ?? true).toBe(true);
      expect(allocations.length).toBeGreaterThan(100);
      expect(new Set(allocations.map(({ thread }) => thread)).size).toBe(4);
    }));

  test('a full disk ends the recording and not the program', () =>
    inFolder(async (folder) => {
      const mounted = ['unshare', '-rm', 'sh', '-c', `mount -t tmpfs -o size=${256 * 1024} none ${folder} && exec "$0" "$@"`];
      if (spawnSync(mounted[0] as string, [...mounted.slice(1), 'true']).status !== 0) return;
      const inner = [process.execPath, main, 'run', '-o', join(folder, 'run.cistern')];
      // Within the mount, the recording is converted to a text that can be seen outside.
      const script = [...inner, '--', client(), 'random', '5', '20000'];
      const shell = `"$@" > answers; echo $? >&2; "$0" "${inner[1]}" convert run.cistern /dev/stdout --to rmm-csv | wc -l; wc -l < answers`;
      const { stdout, stderr } = spawnSync(
        mounted[0] as string,
        [...mounted.slice(1), 'sh', '-c', `cd ${folder} && ${shell}`, process.execPath, ...script],
        {
          encoding: 'utf8',
          env: { ...process.env, ...outsideEnvironment(), NO_COLOR: '1' },
        },
      );
      expect(stderr).toContain('run.cistern is not written any further: No space left on device; the program goes on\n');
      expect(stderr).toMatch(/^0$/m);
      const [rows = 0] = stdout.split('\n').map(Number);
      expect(rows).toBeGreaterThan(500);
    }));
});

describe.skipIf(outside.path === undefined)('limits', () => {
  test('what passes the limit is out of memory, and memory is as large as the limit', () =>
    inFolder(async (folder) => {
      const file = join(folder, 'run.cistern');
      const { code, stdout, stderr } = await runOutside(file, ['--limit', '10MiB'], [client(), 'take', String(4 << 20), '3']);
      expect(code).toBe(0);
      const mib = 2 ** 20;
      expect(
        stdout
          .trim()
          .split('\n')
          .map((line) => line.split(' ').map(Number)),
      ).toEqual([
        [0, 6 * mib, 10 * mib, 10 * mib],
        [0, 2 * mib, 10 * mib, 10 * mib],
        [2, 2 * mib, 10 * mib, 10 * mib],
      ]);
      expect(stderr).toContain('2 allocations, 8 MiB of device memory at the peak, 1 refused');
      const { run } = await readOutside(file);
      expect([...run.kinds].filter((kind) => kind === EventKind.failure)).toHaveLength(1);
      expect(run.notes).toEqual(['cistern run refused client 4194304 bytes: the limit is 10485760 bytes, of which 2097152 were left']);
    }));

  test('a refusal by a limit writes what was held at that moment, with the process, the library, and the stacks', () =>
    inFolder(async (folder) => {
      const dumps = () => readdirSync(folder).filter((file) => file.startsWith('out-of-memory-'));
      const file = join(folder, 'run.cistern');
      const take = ['take', String(4 << 20), '4'];
      const shell = `"$0" ${take.join(' ')} > /dev/null`;
      // The child of the program is the one that allocates.
      const { stderr } = await runOutside(file, ['--limit', 'client=10MiB'], ['sh', '-c', `${shell}; true`, client()]);
      const process = /^note: process (\d+):/.exec(stderr)?.[1];
      expect(stderr).toContain(`what it held when it was refused is in out-of-memory-${process}-*.cistern`);
      expect(dumps()).toEqual([`out-of-memory-${process}-${process}-1.cistern`]);
      const dump = join(folder, dumps()[0] as string);
      const { run, allocations } = await readOutside(dump);
      expect(run.damage).toBeUndefined();
      const full = await readOutside(file);
      expect(allocations.map(({ bytes, account, layer, isFreed }) => [bytes, account, layer, isFreed])).toEqual(
        Array(2).fill([4 << 20, 'client', 'device 0', false]),
      );
      expect(allocations.map(({ stack }) => stack)).toEqual(full.allocations.map(({ stack }) => stack));
      expect(allocations[0]?.stack).toMatch(/\(native:client\)/);
      expect(run.notes).toEqual([
        `process ${process} (client): cistern run refused client 4194304 bytes: the limit of client is 10485760 bytes, of which 2097152 were left\n\nHeld at that moment:\n  client: 8388608 bytes of devices`,
      ]);
      const failures = [...run.kinds].flatMap((kind, i) => (kind === EventKind.failure ? [i] : []));
      expect(failures.map((i) => [run.accounts[run.accountOf[i] as number], run.stacks[run.stackOf[i] as number]])).toEqual([
        ['client', expect.stringMatching(/\(native:client\)/)],
      ]);
      expect((await runCistern(['report', dump, '-o', join(folder, 'report.html')])).code).toBe(0);
    }));

  test('the files of refusals are ten at most, one for the same memory held, and in the folder that is asked for', () =>
    inFolder(async (folder) => {
      const dumps = (of: string) => readdirSync(of).filter((file) => file.startsWith('out-of-memory-'));
      const other = join(folder, 'dumps');
      mkdirSync(other);
      const run = (options: readonly string[], program: readonly string[], environment = {}) =>
        runOutside(join(folder, 'run.cistern'), ['-q', '-f', '--no-stacks', ...options], [client(), ...program], undefined, environment);
      const refused = ['take', String(2 ** 40), '12'];
      const asked = { CISTERN_DUMP_ON_OUT_OF_MEMORY: other };
      // The driver itself refuses.
      expect((await run([], refused)).code).toBe(0);
      expect([dumps(folder), dumps(other)]).toEqual([[], []]);
      await run([], refused, asked);
      expect([dumps(folder).length, dumps(other).length]).toEqual([0, 1]);
      const { run: dump } = await readOutside(join(other, dumps(other)[0] as string));
      expect(dump.notes[0]).toContain('the driver refused client 1099511627776 bytes');
      await run(['--limit', '20KiB'], ['random', '7', '2000']);
      expect([dumps(folder).length, dumps(other).length]).toEqual([10, 1]);
      // Those of each moment have what was held then: never more than the limit.
      for (const file of dumps(folder)) {
        const { allocations } = await readOutside(join(folder, file));
        const limited = allocations.filter(({ layer }) => layer === 'device 0' || layer === 'managed');
        expect(limited.reduce((sum, { bytes }) => sum + bytes, 0)).toBeLessThanOrEqual(20 * 1024);
      }
    }));

  test('a limit with a name holds for one library', () =>
    inFolder(async (folder) => {
      const take = async (limit: string) =>
        (await runOutside(join(folder, 'run.cistern'), ['-q', '-f', '--limit', limit], [client(), 'take', '1000', '2'])).stdout
          .split('\n')
          .map((line) => line.split(' ')[0]);
      expect(await take('client=1500')).toEqual(['0', '2', '']);
      expect(await take('other=1500')).toEqual(['0', '0', '']);
      expect(await take('clien=1500')).toEqual(['0', '0', '']);
    }));

  test('a limit whose name nobody has is told at the end, with the names that there were', () =>
    inFolder(async (folder) => {
      const limits = ['--limit', 'clien=1GiB', '--limit', 'client=1GiB', '--limit', 'liblinked=1GiB', '--limit', '2GiB'];
      const run = (program: readonly string[]) => runOutside(join(folder, 'run.cistern'), ['-f', ...limits], program);
      const { stderr } = await run([client(), 'ways']);
      expect(stderr.split('\n').filter((line) => line.includes('limit'))).toEqual([
        'note: the limit of clien held for nothing: what allocated is called client, liblinked.so',
      ]);
      expect((await run([client(), 'none'])).stderr).toBe('');
    }));

  test('managed memory counts for limits like that of devices, since its pages move there', () =>
    inFolder(async (folder) => {
      const take = async (limit: string, ...how: string[]) =>
        (await runOutside(join(folder, 'run.cistern'), ['-f', '--limit', limit], [client(), 'take', '1000', '3', 'managed', ...how])).stdout
          .split('\n')
          .map((line) => line.split(' ').slice(0, 2).join(' '));
      expect(await take('2500')).toEqual(['0 1500', '0 500', '2 500', '']);
      expect(await take('client=2500')).toEqual(['0 1500', '0 500', '2 500', '']);
      expect(await take('2500', 'free')).toEqual(['0 1500', '0 1500', '0 1500', '']);
      expect(await take('client=2500', 'free')).toEqual(['0 1500', '0 1500', '0 1500', '']);
    }));

  test('all processes share a limit, and one that is gone holds nothing', () =>
    inFolder(async (folder) => {
      const hold = `"$0" threads 0 > /dev/null & sleep 0.5; "$0" take 600000 1; kill -9 $!; wait $! 2> /dev/null; "$0" take 600000 1`;
      const run = (limit: string) => runOutside(join(folder, 'run.cistern'), ['-q', '-f', '--limit', limit], ['sh', '-c', hold, client()]);
      const { stdout } = await run('610000');
      expect(stdout.split('\n').map((line) => line.split(' ')[0])).toEqual(['2', '0', '']);
    }));
});

describe.skipIf(outside.path === undefined)('Node programs', () => {
  /** Runs a program, which has the addon as `addon`. */
  async function runNode(folder: string, text: string, nodeOptions: readonly string[] = [], options: readonly string[] = ['-q']) {
    const program = join(folder, 'program.cjs');
    writeFileSync(program, `const addon = require(${JSON.stringify(outsideProgram('allocates.node'))});\n${text}`);
    const file = join(folder, 'run.cistern');
    const result = await runOutside(file, options, [node, ...nodeOptions, program]);
    return { ...result, program, file };
  }

  test('an allocation has the line of JavaScript that made the library allocate', () =>
    inFolder(async (folder) => {
      const text = `function loadModel() { return addon.allocate(1000); }
        class Session { run() { return addon.allocate(2000); } }
        loadModel(); new Session().run(); eval('addon.allocate(3000)\\n//# sourceURL=evaluated');`;
      const { code, program, file } = await runNode(folder, text);
      expect(code).toBe(0);
      const { allocations } = await readOutside(file);
      const stacks = allocations.map(({ stack }) => stack.split('\n').filter((line) => !/\((?:native|node):/.test(line)));
      expect(stacks.map(([line]) => line)).toEqual([`loadModel (${program}:2:37)`, `run (${program}:3:46)`, 'eval (evaluated:1:7)']);
      expect(allocations.map(({ account }) => account)).toEqual(Array(3).fill('allocates.node'));
      const { stdout } = await runCistern(['diff', file, file, '--by', 'line', '--json']);
      expect(stdout).toContain('loadModel (program.cjs:2:37)');
    }));

  test('JavaScript sees nothing of it, not even when it prepares stacks itself', () =>
    inFolder(async (folder) => {
      const text = `Error.prepareStackTrace = () => { throw new Error('called'); }; Error.stackTraceLimit = 0;
        process.emitWarning = () => { throw new Error('warned'); };
        addon.allocate(1000); console.log(process.execArgv.length, process.env.NODE_OPTIONS, Object.keys(globalThis).length);`;
      const { code, stdout, file, program } = await runNode(folder, text);
      const { stdout: plain } = spawnSync(node, [program], {
        encoding: 'utf8',
        env: { ...process.env, ...outsideEnvironment() },
      });
      expect([code, stdout]).toEqual([0, plain]);
      expect((await readOutside(file)).allocations[0]?.stack).toContain(`${program}:4:15`);
    }));

  test('an allocation of another thread has its name, and the library', () =>
    inFolder(async (folder) => {
      const { file } = await runNode(folder, 'addon.allocateOnThread(1000);');
      const [allocation] = (await readOutside(file)).allocations;
      expect(allocation?.stack).toMatch(/^\S+ \(native:allocates\.node\)\n(?:.*\n)*thread loader \(native:thread\)$/);
      expect(allocation?.account).toBe('allocates.node');
    }));

  test('work on a thread of the pool has the line that created it, each its own', () =>
    inFolder(async (folder) => {
      const text = `addon.allocate(1);
        function first(done) { addon.allocateInWorker(1000, done); }
        function second(done) { addon.allocateInWorker(2000, done); }
        first((_, status) => { console.log(status); }); second((_, status) => { console.log(status); });
        for (let i = 0; i < 20; i++) addon.allocateInWorker(3000 + i, () => addon.allocateInWorker(4000 + i, () => {}));`;
      const { code, stdout, file, program } = await runNode(folder, text);
      expect([code, stdout]).toEqual([0, '0\n0\n']);
      const { allocations } = await readOutside(file);
      const lineOf = (bytes: number) => {
        const lines = allocations.find((each) => each.bytes === bytes)?.stack.split('\n') ?? [];
        const at = lines.indexOf('work that was created by (native:napi_create_async_work)');
        expect([lines[0]?.endsWith('(native:allocates.node)'), lines[at - 1]?.startsWith('thread ')]).toEqual([true, true]);
        return lines[at + 1];
      };
      expect([lineOf(1000), lineOf(2000)]).toEqual([`first (${program}:3:38)`, `second (${program}:4:39)`]);
      for (let i = 0; i < 20; i++) {
        expect(lineOf(3000 + i)).toBe(`<anonymous> (${program}:6:44)`);
        expect(lineOf(4000 + i)).toBe(`<anonymous> (${program}:6:83)`);
      }
    }));

  test('work that is created before the program uses a driver, or without stacks, has none', () =>
    inFolder(async (folder) => {
      const early = await runNode(folder, 'addon.allocateInWorker(1000, () => {});');
      const stackOf = async (file: string) => (await readOutside(file)).allocations.find(({ bytes }) => bytes === 1000)?.stack;
      expect(await stackOf(early.file)).toMatch(/\nthread .* \(native:thread\)$/);
      const { file } = await runNode(folder, 'addon.allocate(1); addon.allocateInWorker(1000, () => {});', [], ['-q', '-f', '--no-stacks']);
      expect(await stackOf(file)).toBe('');
    }));

  test('what is allocated within withAccount, and by work that is created there, belongs to that account', () =>
    inFolder(async (folder) => {
      const module = JSON.stringify(new URL('../../../dist/tools/outside/index.js', import.meta.url).href);
      const text = `import(${module}).then(({ withAccount }) => {
        addon.allocate(1);
        const result = withAccount('model-a', () => {
          addon.allocate(2);
          addon.allocateInWorker(3, () => addon.allocate(4));
          try { withAccount('model-b', () => { addon.allocate(5); throw new Error('thrown'); }); } catch (error) { console.log(error.message); }
          addon.allocate(6);
          addon.allocateOnThread(7);
          return 'returned';
        });
        addon.allocate(8);
        addon.allocateFor('thread', 100);
        addon.allocateInWorker(9, () => addon.allocate(10));
        console.log(result);
      });`;
      const accountsOf = (allocations: readonly { bytes: number; account: string }[]) =>
        Object.fromEntries(allocations.map(({ bytes, account }) => [bytes, account]));
      const { code, stdout, file, program } = await runNode(folder, text, [], ['-q', '--limit', 'model-a=1GiB']);
      expect([code, stdout]).toEqual([0, 'thrown\nreturned\n']);
      const library = 'allocates.node';
      expect(accountsOf((await readOutside(file)).allocations)).toEqual({
        ...{
          1: library,
          2: 'model-a',
          3: 'model-a',
          4: 'model-a',
          5: 'model-b',
          6: 'model-a',
          7: library,
          8: library,
          9: library,
          10: library,
        },
        ...{ 100: 'thread', 101: library, 102: 'thread', 103: library },
      });
      const { stdout: plain } = spawnSync(node, [program], { encoding: 'utf8', env: { ...process.env, ...outsideEnvironment() } });
      expect(plain).toBe(stdout);
    }));

  test('withAccount follows its function through awaits, timers and work of addons, beside others', () =>
    inFolder(async (folder) => {
      const module = JSON.stringify(new URL('../../../dist/tools/outside/index.js', import.meta.url).href);
      const text = `import(${module}).then(async ({ withAccount }) => {
        const { setTimeout: sleep } = require('node:timers/promises');
        const work = (bytes) => new Promise((resolve) => addon.allocateInWorker(bytes, resolve));
        addon.allocate(1);
        const load = async (first) => {
          await null;
          addon.allocate(first);
          await sleep(1);
          await work(first + 1);
          addon.allocate(first + 2);
          setImmediate(() => addon.allocate(first + 3));
          await sleep(2).then(() => addon.allocate(first + 4));
          try { await withAccount('inner', async () => { await null; addon.allocate(first + 5); throw new Error(); }); } catch {}
          addon.allocate(first + 6);
        };
        const loads = [withAccount('model-a', () => load(100)), withAccount('model-b', () => load(200)), load(300)];
        addon.allocate(2);
        process.once('uncaughtException', () => addon.allocate(3));
        withAccount('model-c', () => setTimeout(() => { throw new Error(); }));
        await Promise.all(loads);
        addon.allocate(4);
        setImmediate(() => addon.allocate(5));
      });`;
      const { code, file } = await runNode(folder, text, [], ['-q', '--no-stacks']);
      expect(code).toBe(0);
      const { allocations } = await readOutside(file);
      const library = 'allocates.node';
      const of = (account: string, first: number) => [0, 1, 2, 3, 4, 5, 6].map((i) => [first + i, i === 5 ? 'inner' : account] as const);
      const expected = [...of('model-a', 100), ...of('model-b', 200), ...of(library, 300)];
      const outer = [1, 2, 4, 5].map((bytes) => [bytes, library] as const);
      const found = allocations.filter(({ bytes }) => bytes !== 3).map(({ bytes, account }) => [bytes, account] as const);
      expect(new Map(found)).toEqual(new Map([...outer, ...expected]));
    }));

  test('withAccount holds for the thread that calls it: a worker has an account of its own, and not that of the main thread', () =>
    inFolder(async (folder) => {
      const module = JSON.stringify(new URL('../../../dist/tools/outside/index.js', import.meta.url).href);
      // The main thread waits within its account until the worker has allocated all.
      const text = `const { Worker, isMainThread, workerData } = require('node:worker_threads');
        import(${module}).then(({ withAccount }) => {
          if (isMainThread) {
            const done = new Int32Array(new SharedArrayBuffer(4));
            withAccount('main', () => {
              new Worker(__filename, { workerData: done });
              addon.allocate(1);
              Atomics.wait(done, 0, 0, 30000);
              addon.allocate(2);
            });
            addon.allocate(3);
            return;
          }
          addon.allocate(11);
          withAccount('worker', () => {
            addon.allocate(12);
            addon.allocateInWorker(13, () => {
              addon.allocate(14);
              Atomics.store(workerData, 0, 1);
              Atomics.notify(workerData, 0);
            });
          });
          addon.allocate(15);
        });`;
      const { code, file } = await runNode(folder, text, [], ['-q', '--no-stacks']);
      expect(code).toBe(0);
      const { allocations } = await readOutside(file);
      const library = 'allocates.node';
      expect(Object.fromEntries(allocations.map(({ bytes, account }) => [bytes, account]))).toEqual({
        ...{ 1: 'main', 2: 'main', 3: library },
        ...{ 11: library, 12: 'worker', 13: 'worker', 14: 'worker', 15: library },
      });
    }));

  test('a limit holds for a named account, and that of its library holds still', () =>
    inFolder(async (folder) => {
      const module = JSON.stringify(new URL('../../../dist/tools/outside/index.js', import.meta.url).href);
      const text = `import(${module}).then(({ withAccount }) =>
        console.log(...withAccount('model-a', () => [addon.allocate(600), addon.allocate(600)]).map((pointer) => pointer > 0), addon.allocate(600) > 0));`;
      const take = async (limit: string) => (await runNode(folder, text, [], ['-q', '-f', '--no-stacks', '--limit', limit])).stdout;
      expect(await take('model-a=1000')).toBe('true false true\n');
      expect(await take('allocates.node=1000')).toBe('true false false\n');
      expect(await take('other=1000')).toBe('true true true\n');
    }));

  test('V8 is not asked while it collects, nor while it ends', () =>
    inFolder(async (folder) => {
      const text = `const { allocatesWhileCollecting } = require(${JSON.stringify(outsideProgram('collected.node'))});
        const { Worker, isMainThread } = require('node:worker_threads');
        for (let i = 0; i < 50; i++) allocatesWhileCollecting({});
        for (let i = 0; i < 50; i++) addon.allocatesWhenCollected();
        const keep = addon.allocatesWhenCollected();
        if (isMainThread) new Worker(__filename).on('exit', (code) => console.log(code)); 
        setImmediate(() => { gc(); setImmediate(() => { gc(); console.log('collected'); setTimeout(() => {}, 50); }); });`;
      const { code, stdout, file } = await runNode(folder, text, ['--expose-gc']);
      expect([code, stdout.split('\n').sort()]).toEqual([0, ['', '0', 'collected', 'collected']]);
      const { allocations } = await readOutside(file);
      const within = allocations.filter(({ bytes }) => bytes === 8192);
      expect([within.length, allocations.length - within.length]).toEqual([
        expect.toSatisfy((count) => count >= 90),
        expect.toSatisfy((count) => count >= 90),
      ]);
      // The finalizer was called by the collector, and not by JavaScript afterwards.
      for (const { stack } of within) expect(stack).toMatch(/\(native:thread\)$/);
    }));

  test('workers are recorded in the same file, by thread', () =>
    inFolder(async (folder) => {
      const text = `const { Worker, isMainThread } = require('node:worker_threads');
        addon.allocate(isMainThread ? 1000 : 2000);
        if (isMainThread) new Worker(__filename);`;
      const { file, program } = await runNode(folder, text);
      const { allocations } = await readOutside(file);
      expect(allocations.map(({ bytes }) => bytes)).toEqual([1000, 2000]);
      expect(new Set(allocations.map(({ thread }) => thread)).size).toBe(2);
      for (const { stack } of allocations) expect(stack).toContain(`${program}:3:15`);
    }));

  test("what NVIDIA's libraries allocate counts as the library that called them", () =>
    inFolder(async (folder) => {
      const { file } = await runNode(folder, 'addon.allocateWithCudart(1000);');
      const [allocation] = (await readOutside(file)).allocations;
      expect(allocation).toMatchObject({ account: 'allocates.node', bytes: 1000 });
      expect(allocation?.stack).toMatch(/^\S+ \(native:allocates\.node\)\n/);
      expect(allocation?.stack).not.toContain('cudart');
    }));

  test('stacks can be recorded less often, or never', () =>
    inFolder(async (folder) => {
      const stacks = async (...options: string[]) => {
        const { file } = await runNode(folder, 'for (let i = 0; i < 10; i++) addon.allocate(1000);', [], ['-q', '-f', ...options]);
        return (await readOutside(file)).allocations.filter(({ stack }) => stack !== '').length;
      };
      expect(await stacks()).toBe(10);
      expect(await stacks('--stacks', '2500B')).toBe(4);
      expect(await stacks('--no-stacks')).toBe(0);
    }));

  test('the other commands read the recording', () =>
    inFolder(async (folder) => {
      const { file } = await runNode(folder, 'for (let i = 1; i <= 20; i++) addon.free(addon.allocate(i * 1000)); addon.allocate(5000);');
      for (const args of [
        ['report', file, '-o', join(folder, 'report.html')],
        ['fit', file],
        ['plan', file, '-o', join(folder, 'plan.json')],
        ['replay', file],
        ['convert', file, join(folder, 'run.csv')],
        ['estimate', file, file, '--values', '1,2', '--memory', '1GiB'],
      ]) {
        const { code, stderr } = await runCistern(args);
        expect([args[0], code, stderr.split('\n').filter((line) => line.startsWith('error'))]).toEqual([args[0], 0, []]);
      }
      expect(existsSync(join(folder, 'report.html'))).toBe(true);
    }));

  // In an empty folder: npm install koffi; OUTSIDE_KOFFI=…/node_modules/koffi
  test.skipIf(koffi === undefined)('a program that calls the driver through koffi is recorded by line, and limited', () =>
    inFolder(async (folder) => {
      const text = `const koffi = require(${JSON.stringify(koffi)});
        const cuda = koffi.load('libcuda.so.1');
        const init = cuda.func('int cuInit(unsigned int flags)');
        const retain = cuda.func('int cuDevicePrimaryCtxRetain(_Out_ void **context, int device)');
        const setCurrent = cuda.func('int cuCtxSetCurrent(void *context)');
        const allocate = cuda.func('int cuMemAlloc_v2(_Out_ uint64_t *pointer, size_t bytes)');
        const context = [null];
        const statuses = [init(0), retain(context, 0), setCurrent(context[0])];
        function takeBuffer(bytes) { return allocate([0], bytes); }
        console.log(...statuses, takeBuffer(1 << 20), takeBuffer(8 << 20));`;
      const { code, stdout, file, program } = await runNode(folder, text, [], ['-q', '--limit', '4MiB']);
      expect([code, stdout]).toEqual([0, '0 0 0 0 2\n']);
      const { run, allocations } = await readOutside(file);
      expect(allocations.map(({ bytes, label, account }) => [bytes, label, account])).toEqual([
        [1 << 20, '', expect.stringContaining('koffi')],
      ]);
      expect(allocations[0]?.stack).toContain(`takeBuffer (${program}:10:`);
      expect([...run.kinds.subarray(0, run.eventCount)]).toContain(EventKind.failure);
    }),
  );

  // npm pack @node-llama-cpp/linux-x64-cuda, and the folder of its binaries: OUTSIDE_LLAMA=…/node_modules/@node-llama-cpp/linux-x64-cuda/bins/linux-x64-cuda
  test.skipIf(llama === undefined)("node-llama-cpp's CUDA backend, as it comes from npm, is recorded by line, and limited", () =>
    inFolder(async (folder) => {
      const text = `const allocate = (mib) => addon.allocateWithGgml(${JSON.stringify(llama)}, mib * 2 ** 20);
        function loadWeights() { return allocate(64); }
        console.log(loadWeights(), allocate(32));`;
      const { stdout, file, program } = await runNode(folder, text, [], ['-q', '--limit', 'node-llama-cpp=80MiB']);
      expect(stdout).toBe('true false\n');
      const { run, allocations } = await readOutside(file);
      expect(allocations).toMatchObject([{ account: '@node-llama-cpp/linux-x64-cuda', bytes: 64 * 2 ** 20 }]);
      expect(allocations[0]?.stack).toContain(`loadWeights (${program}:3:41)`);
      expect(run.notes).toHaveLength(1);
    }),
  );

  test.skipIf(llama === undefined)('a model that node-llama-cpp loads in the background has the line that asked for it', () =>
    inFolder(async (folder) => {
      writeFileSync(join(folder, 'tiny.gguf'), tinyModel());
      const text = `const llama = require(${JSON.stringify(`${llama}/llama-addon.node`)});
        llama.loadBackends(${JSON.stringify(llama)});
        const model = new llama.AddonModel(${JSON.stringify(join(folder, 'tiny.gguf'))}, { gpuLayers: 99, addonExports: llama });
        function loadModel() { return model.init(); }
        loadModel().then(console.log);`;
      const { code, stdout, file, program } = await runNode(folder, text);
      expect([code, stdout]).toEqual([0, expect.stringMatching(/^true$/m)]);
      const weights = (await readOutside(file)).allocations.filter(({ layer }) => layer === 'device 0');
      expect(weights.length).toBeGreaterThan(0);
      for (const { account, stack } of weights) {
        expect(account).toBe('@node-llama-cpp/linux-x64-cuda');
        expect(stack).toContain('AddonModelLoadModelWorker::Execute() (native:llama-addon.node)');
        expect(stack).toContain(`work that was created by (native:napi_create_async_work)\nloadModel (${program}:5:`);
      }
    }),
  );

  // Beside the folder of its binaries: npm install --ignore-scripts --omit=optional node-llama-cpp
  const llamaPackage = llama === undefined ? undefined : join(llama, '../../../../node-llama-cpp/dist/index.js');
  test.skipIf(llamaPackage === undefined || !existsSync(llamaPackage))(
    'a model and its context of node-llama-cpp belong to the account that is named',
    () =>
      inFolder(async (folder) => {
        const model = join(folder, 'tiny.gguf');
        writeFileSync(model, tinyModel());
        const module = JSON.stringify(new URL('../../../dist/tools/outside/index.js', import.meta.url).href);
        const text = `(async () => {
        const { getLlama } = await import(${JSON.stringify(llamaPackage)});
        const { withAccount } = await import(${module});
        const llama = await getLlama({ gpu: 'cuda', build: 'never', logLevel: 'disabled' });
        await withAccount('model-a', async () => {
          const model = await llama.loadModel({ modelPath: ${JSON.stringify(model)}, gpuLayers: 99 });
          await model.createContext({ contextSize: 64 });
        });
        console.log(llama.gpu);
        process.exit(0);
      })();`;
        const { code, stdout, file } = await runNode(folder, text);
        expect([code, stdout]).toEqual([0, 'cuda\n']);
        const found = (await readOutside(file)).allocations.filter(({ layer }) => layer === 'device 0');
        expect(new Set(found.map(({ account }) => account))).toEqual(new Set(['model-a']));
        expect(found.filter(({ stack }) => stack.includes('/LlamaModel.js:')).length).toBeGreaterThan(0);
        expect(found.filter(({ stack }) => stack.includes('/LlamaContext.js:')).length).toBeGreaterThan(0);
        expect((await runCistern(['summary', file])).stdout).toMatch(/LlamaModel\.js/);
      }),
  );

  test.skipIf(ort === undefined)('onnxruntime-node on the CPU is left alone', () =>
    inFolder(async (folder) => {
      // A model of one node, y = sigmoid(x), in the encoding of protocol buffers.
      const text = `const ort = require(${JSON.stringify(ort)});
        const varint = (rest) => (rest < 128 ? [rest] : [(rest % 128) | 128, ...varint(Math.floor(rest / 128))]);
        const field = (number, value) => {
          if (typeof value === 'number') return Buffer.from([...varint(number * 8), ...varint(value)]);
          const bytes = Buffer.from(value);
          return Buffer.concat([Buffer.from([...varint(number * 8 + 2), ...varint(bytes.length)]), bytes]);
        };
        const message = (...fields) => Buffer.concat(fields);
        const shape = field(2, message(field(1, message(field(1, 4)))));
        const value = (name) => message(field(1, name), field(2, message(field(1, message(field(1, 1), shape)))));
        const node = message(field(1, 'x'), field(2, 'y'), field(4, 'Sigmoid'));
        const graph = message(field(1, node), field(2, 'g'), field(11, value('x')), field(12, value('y')));
        const model = message(field(1, 8), field(7, graph), field(8, message(field(1, ''), field(2, 13))));
        (async () => {
          const session = await ort.InferenceSession.create(model);
          const { y } = await session.run({ x: new ort.Tensor('float32', Float32Array.of(0, 0, 0, 0), [4]) });
          console.log(y.data.join());
        })();`;
      const { code, stdout, stderr, file } = await runNode(folder, text, [], []);
      expect([code, stdout, stderr]).toEqual([0, '0.5,0.5,0.5,0.5\n', '']);
      expect(existsSync(file)).toBe(false);
    }),
  );

  test('samples have what each library of the process holds, and not that of other processes', () =>
    inFolder(async (folder) => {
      const watch = JSON.stringify(new URL('../../../dist/tools/watch/index.js', import.meta.url).href);
      const text = `
        const kept = addon.allocate(1 << 20);
        if (addon.free(addon.allocate(2 << 20)) !== 0 || addon.free(kept + 256) === 0) process.exit(1);
        import(${watch}).then(({ sampleStatistics, prometheusText }) => {
          console.log(JSON.stringify(sampleStatistics().libraries));
          if (!prometheusText(sampleStatistics()).includes('cistern_library_device_bytes{library="allocates.node"} 1048576\\n')) process.exit(2);
          if (process.argv[2] !== 'child') require('node:child_process').spawnSync(process.execPath, [__filename, 'child'], { stdio: 'inherit' });
        });`;
      const { code, stdout } = await runNode(folder, text);
      const library = { name: 'allocates.node', deviceBytes: 1 << 20, peakDeviceBytes: 3 << 20, hostBytes: 0, allocations: 2 };
      expect([code, ...stdout.trim().split('\n')]).toEqual([0, JSON.stringify([library]), JSON.stringify([library])]);
    }));

  const sleeper = (what: string) => `
    import { once } from 'node:events';
    import { CudaMemoryResource, DeviceBuffer, Stream } from ${JSON.stringify(new URL('../../../dist/index.js', import.meta.url).href)};
    import { sleepProcess, wakeProcess } from ${JSON.stringify(new URL('../../../dist/serving/index.js', import.meta.url).href)};
    const options = { resource: new CudaMemoryResource(), stream: new Stream() };
    const buffer = new DeviceBuffer(1 << 20, options);
    const dropped = new DeviceBuffer(1 << 21, options);
    buffer.fill(7);
    ${what}
    const after = new DeviceBuffer(1 << 22, options);
    console.log([...new Set(buffer.toHostSync())].join());
    buffer.dispose();`;
  const onDevice = { CISTERN_DEVICE: 'cuda' };

  test('a program that puts itself to sleep and wakes is recorded, and frees that it made meanwhile, too', () =>
    inFolder(async (folder) => {
      const program = join(folder, 'sleeps.mjs');
      const file = join(folder, 'run.cistern');
      writeFileSync(program, sleeper('await sleepProcess(); dropped.dispose(); await wakeProcess();'));
      const ended = await runOutside(file, ['-q', '--limit', '8MiB'], [node, program], undefined, onDevice);
      expect(ended).toMatchObject({ code: 0, stdout: '7\n', stderr: '' });
      const { allocations } = await readOutside(file);
      expect(allocations.map(({ bytes, isFreed }) => [bytes, isFreed])).toEqual([
        [1 << 20, true],
        [1 << 21, true],
        [1 << 22, false],
      ]);
    }));

  test('a program that another one puts to sleep is recorded up to then, waits, and goes on when it is woken', () =>
    inFolder(async (folder) => {
      const program = join(folder, 'slept.mjs');
      const file = join(folder, 'run.cistern');
      writeFileSync(
        program,
        sleeper(
          "const timer = setInterval(() => {}, 1000); console.log(process.pid); await once(process, 'SIGUSR2'); clearInterval(timer);",
        ),
      );
      const act = (...args: string[]) => runCistern([...args, '--device', 'cuda'], undefined, outsideEnvironment());
      const seen: unknown[] = [];
      const ended = await runOutside(
        file,
        ['-q'],
        [node, program],
        (child) =>
          child.stdout?.once('data', async (text) => {
            const pid = String(text).trim();
            seen.push(await act('sleep', pid));
            process.kill(Number(pid), 'SIGUSR2');
            seen.push((await readOutside(file)).allocations.length, await act('wake', pid));
          }),
        onDevice,
      );
      expect(seen).toMatchObject([{ code: 0, stderr: '' }, 2, { code: 0, stderr: '' }]);
      expect(ended).toMatchObject({ code: 0, stdout: expect.stringMatching(/^\d+\n7\n$/), stderr: '' });
      const { allocations } = await readOutside(file);
      expect(allocations.map(({ bytes }) => bytes)).toEqual([1 << 20, 1 << 21, 1 << 22]);
    }));

  test('cistern itself is an account like any other', () =>
    inFolder(async (folder) => {
      const program = join(folder, 'cistern.mjs');
      const module = JSON.stringify(new URL('../../../dist/index.js', import.meta.url).href);
      writeFileSync(
        program,
        `import { CudaMemoryResource, PoolMemoryResource, Stream } from ${module};
        const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 1 << 20 });
        pool.deallocate(pool.allocate(1000, new Stream()), 1000, new Stream());
        console.log(pool.name);`,
      );
      const file = join(folder, 'run.cistern');
      const { code, stderr } = await runOutside(file, ['-q'], [process.execPath, program], undefined, { CISTERN_DEVICE: 'cuda' });
      expect([code, stderr]).toEqual([0, '']);
      const { allocations } = await readOutside(file);
      expect(allocations.map(({ account, bytes }) => [account, bytes])).toContainEqual(['cistern', 1 << 20]);
    }));
});

// More: OUTSIDE_PROGRAMS=1000 OUTSIDE_KILLS=100 npx vitest run --project unit test/tools/outside
const programs = Number(process.env['OUTSIDE_PROGRAMS'] ?? 12);
const kills = Number(process.env['OUTSIDE_KILLS'] ?? 6);
const seed = Number(process.env['OUTSIDE_SEED'] ?? 1);

/** Runs the client. Returns what it printed. */
async function run(args: readonly string[], environment: NodeJS.ProcessEnv): Promise<string> {
  const child = spawn(outsideProgram('client'), args, {
    env: { ...environment, ...outsideEnvironment() },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let text = '';
  child.stdout.on('data', (piece) => {
    text += piece;
  });
  const [code, signal] = await once(child, 'close');
  expect([code, signal]).toEqual([0, null]);
  return text;
}

describe.skipIf(outside.path === undefined)('random programs', () => {
  test(
    `${programs} get the same answers and make the same driver calls, and the recording adds up at every step`,
    { timeout: 120_000 + 2_000 * programs },
    () =>
      inFolder(async (folder) => {
        const traces = [join(folder, 'without'), join(folder, 'with')] as const;
        const file = join(folder, 'run.cistern');
        for (let program = seed; program < seed + programs; program++) {
          for (const trace of traces) rmSync(trace, { force: true });
          const args = ['random', String(program), '400'];
          const without = await run(args, { ...process.env, TEST_DRIVER_TRACE: traces[0] });
          const outsideRun = prepareOutsideRun({ file, limits: [], stackBytes: program % 2 === 0 ? undefined : 1 << 16 });
          const answers = await run(args, { ...outsideRun.environment, TEST_DRIVER_TRACE: traces[1] });
          const [ended] = outsideRun.end().processes;
          expect(answers).toBe(without);
          expect(readFileSync(traces[1], 'utf8')).toBe(readFileSync(traces[0], 'utf8'));
          const { run: recorded } = await readOutside(file);
          expect(recorded.damage).toBeUndefined();
          // The driver's own count after each step, and that of the recording.
          const counted = answers
            .trim()
            .split('\n')
            .map((line) => Number(line.split(' ').at(-1)));
          const { sums, peak } = deviceBytesOfSteps(recorded);
          expect([program, sums]).toEqual([program, counted]);
          // What limits go by.
          expect([ended?.currentBytes, ended?.peakBytes]).toEqual([counted.at(-1), peak]);
        }
      }),
  );

  test(`a process that is killed at any moment leaves a recording that opens, ${kills} times`, { timeout: 120_000 + 2_000 * kills }, () =>
    inFolder(async (folder) => {
      for (let i = 0; i < kills; i++) {
        const file = join(folder, `${i}.cistern`);
        const outsideRun = prepareOutsideRun({ file, limits: [], stackBytes: undefined });
        const child = spawn(outsideProgram('client'), ['threads', '0'], {
          env: { ...outsideRun.environment, ...outsideEnvironment() },
          stdio: ['ignore', 'pipe', 'inherit'],
        });
        if (i % 2 === 0) {
          // While it creates its recording.
          for (const end = performance.now() + 10_000; !existsSync(file) && performance.now() < end; );
        } else {
          await once(child.stdout, 'data');
          await new Promise((resolve) => setTimeout(resolve, (i * 37) % 200));
        }
        child.kill('SIGKILL');
        await once(child, 'close');
        outsideRun.end();
        if (!existsSync(file)) continue;
        const recorded = await readRecordedRun(file);
        expect(recorded.damage === undefined || recorded.damage.isTruncation, JSON.stringify(recorded.damage)).toBe(true);
      }
    }),
  );
});
