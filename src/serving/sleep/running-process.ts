import { readFileSync } from 'node:fs';
import { invalidValue, resultOrNothing } from '../../basics/errors.js';

/** A process that runs, by its id. Another one may get the same id once it has ended. */
export interface RunningProcess {
  readonly pid: number;
  /** When it started, in ticks since the system did. */
  readonly start: string;
}

/** @throws ArgumentRangeError if there is no such process, or the id is that of a thread: the driver acts on its process then. */
export function runningProcess(pid: number): RunningProcess {
  const start = startOf(pid);
  if (start === undefined) throw invalidValue(`pid must be the id of a process, got ${pid}: there is none`);
  const group = /^Tgid:\s*(\d+)$/m.exec(resultOrNothing(() => readFileSync(`/proc/${pid}/status`, 'utf8')) ?? '')?.[1];
  if (group !== undefined && Number(group) !== pid) {
    throw invalidValue(`pid must be the id of a process, got ${pid}: it is a thread of process ${group}`);
  }
  return { pid, start };
}

/** Whether it has ended, though its parent may not have taken notice. */
export function hasEnded({ pid, start }: RunningProcess): boolean {
  return startOf(pid) !== start;
}

function startOf(pid: number): string | undefined {
  const text = resultOrNothing(() => readFileSync(`/proc/${pid}/stat`, 'utf8'));
  // The name of the program, in parentheses, may contain anything. The start is the 20th field after it, and the bytes of the process's
  // memory follow: they are 0 once it ends, before its files are closed, and as long as its parent has not taken notice.
  const fields = text?.slice(text.lastIndexOf(')') + 2).split(' ');
  return fields === undefined || fields[20] === '0' ? undefined : fields[19];
}
