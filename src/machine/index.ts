/** `cistern/machine`: the machine around a program: how much memory it gives, and who holds it. */
export { type MemoryBudget, type MemoryLimit, memoryBudget } from '../budget/memory-budget.js';
