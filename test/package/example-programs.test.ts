import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

/** What each program prints when it has shown its point. They run in the clone, as examples/README.md says. */
const findings: Readonly<Record<string, RegExp>> = {
  'application/main.js': /^memory from limiting\(pool\(cuda-async, .*\n24 MiB, of which all arrived\n$/,
  'arrow/main.js': /every column came back as it was\n$/,
  'workers/main.js': /^200 jobs by 4 workers \(.*\), 200 right\nat most 1[3-6] MiB live in all threads, 0 B now; /,
  'caching-scope.mjs': /in a caching scope +│ 52 +│ 1 +│ 0 /,
  'managed-oversubscription.mjs': /every result right/,
  'monte-carlo.mjs': /deallocationEvents=eager\) +│ 0 +│ 0 +│ 10 [\s\S]*deallocationEvents=deferred\) +│ 0 +│ 0 +│ 0 /,
  'kernels/main.js': /^there is no GPU here, and the software device runs no kernels$/m, // with one, by test/gpu
  'decoder/main.js': /^there is no GPU here, and the software device runs no kernels$/m, // with one, by test/gpu
  'node-llama-cpp/main.js':
    /96 MiB of 256 MiB\n.* 224 MiB of 256 MiB\n.* refused: InsufficientMemoryError\nor waits .*\nin the end: 0 B of 256 MiB\n$/,
  'reclaiming.mjs': /out of memory after \d+ steps[\s\S]*all 512 steps/,
  'restarting-server.mjs': /first start : .* 16 MiB computed, sum 3\nafter a kill: .* 16 MiB in place, sum 3\nno weights /,
  'scratch-pipeline.mjs': /monotonic, a mark per tile +│ '12 MiB'/,
  'serving.mjs': /100 of 100 requests answered[\s\S]*0 B left\nfree, 4 MiB: 429, [\s\S]*paying, 9 MiB: 413, /,
  'taking-turns.mjs': /both sleep: 0 B of the device[\s\S]*6 turns, 6 of them with the right weights/,
  'training-recording.mjs': /events in 4 phases and \d+ stacks[\s\S]*cistern report /,
  'worker-pipeline.mjs': /200 buffers of 256 KiB through 4 workers, 200 of them right/,
};

const environment = { PATH: process.env['PATH'], CISTERN_DEVICE: 'software' };

/** The commands of examples/README.md. */
const commands = [...readFileSync('examples/README.md', 'utf8').matchAll(/`([^`]*examples\/[^`]*)` \|$/gm)].map(([, command]) => command);

test('every example has a command in examples/README.md, which runs here', () => {
  const programs = readdirSync('examples').filter((name) => name.endsWith('.mjs'));
  expect(programs.filter((name) => findings[name] === undefined)).toEqual([]);
  expect([...commands].sort()).toEqual(
    [
      ...Object.keys(findings).map((name) => `node examples/${name}`),
      'node --test examples/library/index.test.js',
      'CISTERN_WATCH=9464 node examples/server/main.js',
      'cmake -B build/addons examples/addons && cmake --build build/addons', // by addons.test.ts
    ].sort(),
  );
});

test.each(Object.entries(findings))('%s prints its finding', async (name, finding) => {
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [`examples/${name}`], { timeout: 100_000, env: environment });
  expect(stdout).toMatch(finding);
  expect(stderr).toBe('');
});

test('the library passes its own tests', async () => {
  const args = ['--test', '--test-reporter=tap', 'examples/library/index.test.js'];
  const { stdout } = await promisify(execFile)(process.execPath, args, { timeout: 100_000, env: environment });
  expect(stdout).toMatch(/^# pass 2$/m);
});

test('the server answers, and ends when asked to', { timeout: 100_000 }, async () => {
  const server = spawn(process.execPath, ['examples/server/main.js'], { env: { ...environment, PORT: '0', CISTERN_WATCH: '1' } });
  const ended = once(server, 'exit');
  try {
    let text = '';
    for await (const piece of server.stdout) {
      text += String(piece);
      if (text.includes('\n')) break;
    }
    const address = /^listening on (http:\S+)\n/.exec(text)?.[1];
    const answer = await fetch(`${address}/picture/65536`);
    expect((await answer.arrayBuffer()).byteLength).toBe(65536);
  } finally {
    server.kill('SIGTERM');
    await ended;
  }
});
