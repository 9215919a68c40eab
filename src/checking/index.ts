/** `cistern/checking`: finds uses of memory that are out of order, or outside of an allocation. */
import type { ResourceKind } from '../resource-kind.js';
import { sanitizingKind } from './sanitizing-resource-adaptor.js';

export {
  type CheckOrderOptions,
  checkOrder,
  formatOrderViolation,
  OrderChecker,
  OrderError,
  type OrderViolation,
  type OrderViolationKind,
  type OrderViolationSide,
} from './order-checker.js';
export {
  formatSanitizerViolation,
  type LifetimeViolation,
  type SanitizerViolation,
  SanitizingResourceAdaptor,
  type SanitizingResourceAdaptorOptions,
} from './sanitizing-resource-adaptor.js';
export { announceAllocations, announcePools, isToolListening } from './tool-memory.js';

/** The kinds of resources of this entry. A specification loads them by itself, unless the program is bundled: see {@link addResourceKinds}. */
export const resourceKinds: readonly ResourceKind[] = [sanitizingKind];
