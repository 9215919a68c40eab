import { readdirSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { DeviceUnavailableError, InvalidLogError } from '../../basics/errors.js';
import { nearestWord } from '../../basics/nearest-word.js';

/** Advice about a log without allocations. */
export const emptyLogAdvice =
  'the program allocated nothing through a recorded resource; run it with CISTERN_LOG_FILE=run.cistern to record all of its resources';

/** Of what may be a snapshot of PyTorch, no part can be read. */
const snapshotFault = ', or not a PyTorch snapshot: ';

/** Advice about an error, unless its message already has it. */
export function adviceFor(error: unknown): string | undefined {
  if (error instanceof InvalidLogError && error.message.includes(': has no layer ')) return undefined;
  if (error instanceof InvalidLogError && error.message.includes(': is damaged at byte ') && !error.message.includes(snapshotFault)) {
    return '"cistern report" shows the part of a recording before the damage';
  }
  if (error instanceof InvalidLogError && error.message.endsWith('has no events to replay')) return emptyLogAdvice;
  if (error instanceof InvalidLogError && (error.line === undefined || error.line === 1)) {
    return (
      "a log is a recording, a report or a trace from cistern, a CSV file or a debug log from RMM, a memory snapshot or a profiler's trace from PyTorch, an SQLite export from Nsight Systems, " +
      'a replay log from Umpire, or RAFT\'s CSV of memory; "cistern generate" makes one to try'
    );
  }
  if (error instanceof DeviceUnavailableError) return '"cistern doctor" shows what was tried; --device software needs no GPU';
  const { code, path, syscall } = error as NodeJS.ErrnoException;
  if (code === 'ENOENT' && path !== undefined && syscall !== 'access') return adviceOnPath(path);
  return undefined;
}

function adviceOnPath(path: string): string {
  if (/^[a-z][a-z\d+.-]+:\/\//i.test(path)) return 'this takes the path of a file, not a URL: download the file first';
  const folder = dirname(path);
  try {
    // A dangling link exists, so this lists it.
    const others = readdirSync(folder).filter((name) => name !== basename(path));
    const nearest = nearestWord(basename(path), others);
    if (nearest !== undefined) return `did you mean ${join(folder, nearest)}?`;
  } catch {
    return `there is no folder ${resolve(folder)}`;
  }
  return `no file of a similar name is in ${resolve(folder)}`;
}
