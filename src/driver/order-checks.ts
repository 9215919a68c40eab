/** Whether stream order is checked. The checker is in `cistern/checking`, which the driver does not know. */

/** How memory is used. */
export type MemoryAccess = 'read' | 'write';

let isChecking = false;

/** Whether stream order is checked in this thread. */
export function isCheckingOrder(): boolean {
  return isChecking;
}

/** Stream order is checked from now on, or no longer. */
export function noteChecking(isOn: boolean): void {
  isChecking = isOn;
}
