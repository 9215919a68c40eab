import { SingleBar } from 'cli-progress';
import type { Terminal } from './terminal.js';

/** How far something has come. */
export interface ProgressBar {
  update(value: number, detail: string): void;
  /** Takes the bar off the screen. */
  stop(): void;
}

/** A progress bar on standard error, or nothing where that is no terminal. */
export function progressBar(terminal: Terminal, title: string, total: number): ProgressBar {
  if (terminal.stderr.isTTY !== true) return { update() {}, stop() {} };
  const bar = new SingleBar({
    format: `${title} [{bar}] {percentage}% {detail}`,
    stream: terminal.stderr,
    clearOnComplete: true,
    // Nothing of the terminal is changed, so that an interrupt has nothing to undo.
    hideCursor: false,
    linewrap: true,
  });
  bar.start(total, 0, { detail: '' });
  return {
    update: (value, detail) => bar.update(value, { detail }),
    stop: () => bar.stop(),
  };
}
