import { closeSync, createReadStream, mkdtempSync, openSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeWhole } from '../files/write-whole.js';
import { formatSpecification } from '../specification/format-specification.js';
import { parseSpecification } from '../specification/parse-specification.js';
import { createResourceStack, type ResourceStack } from '../specification/resource-stack.js';
import type { Specification } from '../specification/specification.js';
import { assertOptions, optionNames } from '../validation.js';
import type { AllocationLog } from './allocation-log.js';
import { assertReplayable, Replay } from './replay-log.js';
import type { ReplayStreams } from './replay-result.js';

/** Options of {@link recordReplay}. */
export interface RecordReplayOptions {
  /**
   * Which streams the events go to.
   * @defaultValue `'log'`
   */
  readonly streams?: ReplayStreams;
}

const knownOptions = optionNames<RecordReplayOptions>({ streams: true });

/** What {@link recordReplay} did. */
export interface RecordedReplay {
  /** The stack that was recorded. */
  readonly resource: string;
  /** Allocations that ran out of memory; they are in the recording. */
  readonly failures: number;
}

/**
 * Replays a log once through a stack of resources, and records what happens: where the stack puts each allocation, what its pools take from
 * their upstreams and give back, the events and waits, and what ran out of memory. `cistern report` shows it.
 *
 * The times are those of the replay, not those of the log. The replay itself blocks, as `replayLog` does.
 * @param specification of the stack, as for {@link createResourceStack}
 * @param path where the recording goes, compressed if it ends in `.gz`; it is there as a whole or not at all
 * @throws InvalidLogError for a log without events, SpecificationError for a wrong description.
 * @throws ReplayError, naming the line, for any other error than exhausted memory.
 * @throws a system error of Node (`ENOENT`, `ENOSPC`, …) where the file cannot be written.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * await recordReplay(log, 'pool(cuda, events=deferred)', 'pool.cistern');
 * ```
 */
export async function recordReplay(
  log: AllocationLog,
  specification: string | Specification,
  path: string,
  options: RecordReplayOptions = {},
): Promise<RecordedReplay> {
  assertOptions(options, knownOptions);
  const { streams = 'log' } = options;
  assertReplayable(log, { streams });
  const upstream = parseSpecification(specification);
  // A recording is written while it is made, so this is not the file itself.
  const scratch = new ScratchRecording();
  try {
    const replay = new Replay(log, () => scratch.createStack(upstream), streams);
    let failures: number;
    try {
      ({ failures } = replay.observe());
    } finally {
      replay.end();
    }
    await writeWhole(path, async (sink) => {
      for await (const piece of scratch.read()) await sink.write(piece as Uint8Array);
    });
    return { resource: formatSpecification(upstream), failures };
  } finally {
    scratch.close();
  }
}

/** A recording in a file that has no name any more once it is open: the process can be killed at any time and leaves nothing. */
class ScratchRecording {
  #descriptor: number | undefined;

  /** A stack that is recorded to the file. */
  createStack(upstream: Specification): ResourceStack {
    const folder = mkdtempSync(join(tmpdir(), 'cistern-timeline-'));
    try {
      const file = join(folder, 'replay.cistern');
      this.#descriptor = openSync(file, 'wx+');
      return createResourceStack({ kind: 'recording', upstream, options: { file } });
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  }

  read(): AsyncIterable<unknown> {
    return createReadStream('', { fd: this.#descriptor as number, autoClose: false, start: 0, highWaterMark: 2 ** 20 });
  }

  close(): void {
    if (this.#descriptor !== undefined) closeSync(this.#descriptor);
  }
}
