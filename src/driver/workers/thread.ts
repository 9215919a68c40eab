import { mailbox, native } from '../native.js';
import { check } from '../status.js';

/**
 * The operating system's id of this thread, as debuggers and other tools show it. Each worker has
 * its own.
 */
export function operatingSystemThreadId(): number {
  native().threadId();
  check('read the id of the thread');
  return mailbox[1] as number;
}
