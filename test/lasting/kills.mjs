// Kills writers, readers and `cistern keep` with SIGKILL, at every step, and looks after each that no region was lost or is half
// committed, that no descriptor stays, and that nobody waits for ever:
//
//     node test/lasting/kills.mjs [KILLS] [SEED] [SECONDS]
//
// Prints what it did; exits with 1 at the first fault. Needs dist/ and the addon. `npm test` runs it for a short time.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readlinkSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { argv, env, execPath, exit } from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const kills = Number(argv[2] ?? 100);
const seed = Number(argv[3] ?? 1);
const end = performance.now() + 1000 * Number(argv[4] ?? Number.POSITIVE_INFINITY);
env.CISTERN_DEVICE ??= 'software';
env.CISTERN_SOFTWARE_MEMORY = '64MiB';

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const { DeviceBuffer, Stream } = await import('../../dist/index.js');
const { LastingMemoryResource, listRegions, removeRegion } = await import('../../dist/lasting/index.js');

const folder = mkdtempSync(join(tmpdir(), 'cistern-kills-'));
const socket = join(folder, 'keep.sock');
const bytes = 2 ** 21;
const names = ['a', 'b'];
const longest = 30_000;
const never = 1e9;
const counts = { writers: 0, readers: 0, keepers: 0, completed: 0, refused: 0, looks: 0 };

let state = seed * 2654435761;
function random(below) {
  state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9) | 0;
  return ((state ^ (state >>> 13)) >>> 0) % below;
}

function fail(message) {
  console.log(`FAULT after ${JSON.stringify(counts)}, seed ${seed}: ${message}`);
  keep?.child.kill('SIGKILL');
  exit(1);
}

/** Starts a process and waits until it ends, but not for ever. */
async function run(killAt, ...args) {
  const environment = { ...env, KILL_AT: String(killAt) };
  const child = spawn(execPath, [at('kills-client.mjs'), socket, ...args], { env: environment, stdio: ['ignore', 'pipe', 'inherit'] });
  let printed = '';
  child.stdout.on('data', (text) => {
    printed += text;
  });
  const timer = setTimeout(() => fail(`a client waits: KILL_AT=${killAt} ${args}`), longest);
  const [code, signal] = await once(child, 'close');
  clearTimeout(timer);
  return { code, signal, printed };
}

/** The `cistern keep` that runs, what descriptors it has by itself, and what it must have. */
let keep;
async function startKeep(killAt) {
  const child = spawn(execPath, ['--import', at('kill-at-call.mjs'), at('../../dist/tools/cli/main.js'), 'keep', '--socket', socket], {
    env: { ...env, KILL_AT: String(killAt) },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const ended = once(child, 'exit');
  keep = { child, ended, own: Number.NaN, committed: new Map() };
  const timer = setTimeout(() => fail('cistern keep does not start'), longest);
  let printed = '';
  const isReady = new Promise((resolve) => {
    child.stderr.on('data', (text) => {
      printed += text;
      if (printed.includes('programs connect')) resolve('ready');
    });
  });
  const result = await Promise.race([isReady, ended]);
  clearTimeout(timer);
  if (result !== 'ready') return onKeepEnded();
  try {
    keep.own = memoryFilesOf(child.pid).all;
  } catch {}
}

async function onKeepEnded() {
  const timer = setTimeout(() => fail('cistern keep does not answer, and runs'), longest);
  const [code, signal] = await keep.ended;
  clearTimeout(timer);
  if (signal !== 'SIGKILL') fail(`cistern keep ended with ${code ?? signal}`);
  counts.keepers++;
  await startKeep(10 + random(1500));
}

function memoryFilesOf(pid) {
  const names = readdirSync(`/proc/${pid}/fd`).map((number) => {
    try {
      return readlinkSync(`/proc/${pid}/fd/${number}`);
    } catch {
      return '';
    }
  });
  return { all: names.filter((name) => name !== '').length, memory: names.filter((name) => name.includes('memfd:')).length };
}

/** Waits until nobody uses a region, and compares the regions with those that must be there. */
async function look() {
  counts.looks++;
  let regions;
  for (const end = performance.now() + longest; ; await sleep(1)) {
    ({ regions } = listRegions({ socket }));
    if (regions.every((each) => each.processes.length === 0)) break;
    if (performance.now() > end) fail(`processes that have ended hold regions: ${JSON.stringify(regions)}`);
  }
  for (const [name] of keep.committed) {
    if (!regions.some((each) => each.region === name)) fail(`the region ${name} is lost`);
  }
  for (const { region, state: is } of regions) {
    if (is !== 'committed') fail(`the region ${region} is ${is}, and nobody writes it`);
    if (keep.committed.has(region)) continue;
    const value = wholeValueOf(region);
    if (value === undefined) fail(`the region ${region} is not whole`);
    keep.committed.set(region, value);
  }
  for (const end = performance.now() + longest; ; await sleep(1)) {
    const { all, memory } = memoryFilesOf(keep.child.pid);
    // The connection of the last list may not have ended yet.
    if (memory === regions.length && all === keep.own + regions.length) return;
    if (performance.now() > end)
      fail(`cistern keep has ${all} descriptors, ${memory} of memory, for ${regions.length} regions; it began with ${keep.own}`);
  }
}

/** The one value that all bytes of a region have. */
function wholeValueOf(region) {
  const resource = new LastingMemoryResource({ region, bytes, layout: 'a', socket });
  const stream = new Stream();
  const buffer = new DeviceBuffer(bytes, { resource, stream });
  const found = new Set(buffer.toHostSync());
  buffer.dispose();
  resource.dispose();
  stream.dispose();
  return found.size === 1 && !found.has(0) ? [...found][0] : undefined;
}

await startKeep(never);
/** The steps of a process that writes, and of one that reads. */
const steps = { writing: await stepsOf('a'), reading: await stepsOf('a') };
await look();
const ownDescriptors = memoryFilesOf('self').all;

async function stepsOf(region) {
  const { code, printed } = await run(never, region, '7');
  if (code !== 0) fail(printed);
  return Number(printed);
}

keep.child.kill('SIGKILL');
await onKeepEnded();
counts.keepers = 0;
while (counts.writers + counts.readers + counts.keepers < kills && performance.now() < end) {
  try {
    const region = names[random(2)];
    const isReader = keep.committed.has(region);
    const { code, signal, printed } = await run(random(isReader ? steps.reading : steps.writing), region, String(1 + random(200)));
    if (signal === 'SIGKILL') counts[isReader ? 'readers' : 'writers']++;
    else if (code === 4) counts.refused++;
    else if (code === 0) counts.completed++;
    else fail(`a client ended with ${code ?? signal}: ${printed}`);
    await look();
    if (random(3) === 0 && keep.committed.has(region)) {
      if (wholeValueOf(region) !== keep.committed.get(region)) fail(`the region ${region} has other contents`);
      if (removeRegion(region, { socket }) !== bytes) fail(`the region ${region} was not removed`);
      keep.committed.delete(region);
    }
  } catch (error) {
    // A look that finds /proc gone, or no answer: cistern keep was killed.
    if (error.code !== 'ERR_CISTERN_KEEP_UNAVAILABLE' && error.code !== 'ENOENT') fail(error.stack);
    await onKeepEnded();
  }
}
keep.child.kill('SIGKILL');
await keep.ended;
if (memoryFilesOf('self').all > ownDescriptors)
  fail(`this process has ${memoryFilesOf('self').all} descriptors, and had ${ownDescriptors}`);
rmSync(folder, { recursive: true });
console.log(`no fault: ${JSON.stringify(counts)}, seed ${seed}`);
exit(0);
