/**
 * The fault sweep. It plays each scenario repeatedly, and makes the 1st, 2nd, 3rd … call of each
 * driver function fail, and of each host function that a scenario passes to cistern, until the
 * scenario passes without a fault. For each driver call there are some more trials, in which a
 * second, later call fails as well: one that recovers from the first fault, or any other.
 *
 * Each trial must meet the conditions in `ScenarioRun` (a typed error or a recovery; valid
 * structures; the same call succeeds right after), and those here: whatever failed, stream order
 * has no gap, and everything is given back after everything is disposed. There are no exceptions by
 * name. What only the collection of an unreachable buffer, stream or event gives back is given back
 * by one. A second fault may hit the call by which a failed call gives back what it had allocated:
 * that memory stays allocated until the environment ends, and is counted as stranded.
 */
import { setImmediate } from 'node:timers/promises';
import { checkOrder } from '../../src/checking/index.js';
import { reclaimUnreachableBuffers } from '../../src/index.js';
import { DriverFunction, driverFaultPoints, type FaultPoint, type HostFunction } from './fault-points.js';
import { type Ledger, leaksBetween, takeLedger } from './ledger.js';
import { type Scenario, ScenarioRun } from './scenario-run.js';

/** The fault of a trial. */
interface Fault {
  readonly point: FaultPoint;
  readonly nth: number;
  readonly status: number;
  /** A second fault; `nth` counts from the first one. */
  readonly second?: { readonly point: DriverFunction; readonly nth: number; readonly status: number };
}

/** The outcome of a scenario's trials. */
export interface SweepResult {
  readonly scenario: string;
  /** Trials in which a call failed: with a step that threw, and with none. */
  errors: number;
  recoveries: number;
  /** Those trials in which a second call failed. */
  seconds: number;
  /** Trials in which no call failed. */
  untouched: number;
  /** Trials that left something behind although at most one call failed. */
  leaks: number;
  /**
   * Trials that left something behind because the driver also refused to take back what a failed
   * call had allocated.
   */
  stranded: number;
  /** All violations, including leaks, with the faults before them. */
  readonly problems: string[];
}

/** Options of {@link sweep}. */
export interface SweepOptions {
  /**
   * If set, only one call of each function is made to fail, chosen by this.
   * @defaultValue every call
   */
  readonly seed?: number;
  /** Called before each trial with its fault. */
  readonly onTrial?: (fault: string) => void;
}

/**
 * How many trials with two faults follow each trial with one, and the greatest distance of the two,
 * in calls of the second function.
 */
const secondFaults = 4;
const farthestSecond = 3;
/** How many collections may pass before what is left counts as leaked. */
const collections = 8;

/** Makes the trials of a scenario. */
export async function sweep(scenario: Scenario, { seed, onTrial }: SweepOptions = {}): Promise<SweepResult> {
  const trials = new Trials(scenario, onTrial);
  if (!(await trials.playUntouched())) return trials.result;
  for (const { point, calls } of trials.points()) {
    if (seed !== undefined) {
      if (calls === 0) continue;
      const chance = hash(`${seed} ${scenario.name} ${point.name}`);
      const fault = { point, nth: 1 + (chance % calls), status: point.statuses[chance % point.statuses.length] as number };
      if (await trials.play(fault)) await trials.playSeconds(fault, 1);
      continue;
    }
    for (const status of point.statuses) {
      for (let nth = 1; await trials.play({ point, nth, status }); nth++) {
        if (status === point.statuses[0]) await trials.playSeconds({ point, nth, status }, secondFaults);
      }
    }
  }
  return trials.result;
}

class Trials {
  readonly result: SweepResult;
  readonly #scenario: Scenario;
  readonly #onTrial: ((fault: string) => void) | undefined;
  readonly #hostFunctions = new Map<string, HostFunction>();
  /** How often each function is called without a fault. */
  #calls: { readonly point: FaultPoint; readonly calls: number }[] = [];
  /** The driver functions that were called in the last trial. */
  #called: readonly DriverFunction[] = [];
  #ledger: Ledger = {};

  constructor(scenario: Scenario, onTrial: ((fault: string) => void) | undefined) {
    this.#scenario = scenario;
    this.#onTrial = onTrial;
    this.result = { scenario: scenario.name, errors: 0, recoveries: 0, seconds: 0, untouched: 0, leaks: 0, stranded: 0, problems: [] };
  }

  points(): readonly { readonly point: FaultPoint; readonly calls: number }[] {
    return this.#calls;
  }

