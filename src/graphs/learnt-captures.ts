/** What captures of each name have allocated, and the plan for the next ones. */
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import type { Plan } from '../plans/plan.js';
import { type Planner, plannedBy } from '../plans/plan-learner.js';
import { type PlanWithPredecessors, withPredecessors } from '../plans/predecessors.js';
import type { OrderedSequence } from '../plans/sequence.js';

/** What is known about captures of one name. */
interface Learnt {
  readonly sequence: OrderedSequence;
  readonly alignmentBytes: number;
  plan: PlanWithPredecessors | undefined;
}

/** How many names are remembered. */
const mostNames = 1024;

export class LearntCaptures {
  /** The last error of the planner, or of a recording for it; `undefined` if the last plan is valid. */
  planningError: unknown;
  readonly #planner: Planner | undefined;
  readonly #planningMilliseconds: number;
  /** By name; the one that was used longest ago comes first. */
  readonly #learnt = new Map<string, Learnt>();

  constructor(planner: Planner | undefined, planningMilliseconds: number) {
    this.#planner = planner;
    this.#planningMilliseconds = planningMilliseconds;
  }

  /** Whether captures are to be learnt. */
  get isPlanning(): boolean {
    return this.#planner !== undefined;
  }

  /** Whether there can be a plan for captures of a name. */
  knows(name: string): boolean {
    return this.isPlanning && this.#learnt.has(name);
  }

  /** Notes what a capture of the name, or a warm-up, has allocated. */
  learn(name: string, sequence: OrderedSequence, alignmentBytes: number): void {
    this.#remember(name, { sequence, alignmentBytes, plan: undefined });
  }

  /** The plan that was made for captures of a name. */
  madePlan(name: string): Plan | undefined {
    return this.#learnt.get(name)?.plan?.plan;
  }

  /** The plan for the captures of a name, which is made now if necessary. */
  planFor(name: string): PlanWithPredecessors | undefined {
    const learnt = this.#learnt.get(name);
    if (learnt === undefined || this.#planner === undefined) return undefined;
    this.#remember(name, learnt);
    this.#makePlan(this.#planner, learnt);
    return learnt.plan;
  }

  /** How much memory the largest plan of a known name needs, and with which alignment. */
  largestNeed(): { readonly bytes: number; readonly alignment: number } {
    if (this.#planner !== undefined) for (const each of this.#learnt.values()) this.#makePlan(this.#planner, each);
    const plans = [...this.#learnt.values()].flatMap(({ plan }) => (plan === undefined ? [] : [plan.plan]));
    return {
      bytes: plans.reduce((bytes, { totalBytes }) => Math.max(bytes, totalBytes), 0),
      alignment: plans.reduce((greatest, { alignmentBytes }) => Math.max(greatest, alignmentBytes), ALLOCATION_ALIGNMENT),
    };
  }

  /** The name is now the last to be forgotten. */
  #remember(name: string, learnt: Learnt): void {
    this.#learnt.delete(name);
    this.#learnt.set(name, learnt);
    for (const oldest of this.#learnt.keys()) {
      if (this.#learnt.size <= mostNames) break;
      this.#learnt.delete(oldest);
    }
  }

  #makePlan(planner: Planner, learnt: Learnt): void {
    if (learnt.plan !== undefined || learnt.sequence.operations.length === 0) return;
    const limits = { alignmentBytes: learnt.alignmentBytes, timeLimitMilliseconds: this.#planningMilliseconds };
    try {
      learnt.plan = withPredecessors(plannedBy(planner, [learnt.sequence], limits));
      this.planningError = undefined;
    } catch (error) {
      this.planningError = error;
    }
  }
}
