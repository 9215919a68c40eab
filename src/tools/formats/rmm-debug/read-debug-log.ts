/**
 * Reads RMM's debug log (`RMM_DEBUG_LOG_FILE`, at the level `trace`) into a {@link RecordedRun}. A pool logs an allocation twice: as it is
 * asked for, and then with its pointer, which counts:
 *
 *     [ 12345][14:03:22:123456][trace ] [A][stream 0x55d0][1024B][0x7f3e8c000000]
 *     [ 12345][14:03:22:123470][trace ] [D][stream 0x55d0][1024B][0x7f3e8c000000]
 *
 * Other lines are left out. Sizes are those of the pool, rounded up to a multiple of 256.
 */
import { InvalidLogError } from '../../../basics/errors.js';
import { nanosecondsPerDay } from '../../../files/csv-rows.js';
import { EventKind } from '../event-columns.js';
import { linesOf } from '../lines.js';
import type { ReadingBudget } from '../reading-budget.js';
import type { RecordedRun } from '../recorded-run.js';
import { RunWriter, wholeNumber } from '../run-writer.js';

/** How a debug log begins. */
export const debugLogBeginning = /^\s*\[ *\d+\]\[\d\d:\d\d:\d\d[:.]\d{6}\]\[\w+ *\] /;

/** What comes before the message: the thread, the time and the level. */
const prefix = /^\s*\[ *(\d+)\]\[(\d\d):(\d\d):(\d\d)[:.](\d{6})\]\[\w+ *\] /;
/** The beginning of a message about an allocation, whichever case the word has. */
const streamWord = 'stream ';
/** Threads may write slightly out of order; a time that goes back further is on the next day. */
const longestStepBack = 60e9;

export function readDebugLog(source: string, bytes: Buffer, budget: ReadingBudget): RecordedRun {
  const writer = new RunWriter(source, budget);
  let day = 0;
  let last = 0;
  const timeOf = (parts: readonly string[]) => {
    const [hours = 0, minutes = 0, seconds = 0, microseconds = 0] = parts.map(Number);
    const time = ((hours * 60 + minutes) * 60 + seconds) * 1e9 + microseconds * 1e3;
    if (time < last - longestStepBack) day += nanosecondsPerDay;
    last = time;
    return day + time;
  };
  for (const [text] of linesOf(source, bytes)) {
    const [before = '', thread, ...clock] = prefix.exec(text) ?? [];
    const message = text.slice(before.length);
    if (thread === undefined || !message.startsWith('[') || !message.endsWith(']')) continue;
    const [action, stream = '', size = '', pointer = ''] = message.slice(1, -1).split('][', 4);
    if ((action !== 'A' && action !== 'D') || !stream.toLowerCase().startsWith(streamWord) || !size.endsWith('B')) continue;
    const isFailure = pointer.startsWith('FAILURE');
    const second = wholeNumber(size.slice(size.lastIndexOf(' ') + 1, -1));
    const first = isFailure ? 0 : wholeNumber(pointer);
    if (first === undefined || second === undefined) continue;
    const kind = isFailure ? EventKind.failure : action === 'A' ? EventKind.allocate : EventKind.free;
    writer.add({ kind, layer: 'rmm', thread, stream: stream.slice(streamWord.length), first, second, time: timeOf(clock) });
  }
  if (writer.eventCount === 0)
    throw new InvalidLogError(
      source,
      undefined,
      "is RMM's debug log, but has no allocations: they are logged at the level trace (RMM_LOGGING_LEVEL=TRACE when RMM is built)",
    );
  return writer.finish();
}
