/** `cistern/plans`: memory that follows a plan: each allocation of a pass has its place. */
import type { ResourceKind } from '../resource-kind.js';
import { plannedKind } from './planned-memory-resource.js';

export { formatPlan, type Plan, parsePlan } from './plan.js';
export type { Planner } from './plan-learner.js';
export { PlannedMemoryResource } from './planned-memory-resource.js';
export type { PlanDeviation, PlannedMemoryResourceOptions, PlannedStatistics } from './planned-options.js';
export type { AllocationSequence, OrderedSequence, StreamWait } from './sequence.js';

/** The kinds of resources of this entry. A specification loads them by itself, unless the program is bundled: see {@link addResourceKinds}. */
export const resourceKinds: readonly ResourceKind[] = [plannedKind];
