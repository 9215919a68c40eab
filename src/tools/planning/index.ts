export { formatPlan, type Plan, parsePlan } from '../../plans/plan.js';
export type { AllocationSequence, OrderedSequence, StreamWait } from '../../plans/sequence.js';
export { type MinimallocProblem, readMinimallocCsv, writeMinimallocCsv } from './minimalloc-csv.js';
export { type PlanAttempt, type PlanOptions, planAllocations } from './plan-allocations.js';
export { type GraphPlan, type GraphsPlan, planGraphs } from './plan-graphs.js';
export { plannedRun } from './planned-run.js';
export type { PlanSource } from './sequences.js';
