import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { NativeBench } from './native.mjs';
import { writeNativeTrace } from './traces.mjs';

/** @typedef {import('./traces.mjs').Trace} Trace */

/**
 * @typedef {object} ContextOptions
 * @property {import('./cistern.mjs').Cistern} cistern
 * @property {any} baseline the contents of baseline.json
 * @property {readonly Trace[]} traces
 * @property {number} repeat samples per process
 * @property {number} rounds processes per subject
 * @property {boolean} isQuick
 * @property {readonly string[] | undefined} sections of `peers`; all of them if undefined
 * @property {(reason: string) => void} skip
 * @property {(step: string) => void} progress
 */

const leastNativeEvents = 200_000;

/** The context that every benchmark of a run receives. */
export class Context {
  /** @type {string | undefined} */
  #folder;
  /** @type {Map<string, { path: string, events: number }>} */
  #nativeTraces = new Map();

  /** @param {ContextOptions} options */
  constructor(options) {
    this.cistern = options.cistern;
    this.baseline = options.baseline;
    this.traces = options.traces;
    this.repeat = options.repeat;
    this.rounds = options.rounds;
    this.isQuick = options.isQuick;
    this.sections = options.sections;
    this.skip = options.skip;
    this.progress = options.progress;
    this.native = new NativeBench(options.skip);
  }

  /**
   * Replays a trace natively, once for each sample, and more often if the trace is short.
   * @param {'null' | 'malloc'} mode
   * @param {Trace} trace
   * @returns {Promise<import('./figures.mjs').Figures>}
   */
  async replayNatively(mode, trace) {
    const { path, events } = await this.#nativeTrace(trace);
    const repetitions = Math.max(this.repeat, Math.ceil(leastNativeEvents / events));
    return (await this.native.run(mode, path, repetitions)).nanosecondsPerOperation;
  }

  /**
   * The trace in the form that `bench_native` reads.
   * @param {Trace} trace
   */
  async #nativeTrace({ name, path }) {
    const known = this.#nativeTraces.get(name);
    if (known !== undefined) return known;
    this.#folder ??= mkdtempSync(join(tmpdir(), 'cistern-bench-'));
    const log = await this.cistern.readAllocationLog(path);
    const written = { path: join(this.#folder, `${name}.bin`), events: log.eventCount };
    writeNativeTrace(log, written.path);
    this.#nativeTraces.set(name, written);
    return written;
  }

  [Symbol.dispose]() {
    if (this.#folder !== undefined) rmSync(this.#folder, { recursive: true });
  }
}
