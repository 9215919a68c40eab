// Loaded before each program that a test runs over the strict driver; `cistern` is the built
// package there.
import { directFaults } from './direct-faults.mjs';

const { mailbox, native } = await import('../../dist/chunks/driver.js');
try {
  directFaults(native(), mailbox, () => {});
} catch {
  // A program without an addon, or without a driver, requests no failures.
}