  /** Plays the scenario without a fault. Returns whether it passes. */
  async playUntouched(): Promise<boolean> {
    this.#onTrial?.('nothing');
    // The first time creates what stays: default streams, staging memory.
    await this.#playWith(undefined);
    this.#ledger = takeLedger();
    const points = driverFaultPoints();
    const before = points.map((point) => point.calls());
    const hostBefore = new Map([...this.#hostFunctions].map(([name, point]) => [name, point.calls()]));
    const run = await this.#playWith(undefined);
    this.#calls = points.map((point, i) => ({ point, calls: point.calls() - (before[i] as number) }));
    for (const [name, point] of this.#hostFunctions) this.#calls.push({ point, calls: point.calls() - (hostBefore.get(name) ?? 0) });
    const leaks = await this.#leaks([]);
    const problems = [...run.problems, ...run.errors, ...leaks];
    this.result.problems.push(...problems.map((problem) => `nothing fails: ${problem}`));
    return problems.length === 0;
  }

  /** Plays the scenario with a fault. Returns whether the call failed. */
  async play(fault: Fault): Promise<boolean> {
    const { point, nth, status, second } = fault;
    const { result } = this;
    const name = `${nameOf(fault)}${second === undefined ? '' : `, then ${nameOf(second)}`}`;
    this.#onTrial?.(name);
    const functions = driverFaultPoints();
    const before = functions.map((each) => each.calls());
    point.arm(nth, status);
    if (second !== undefined) (point as DriverFunction).armAfter(second.point, second.nth, second.status);
    const { errors, problems } = await this.#playWith(fault);
    this.#called = functions.filter((each, i) => each.calls() > (before[i] as number));
    const failed: string[] = [];
    // If the second is of the same function, it replaces the first, which has failed in a trial of
    // its own.
    if (second?.point === point || point.disarm()) {
      failed.push(point.name);
      if (second?.point.disarm()) failed.push(second.point.name);
    }
    const leaks = await this.#leaks(failed);
    if (failed.length < 2) problems.push(...leaks);
    result.problems.push(...problems.map((problem) => `${name}: ${problem}`));
    if (leaks.length > 0) result[failed.length < 2 ? 'leaks' : 'stranded']++;
    if (failed.length === 2) result.seconds++;
    if (errors.length > 0) result.errors++;
    else if (failed.length > 0) result.recoveries++;
    else result.untouched++;
    return failed.length > 0;
  }

  /** Plays the scenario several times with the last trial's fault and another after it. */
  async playSeconds(first: Fault, trials: number): Promise<void> {
    if (!(first.point instanceof DriverFunction)) return;
    const candidates = this.#called;
    for (let trial = 0; trial < trials; trial++) {
      const chance = hash(`${this.#scenario.name} ${nameOf(first)} ${trial}`);
      const point = candidates[chance % candidates.length] as DriverFunction;
      const nth = 1 + ((chance >>> 8) % farthestSecond);
      await this.play({ ...first, second: { point, nth, status: point.statuses[(chance >>> 16) % point.statuses.length] as number } });
    }
  }

  async #playWith(fault: Fault | undefined): Promise<ScenarioRun> {
    const run = new ScenarioRun(this.#hostFunctions, fault?.second === undefined ? 1 : 2);
    if (fault?.point.allowsOrderCheck === false || fault?.second?.point.allowsOrderCheck === false) {
      await run.play(this.#scenario);
      return run;
    }
    using checker = checkOrder({ stacks: false });
    await run.play(this.#scenario);
    if (run.expectsOrderViolations) return run;
    for (const { kind, missing } of checker.violations) run.problems.push(`stream order: ${kind}, ${missing}`);
    return run;
  }

  async #leaks(failed: readonly string[]): Promise<string[]> {
    let ledger = takeLedger();
    let leaks = leaksBetween(this.#ledger, ledger, failed);
    // If a buffer could not be made, its free may have been refused as well: the next collection tries
    // it again. So it is for a stream, in a job after the one that made it, and after the collection,
    // which on a busy machine may not find it at once.
    for (let attempt = 0; leaks.length > 0 && attempt < collections; attempt++) {
      await setImmediate();
      reclaimUnreachableBuffers('major');
      for (let turn = 0; turn < 3; turn++) await setImmediate();
      ledger = takeLedger();
      leaks = leaksBetween(this.#ledger, ledger, failed);
    }
    this.#ledger = ledger;
    return leaks.map((leak) => `leaks ${leak}`);
  }
}

function nameOf({ point, nth, status }: Fault): string {
  return `${point.name} ${nth}${status === 0 ? '' : ` with ${status}`}`;
}

/** An integer from 0 to 2^32 - 1 from a text (FNV-1a). */
function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193);
  // Texts with equal ends give equal lowest bits.
  return (value ^ (value >>> 15)) >>> 0;
}
