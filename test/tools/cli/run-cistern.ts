import { type ChildProcess, spawn } from 'node:child_process';
import { Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { runCommand } from '../../../src/tools/cli/program.js';

const main = fileURLToPath(new URL('../../../dist/tools/cli/main.js', import.meta.url));

/** The outcome of a run of the command. */
export interface CommandRun {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** File descriptors for output that is not collected in {@link CommandRun}. */
export interface CommandOutput {
  readonly stdout?: number;
  readonly stderr?: number;
}

/**
 * Runs the command and waits for its end. If more than its arguments is given, that is the built one (`npm run build`), in a process:
 * `act` receives this once it runs, and `input` is its standard input. Otherwise the command is called in this process, which takes
 * a tenth of the time.
 */
export function runCistern(
  args: readonly string[],
  ...more: [act?: (child: ChildProcess) => void, environment?: object, output?: CommandOutput, input?: Buffer]
): Promise<CommandRun> {
  return more.length > 0 || needsProcess(args) ? startCistern(args, ...more) : callCistern(args);
}

/** Whether it starts a program, is about its process, or uses its streams, or changes the device for all that comes after. */
function needsProcess(args: readonly string[]): boolean {
  return (
    ['watch', 'run', 'keep', 'build', 'doctor'].some((command) => args.includes(command)) ||
    args.some((each) => each.startsWith('/dev/') || each.startsWith('--device-memory'))
  );
}

async function callCistern(args: readonly string[]): Promise<CommandRun> {
  const written = { stdout: '', stderr: '' };
  const stream = (name: keyof typeof written) =>
    new Writable({
      decodeStrings: false,
      write: (text, _encoding, done) => {
        written[name] += text;
        done();
      },
    });
  const code = await runCommand(args, { stdout: stream('stdout'), stderr: stream('stderr') });
  return { code, signal: null, ...written };
}

/** Runs the built command. */
export function startCistern(
  args: readonly string[],
  act: (child: ChildProcess) => void = () => {},
  environment = {},
  output: CommandOutput = {},
  input?: Buffer,
): Promise<CommandRun> {
  const env = { ...process.env, CISTERN_DEVICE: 'software', NO_COLOR: '1', ...environment };
  const child = spawn(process.execPath, [main, ...args], {
    env,
    stdio: [input === undefined ? 'ignore' : 'pipe', output.stdout ?? 'pipe', output.stderr ?? 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  child.stdout?.on('data', (text) => {
    stdout += text;
  });
  child.stderr?.on('data', (text) => {
    stderr += text;
  });
  act(child);
  child.stdin?.end(input);
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code, signal) => resolve({ code, signal, stdout, stderr }));
  });
}
