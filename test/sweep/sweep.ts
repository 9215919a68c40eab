/**
 * The fault sweep: plays scenarios again and again, and lets the 1st, 2nd, 3rd … call of each function of the driver fail, and of each function
 * of the host that a scenario gives to cistern, until the scenario passes untouched.
 *
 * What is asked of each trial is told in `ScenarioRun` (a typed error or a recovery; valid structures; the same call works right after), and
 * here: whatever failed, stream order has no gap, and everything is given back once all is disposed. Nothing is excepted from that by name. What
 * only the collection of an unreachable buffer gives back is given back by one; and a stream that the driver refuses to destroy, for which
 * nobody can do more, is its environment's until that ends (`ledger.ts`).
 */
import { checkOrder, reclaimUnreachableBuffers } from '../../src/index.js';
import { driverFaultPoints, type FaultPoint, type HostFunction } from './fault-points.js';
import { type Ledger, leaksBetween, takeLedger } from './ledger.js';
import { type Scenario, ScenarioRun } from './scenario-run.js';

/** What is made to fail in a trial. */
interface Fault {
  readonly point: FaultPoint;
  readonly nth: number;
  readonly status: number;
}

/** How the trials of a scenario ended. */
export interface SweepResult {
  readonly scenario: string;
  /** Trials in which a call failed: with a step that threw, and with none. */
  errors: number;
  recoveries: number;
  /** Trials in which no call failed, as far as can be told. */
  untouched: number;
  /** Trials that left something behind. */
  leaks: number;
  /** Whatever must not be, leaks among it, with what failed before. */
  readonly problems: string[];
}

/** Options of {@link sweep}. */
export interface SweepOptions {
  /**
   * Where given, only one call of each function is made to fail, and this says which.
   * @defaultValue every call
   */
  readonly seed?: number;
  /** Called before each trial with what fails in it. */
  readonly onTrial?: (fault: string) => void;
}

/** Native code calls some functions for itself, which nobody counts. So many trials in a row in which nothing is seen to fail are the end. */
const patience = 2;

/** Makes the trials of a scenario. */
export async function sweep(scenario: Scenario, { seed, onTrial }: SweepOptions = {}): Promise<SweepResult> {
  const trials = new Trials(scenario, onTrial);
  if (!(await trials.playUntouched())) return trials.result;
  for (const { point, calls } of trials.points()) {
    if (seed !== undefined) {
      if (calls === 0) continue;
      const chance = hash(`${seed} ${scenario.name} ${point.name}`);
      await trials.play({ point, nth: 1 + (chance % calls), status: point.statuses[chance % point.statuses.length] as number });
      continue;
    }
    for (const status of point.statuses) {
      let untouched = 0;
      for (let nth = 1; untouched < patience; nth++) untouched = (await trials.play({ point, nth, status })) ? 0 : untouched + 1;
    }
  }
  return trials.result;
}

class Trials {
  readonly result: SweepResult;
  readonly #scenario: Scenario;
  readonly #onTrial: ((fault: string) => void) | undefined;
  readonly #hostFunctions = new Map<string, HostFunction>();
  /** How often each function is called where nothing fails. */
  #calls: { readonly point: FaultPoint; readonly calls: number }[] = [];
  #ledger: Ledger = {};

  constructor(scenario: Scenario, onTrial: ((fault: string) => void) | undefined) {
    this.#scenario = scenario;
    this.#onTrial = onTrial;
    this.result = { scenario: scenario.name, errors: 0, recoveries: 0, untouched: 0, leaks: 0, problems: [] };
  }

  points(): readonly { readonly point: FaultPoint; readonly calls: number }[] {
    return this.#calls;
  }

  /** Plays the scenario as it is meant to go. Returns whether it does. */
  async playUntouched(): Promise<boolean> {
    this.#onTrial?.('nothing');
    // The first time makes what stays: default streams, staging memory.
    await this.#playWith(undefined);
    this.#ledger = takeLedger();
    const points = driverFaultPoints();
    const before = points.map((point) => point.calls());
    const hostBefore = new Map([...this.#hostFunctions].map(([name, point]) => [name, point.calls()]));
    const run = await this.#playWith(undefined);
    this.#calls = points.map((point, i) => ({ point, calls: point.calls() - (before[i] as number) }));
    for (const [name, point] of this.#hostFunctions) this.#calls.push({ point, calls: point.calls() - (hostBefore.get(name) ?? 0) });
    const leaks = this.#leaks(undefined);
    const problems = [...run.problems, ...run.errors, ...leaks];
    this.result.problems.push(...problems.map((problem) => `nothing fails: ${problem}`));
    return problems.length === 0;
  }

  /** Plays the scenario with a fault. Returns whether anything was seen to fail. */
  async play(fault: Fault): Promise<boolean> {
    const { point, nth, status } = fault;
    const { result } = this;
    const name = `${point.name} ${nth}${status === 0 ? '' : ` with ${status}`}`;
    this.#onTrial?.(name);
    const before = point.calls();
    point.arm(nth, status);
    const { errors, problems } = await this.#playWith(fault);
    const hasFired = point.calls() - before >= nth;
    point.arm(0, status);
    const leaks = this.#leaks(hasFired ? point.name : undefined);
    result.problems.push(...[...problems, ...leaks].map((problem) => `${name}: ${problem}`));
    if (leaks.length > 0) result.leaks++;
    if (errors.length > 0) result.errors++;
    else if (hasFired) result.recoveries++;
    else result.untouched++;
    return hasFired || errors.length > 0;
  }

  async #playWith(fault: Fault | undefined): Promise<ScenarioRun> {
    const run = new ScenarioRun(this.#hostFunctions);
    if (fault?.point.allowsOrderCheck === false) {
      await run.play(this.#scenario);
      return run;
    }
    using checker = checkOrder({ stacks: false });
    await run.play(this.#scenario);
    if (run.expectsOrderReports) return run;
    for (const { kind, missing } of checker.reports) run.problems.push(`stream order: ${kind}, ${missing}`);
    return run;
  }

  #leaks(failed: string | undefined): string[] {
    let ledger = takeLedger();
    let leaks = leaksBetween(this.#ledger, ledger, failed);
    if (leaks.length > 0) {
      // A buffer that could not be made may have been refused its free as well: that is tried again with the next collection.
      reclaimUnreachableBuffers('major');
      ledger = takeLedger();
      leaks = leaksBetween(this.#ledger, ledger, failed);
    }
    this.#ledger = ledger;
    return leaks.map((leak) => `leaks ${leak}`);
  }
}

/** An integer from 0 to 2^32 - 1 that a text leads to (FNV-1a). */
function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193);
  // The lowest bits of texts that end alike are alike.
  return (value ^ (value >>> 15)) >>> 0;
}
