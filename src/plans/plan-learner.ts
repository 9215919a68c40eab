/**
 * Learns a plan. A recorded pass is served by the fallback. Once enough passes in a row had the same
 * operations, the planner makes a plan of them, which serves the passes that follow. If requests
 * deviate from it in several passes in a row, passes are recorded again; after each plan that no pass
 * followed, it takes twice as many.
 *
 *     recorded passes   a   b   b'        b and b' have the same operations
 *                               `- a plan of b and b'
 *     planned passes    ok  x   x   x     recorded again
 */
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertNoPromise } from '../basics/validation.js';
import { PassRecorder } from './pass-recorder.js';
import { checkedPlan, type Plan } from './plan.js';
import { differenceOf, type OrderedSequence } from './sequence.js';

/**
 * Makes a plan from recorded passes with the same operations: `planAllocations` of `cistern/planning`.
 */
export type Planner = (
  passes: readonly OrderedSequence[],
  options: { readonly alignmentBytes: number; readonly timeLimitMilliseconds: number },
) => Plan;

/**
 * The plan of a planner. @throws any error that the planner throws; CisternError, ArgumentTypeError if it does not
 * return a plan.
 */
export function plannedBy(planner: Planner, passes: readonly OrderedSequence[], limits: Parameters<Planner>[1]): Plan {
  const plan = planner(passes, limits);
  assertNoPromise(plan, 'planner', 'the planning');
  return checkedPlan(plan, 'the plan of the planner');
}

export class PlanLearner {
  /** Whether new passes are recorded. */
  isLearning: boolean;
  /** The recorder of this pass, if it is recorded. */
  recorder: PassRecorder | undefined;
  /** Why the last recorded pass cannot be planned together with the one before. */
  difference: string | undefined;
  /** The error of the planner, after which nothing is learnt until `record`. */
  failure: { readonly error: unknown } | undefined;
  /** How many plans were made. */
  plans = 0;
  deviatingPasses = 0;
  #planner: Planner | undefined;
  readonly #recordedPasses: number;
  readonly #planningMilliseconds: number;
  readonly #replanAfter: number;
  /** Recorded passes with the same operations, and the greatest alignment in them. */
  #alike: OrderedSequence[] = [];
  #alignmentBytes: number = ALLOCATION_ALIGNMENT;
  #deviatingInRow = 0;
  /** How often in a row a new plan was given up without a pass that followed it. */
  #vainPlans = 0;

  constructor(
    planner: Planner | undefined,
    recordedPasses: number,
    planningMilliseconds: number,
    replanAfter: number,
    isLearning: boolean,
  ) {
    this.#planner = planner;
    this.#recordedPasses = recordedPasses;
    this.#planningMilliseconds = planningMilliseconds;
    this.#replanAfter = replanAfter;
    this.isLearning = isLearning;
  }

  get hasPlanner(): boolean {
    return this.#planner !== undefined;
  }

  /** Records passes again, beginning with the next one. */
  record(): void {
    this.isLearning = true;
    this.#alike = [];
    this.difference = undefined;
    this.failure = undefined;
    this.#alignmentBytes = ALLOCATION_ALIGNMENT;
  }

  /** A recorded pass begins. The recording ends by itself if `owner` is collected. */
  beginPass(owner: object): void {
    this.recorder = new PassRecorder(owner);
  }

  /** A request of a recorded pass has this alignment. */
  aligned(alignment: number): void {
    this.#alignmentBytes = Math.max(this.#alignmentBytes, alignment);
  }

  /** Returns the recorded sequence, or why it cannot be planned; `undefined` if the pass was not recorded. */
  endPass(): OrderedSequence | string | undefined {
    const { recorder } = this;
    this.recorder = undefined;
    return recorder?.end();
  }

  /** Returns a plan once there are enough recorded passes with the same operations. */
  learn(sequence: OrderedSequence | string): Plan | undefined {
    // It was asked to stop, or the pass was empty.
    if (!this.isLearning || (typeof sequence === 'object' && sequence.operations.length === 0)) return undefined;
    if (typeof sequence === 'string') {
      this.difference = sequence;
      this.#alike = [];
      return undefined;
    }
    const before = this.#alike[0];
    const difference = before === undefined ? undefined : differenceOf(before, sequence);
    this.difference = difference === undefined ? undefined : `it differs from the pass before in its ${difference}`;
    if (difference !== undefined) this.#alike = [];
    this.#alike.push(sequence);
    if (this.#alike.length < this.#recordedPasses) return undefined;
    const passes = this.#alike;
    this.#alike = [];
    const limits = { alignmentBytes: this.#alignmentBytes, timeLimitMilliseconds: this.#planningMilliseconds };
    try {
      return plannedBy(this.#planner as Planner, passes, limits);
    } catch (error) {
      this.isLearning = false;
      this.failure = { error };
      return undefined;
    }
  }

  /** The plan serves the passes that follow. */
  adopted(): void {
    this.isLearning = false;
    this.#deviatingInRow = 0;
    this.plans++;
  }

  /** Counts a pass that the plan has served, or should have. */
  judge(hasDeviated: boolean, mayRecord: boolean): void {
    if (this.#planner === undefined) return;
    if (!hasDeviated) {
      this.#deviatingInRow = 0;
      this.#vainPlans = 0;
      return;
    }
    this.deviatingPasses++;
    this.#deviatingInRow++;
    if (this.isLearning || !mayRecord || this.failure !== undefined) return;
    if (this.#deviatingInRow < this.#replanAfter * 2 ** this.#vainPlans) return;
    this.#vainPlans++;
    this.record();
  }

  /** Stops learning. */
  end(): void {
    this.#planner = undefined;
  }
}
