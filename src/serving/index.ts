/** `cistern/serving`: serving many tenants: accounts, admission, spilling, sleep, and what happens when memory runs out. */
import type { ResourceKind } from '../resource-kind.js';
import { accountingKind } from './accounts/accounting-resource-adaptor.js';
import { admittingKind } from './admission/admitting-resource-adaptor.js';
import { spillingKind } from './spilling/spilling-resource-adaptor.js';

export type { ProcessState } from '../driver/process-steps.js';
export { Account, type AccountOptions, currentAccount, withQuota } from './accounts/account.js';
export { AccountingResourceAdaptor } from './accounts/accounting-resource-adaptor.js';
export type { AdmissionStatistics } from './admission/admission-statistics.js';
export {
  type AdmissionEvent,
  AdmittingResourceAdaptor,
  type AdmittingResourceAdaptorOptions,
  type ReserveOptions,
} from './admission/admitting-resource-adaptor.js';
export { Grant } from './admission/grant.js';
export { memorySummary } from './out-of-memory/memory-summary.js';
export { type BudgetEvent, type BudgetObserver, type BudgetOptions, observeBudget } from './out-of-memory/observe-budget.js';
export {
  type ProcessSleepOptions,
  type ProcessSleepReport,
  type ProcessWakeOptions,
  type ProcessWakeReport,
  processState,
  type ResourceToSleep,
  sleepProcess,
  wakeProcess,
} from './sleep/process-sleep.js';
export { type SleepOptions, type SleepReport, sleepResource, type WakeOptions, type WakeReport, wakeResource } from './sleep/sleep.js';
export type { SpillCandidate, SpillPolicy } from './spilling/spill-policy.js';
export type { SpillStatistics } from './spilling/spill-statistics.js';
export { SpillableBuffer, type SpillableBufferCreateOptions, type SpillableBufferOptions, SpillPin } from './spilling/spillable-buffer.js';
export { SpillingResourceAdaptor, type SpillingResourceAdaptorOptions } from './spilling/spilling-resource-adaptor.js';
export type { WaitOptions } from './waiting/wait-options.js';

/** The kinds of resources of this entry. A specification loads them by itself, unless the program is bundled: see {@link addResourceKinds}. */
export const resourceKinds: readonly ResourceKind[] = [accountingKind, admittingKind, spillingKind];

import './out-of-memory/dump.js';
