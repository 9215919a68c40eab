/** `cistern/machine`: the machine around a program: how much memory it gives, and who holds it. */
export { type DeviceUsage, deviceUsage } from '../budget/device-usage.js';
export type { DeviceUser } from '../budget/device-user.js';
export { type MemoryBudget, type MemoryLimit, memoryBudget } from '../budget/memory-budget.js';
export { type AllocatableBytes, allocatableBytes } from './allocatable-bytes.js';
export { type ManagedActivity, managedActivity, resetManagedActivity, residentBytes } from './managed-activity.js';
