export { formatPlan, type Plan, parsePlan } from '../plans/plan.js';
export type { AllocationSequence, OrderedSequence, StreamWait } from '../plans/sequence.js';
export { type MinimallocProblem, readMinimallocCsv, writeMinimallocCsv } from './minimalloc-csv.js';
export { type PlanAttempt, type PlanOptions, type PlanSource, planAllocations } from './plan-allocations.js';
export { plannedRun } from './planned-run.js';
