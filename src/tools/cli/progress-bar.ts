import { SingleBar } from 'cli-progress';
import { visibleInLine } from './output.js';
import type { Terminal } from './terminal.js';

/** Shows the progress of some work. */
export interface ProgressBar {
  /** @param total set when the total becomes known or changes */
  update(value: number, detail: string, total?: number): void;
  /** Removes the bar from the screen. */
  stop(): void;
}

/**
 * A progress bar with the remaining time, on standard error; does nothing if that is not a
 * terminal.
 * @param formatRate formats the speed, if `total` counts something with a name
 */
export function progressBar(terminal: Terminal, title: string, total: number, formatRate?: (perSecond: number) => string): ProgressBar {
  if (!terminal.stderr.isTerminal) return { update() {}, stop() {} };
  const bar = new SingleBar({
    format: `${visibleInLine(title)} [{bar}] {percentage}%{rate}{left} {detail}`,
    stream: terminal.stderr.unescaped,
    clearOnComplete: true,
    // Leaves the terminal's settings alone, so that an interrupt need not restore them.
    hideCursor: false,
    linewrap: true,
  });
  const start = performance.now();
  bar.start(total, 0, { detail: '', rate: '', left: '' });
  return {
    update: (value, detail, newTotal) => {
      if (newTotal !== undefined) bar.setTotal(newTotal);
      const seconds = (performance.now() - start) / 1000;
      const rate = formatRate === undefined || seconds === 0 ? '' : ` ${formatRate(value / seconds)}`;
      const left = value > 0 ? `, ${formatDuration((seconds * Math.max(0, bar.getTotal() - value)) / value)} left` : '';
      bar.update(value, { detail: visibleInLine(detail), rate, left });
    },
    stop: () => bar.stop(),
  };
}

/** `75` as `1 min 15 s`. */
function formatDuration(seconds: number): string {
  const whole = Math.ceil(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
}
