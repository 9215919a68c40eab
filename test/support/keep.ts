import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readlinkSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterAll } from 'vitest';
import { skipTest } from './skip-test.js';

const root = process.env['CISTERN_TEST_PACKAGE'] ?? fileURLToPath(new URL('../..', import.meta.url));
const command = join(root, 'dist/tools/cli/main.js');

const folder = mkdtempSync(join(tmpdir(), 'cistern-keep-'));
const running = new Set<ChildProcess>();
let count = 0;
afterAll(() => {
  for (const each of running) each.kill('SIGKILL');
  rmSync(folder, { recursive: true });
});

/** A `cistern keep` that runs. */
export interface Keep {
  readonly socket: string;
  readonly process: ChildProcess;
  /** The descriptors that it has open, by what they are: `socket:`, `/memfd:…`. */
  descriptors(): string[];
  /** Kills it, and waits until it has ended. */
  kill(): Promise<void>;
}

/** A path for a socket at which nobody listens. */
export function newSocketPath(): string {
  return join(folder, `${++count}.sock`);
}

/** Starts `cistern keep`, and waits until it listens. Skips the test where there is none. */
export async function startKeep(options: { readonly limit?: string; readonly socket?: string } = {}): Promise<Keep> {
  if (process.platform !== 'linux') skipTest('processes send descriptors on Linux only');
  const socket = options.socket ?? newSocketPath();
  const limit = options.limit === undefined ? [] : ['--limit', options.limit];
  const child = spawn(process.execPath, [command, 'keep', '--socket', socket, ...limit], { stdio: ['ignore', 'ignore', 'pipe'] });
  running.add(child);
  const hasEnded = once(child, 'exit').then(() => running.delete(child));
  let printed = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    printed += text;
  });
  while (!printed.includes('programs connect to')) {
    if (child.exitCode !== null || child.signalCode !== null) throw new Error(`cistern keep has ended: ${printed}`);
    await sleep(2);
  }
  return {
    socket,
    process: child,
    descriptors: () => descriptorsOf(child.pid as number),
    kill: async () => {
      child.kill('SIGKILL');
      await hasEnded;
    },
  };
}

/** Runs the command `cistern keep` with other arguments, to its end. */
export function runKeep(...args: readonly string[]): { status: number | null; stdout: string; stderr: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [command, 'keep', ...args], { encoding: 'utf8', timeout: 60_000 });
  return { status, stdout, stderr };
}

/** What the descriptors of a process are. */
function descriptorsOf(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((number) => {
    try {
      return [readlinkSync(`/proc/${pid}/fd/${number}`)];
    } catch {
      return []; // it was closed meanwhile
    }
  });
}
