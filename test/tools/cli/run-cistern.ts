import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

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
 * Runs the built command (`npm run build`) and waits for its end; `act` receives the process once
 * it runs, and `input` is its standard input.
 */
export function runCistern(
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
