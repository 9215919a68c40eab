/**
 * The figures of `cistern report` about other stacks: the smallest maximum with which each completes
 * the log, found by replaying it on the software device.
 */

import { CisternError } from '../../basics/errors.js';
import { GiB } from '../../basics/units.js';
import { selectBackend } from '../../driver/backend.js';
import { configureSoftwareDevice, mostSoftwareBytes } from '../../driver/software-device.js';
import type { EventSink, LoggedEvent } from '../formats/event-columns.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import { fitLog } from '../replay/fit-log.js';
import type { AllocationProjection, LogEnd } from '../replay/project-allocations.js';
import type { ReportFit } from '../report/report-contents.js';
import { progressBar } from './progress-bar.js';
import type { Terminal } from './terminal.js';

/** The stacks that a report compares with what was reserved. */
const specifications = ['cuda', 'pool(cuda, deallocationEvents=deferred)', 'pool(cuda, deallocationEvents=off)', 'arena(cuda)'];

/**
 * Each stack needs at least a few replays, and with this many events, a replay takes half a second,
 * or 1.4 s on `cuda`.
 */
const mostEvents = 10_000_000;

/** The parts of a log that can be replayed. */
interface ReplayedLogs {
  readonly log: AllocationLog | undefined;
  readonly graphs: readonly AllocationLog[];
}

const noLogs: ReplayedLogs = { log: undefined, graphs: [] };

/** Collects the allocations of a log while it is read, as long as they can be replayed. */
export class ReplayedEvents implements Pick<EventSink, 'append'> {
  #projection: AllocationProjection | undefined;
  readonly #most: number;

  constructor(projection: AllocationProjection, most = mostEvents) {
    this.#projection = projection;
    this.#most = most;
  }

  append(event: Readonly<LoggedEvent>): void {
    this.#projection?.append(event);
    if ((this.#projection?.eventCount ?? 0) > this.#most) this.#projection = undefined;
  }

  /**
   * The allocations, and those of each graph, unless there are none or too many, or they contradict each
   * other.
   */
  finish(end: LogEnd): ReplayedLogs {
    try {
      const log = this.#projection?.finish(end);
      if (log === undefined || log.eventCount === 0) return noLogs;
      return { log, graphs: this.#projection?.finishGraphs(end) ?? [] };
    } catch (error) {
      if (error instanceof CisternError) return noLogs;
      throw error;
    }
  }
}

/**
 * What each stack needs for each log; an empty list for a log that cannot be replayed. Fits none if
 * the addon is missing, or a log needs more memory than the software device can have.
 * @param milliseconds how long this may take
 */
export function fitForReport(logs: readonly (AllocationLog | undefined)[], milliseconds: number, terminal: Terminal): ReportFit[][] {
  const none = logs.map(() => []);
  const peak = logs.reduce((most, log) => Math.max(most, log?.peakLiveBytes ?? 0), 0);
  if (peak === 0 || peak > mostSoftwareBytes || milliseconds === 0) return none;
  try {
    // Its memory is not touched, so it may be larger than the machine's.
    configureSoftwareDevice({ totalBytes: Math.min(8 * peak + 4 * GiB, mostSoftwareBytes) });
    selectBackend('software');
  } catch (error) {
    if (error instanceof CisternError) return none;
    throw error;
  }
  const end = performance.now() + milliseconds;
  const total = logs.length * specifications.length;
  const bar = progressBar(terminal, 'fitting', total);
  let done = 0;
  try {
    return logs.map((log) => {
      const fits: ReportFit[] = [];
      for (const specification of log === undefined ? [] : specifications) {
        bar.update(done, specification);
        const left = Math.max(0, end - performance.now());
        fits.push(fitLog(log as AllocationLog, specification, { repeat: 1, timeLimitMilliseconds: left / (total - done) }));
        done++;
      }
      return fits;
    });
  } finally {
    bar.stop();
  }
}
