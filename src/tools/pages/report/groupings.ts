import type { Grouping } from '../../report/held-bytes.js';

/** By what allocations can be divided, and its name. */
export const groupings: readonly (readonly [Grouping, string])[] = [
  ['site', 'call site'],
  ['label', 'label'],
  ['account', 'account'],
  ['phase', 'phase'],
  ['stream', 'stream'],
  ['thread', 'thread'],
  ['size', 'size class'],
];
