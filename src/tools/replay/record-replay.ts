import { closeSync, createReadStream, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { assertOptions, optionNames } from '../../basics/validation.js';
import { createFile } from '../../files/new-file.js';
import { formatSpecification } from '../../specification/format-specification.js';
import { parseSpecification } from '../../specification/parse-specification.js';
import { createResourceStack, type ResourceStack } from '../../specification/resource-stack.js';
import type { Specification } from '../../specification/specification.js';
import { writeWhole } from '../files/write-whole.js';
import type { AllocationLog } from './allocation-log.js';
import { assertReplayable, Replay } from './replay-log.js';
import type { ReplayStreams } from './replay-result.js';

/** Options of {@link recordReplay}. */
export interface RecordReplayOptions {
  /**
   * The streams on which to replay the events.
   * @defaultValue `'log'`
   */
  readonly streams?: ReplayStreams | undefined;
}

const knownOptions = optionNames<RecordReplayOptions>({ streams: true });

/** The result of {@link recordReplay}. */
export interface RecordedReplay {
  /** The stack that was recorded. */
  readonly resource: string;
  /** Number of allocations that ran out of memory; they are in the recording. */
  readonly failures: number;
}

/**
 * Replays a log once through a stack of resources, and records what happens: where the stack puts
 * each allocation, what its pools take from their upstreams and return, events and waits, and which
 * allocations ran out of memory. `cistern report` shows the recording.
 *
 * The times are those of the replay, not of the log. The replay itself blocks, as in `replayLog`.
 * @param specification the stack, as for {@link createResourceStack}
 * @param path the recording's file, compressed if it ends in `.gz`; it is written completely or not
 * at all
 * @throws InvalidLogError if the log has no events; SpecificationError if the specification is
 * invalid.
 * @throws ReplayError, naming the line, for any error other than exhausted memory.
 * @throws a system error of Node (`ENOENT`, `ENOSPC`, …) if the file cannot be written.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * await recordReplay(log, 'pool(cuda, deallocationEvents=deferred)', 'pool.cistern');
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
  // A recording is written as it is made, so it cannot go directly to the final file.
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

/**
 * A recording in a file that is unlinked once it is open: if the process is killed, nothing is
 * left.
 */
class ScratchRecording {
  #descriptor: number | undefined;

  /** Makes a stack that is recorded to the file. */
  createStack(upstream: Specification): ResourceStack {
    const folder = mkdtempSync(join(tmpdir(), 'cistern-timeline-'));
    try {
      const file = join(folder, 'replay.cistern');
      this.#descriptor = createFile(file, 'read and write', 0o600);
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
