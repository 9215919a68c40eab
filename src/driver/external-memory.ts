import { mailbox, NativeStatus, native } from './native.js';

/**
 * Tells V8 of bytes held, or, negative, no longer held, outside its heap. May collect garbage. Returns whether V8 could take note: the sum
 * of all calls stays from 0 to 2^53 - 1.
 */
export function adjustExternalMemory(deltaBytes: number): boolean {
  native().adjustExternalMemory(deltaBytes);
  return mailbox[0] === NativeStatus.success;
}
