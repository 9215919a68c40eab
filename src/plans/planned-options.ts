import type { StreamOrderedStatistics } from '../adaptors/pooling/keeper.js';
import { optionNames } from '../basics/validation.js';
import type { DeallocationEventsOption, MemoryResource } from '../memory-resource.js';
import type { Planner } from './plan-learner.js';

/** How a request or a free can differ from the plan. */
export type PlanDeviation =
  /** More bytes than planned. */
  | 'larger'
  /** A larger alignment than the place has. */
  | 'alignment'
  /** Another stream than planned. */
  | 'stream'
  /** One more request than planned. */
  | 'extra'
  /**
   * The place is still in use, or its free is not ordered before the request, because memory was kept
   * longer than planned.
   */
  | 'in-use'
  /** A free on another stream than planned. It is carried out. */
  | 'free-stream'
  /** A free that came later than planned. It is carried out. */
  | 'late-free';

/** Options of {@link PlannedMemoryResource}. */
export interface PlannedMemoryResourceOptions extends DeallocationEventsOption {
  /**
   * Makes plans from recorded passes: `planAllocations` of `cistern/planning`. It runs when a pass
   * ends, and blocks the thread meanwhile.
   * @defaultValue none: the plan given to the constructor stays
   */
  readonly planner?: Planner | undefined;
  /**
   * How many consecutive passes must have the same operations before a plan is made from them. Each
   * place gets the largest of their sizes.
   * @defaultValue 2
   */
  readonly recordedPasses?: number | undefined;
  /**
   * How long the planner may search for a better plan, in milliseconds. The first plan is computed
   * even if that takes longer.
   * @defaultValue 100
   */
  readonly planningMilliseconds?: number | undefined;
  /**
   * Passes are recorded again after this many passes in a row in which a request deviated. If no
   * pass follows the new plan either, it takes twice as many the next time, and so on. `Infinity`:
   * only {@link PlannedMemoryResource.record} does that.
   * @defaultValue 3
   */
  readonly replanAfter?: number | undefined;
  /**
   * Serves requests that are not in the plan, and everything outside passes; must be on the same
   * device.
   * @defaultValue the upstream
   */
  readonly fallback?: MemoryResource | undefined;
  /**
   * How to treat a request that differs from the plan: `'fallback'` serves it, `'refuse'` throws a
   * CisternError (`ERR_CISTERN_PLAN_DEVIATION`) with the expected and the actual request.
   * @defaultValue `'fallback'`
   */
  readonly deviations?: 'fallback' | 'refuse' | undefined;
  /**
   * Whether passes begin automatically: with the first request, and with the first one after the last
   * of the plan. For programs that cannot call `begin`, such as a replay. Cannot be combined with a
   * planner, which must know where a pass ends.
   * @defaultValue false
   */
  readonly repeats?: boolean | undefined;
}

/** @internal */
export const plannedOptionNames = optionNames<PlannedMemoryResourceOptions>({
  deallocationEvents: true,
  deviations: true,
  fallback: true,
  planner: 'function',
  planningMilliseconds: true,
  recordedPasses: true,
  repeats: 'boolean',
  replanAfter: true,
});

/** Statistics of a {@link PlannedMemoryResource}. */
export interface PlannedStatistics extends StreamOrderedStatistics {
  /** Passes that have begun. */
  readonly passes: number;
  /** Whether the next pass is recorded, and served by the fallback. */
  readonly isRecording: boolean;
  /** How many plans the planner has made. */
  readonly plans: number;
  /** Passes of a plan in which a request deviated. */
  readonly deviatingPasses: number;
  /**
   * Why the last recorded pass cannot be planned together with the one before; `undefined` if it
   * can. More passes are then recorded.
   */
  readonly difference: string | undefined;
  /**
   * The error of the planner, or why its plan is invalid; `undefined` if neither. After an error,
   * no pass is recorded until you call {@link PlannedMemoryResource.record}.
   */
  readonly planningError: unknown;
  /**
   * Bytes of the blocks of earlier plans that still have live allocations. While these exceed the
   * current plan's block, passes are not recorded again, because another plan would add a block.
   */
  readonly pinnedBytes: number;
  /** Allocations of a plan that are live. */
  readonly plannedAllocations: number;
  /** Requests that the fallback served, in passes or outside them. */
  readonly fallbackAllocations: number;
  /** How often each kind of deviation occurred. */
  readonly deviations: Readonly<Record<PlanDeviation, number>>;
}

/** @internal */
export const deviationWords = ['fallback', 'refuse'] as const;
