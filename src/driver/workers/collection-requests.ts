/**
 * Requests of one environment of the process to others: to collect garbage, if they have attached its memory; and to return free memory that their
 * resources keep.
 */
import type { MemoryKind } from '../device.js';
import { mailbox, NativeMemoryKind, native, threadNumber } from '../native.js';
import { check } from '../status.js';

/** How long to wait for others. */
export const patienceMilliseconds = 20;

/**
 * Calls a function, which must not throw, from the event loop whenever an environment whose memory
 * this one has attached is short of memory.
 */
export function onCollectionRequest(collect: () => void): void {
  native().onCollectionRequest(() => {
    collect();
    native().answerCollectionRequest();
  });
  check('listen for other workers');
}

/**
 * Asks the environments that have attached memory of this one to collect garbage. Returns whether any
 * of them has yet to answer.
 */
export function askToCollect(): boolean {
  native().askToCollect();
  return mailbox[1] === 1;
}

/** Blocks until they have answered, or until a time is over. */
export function awaitCollections(milliseconds: number): void {
  native().awaitCollections(milliseconds);
}

/** Calls a function, which must not throw, from the event loop whenever another environment is short of memory of a kind. It returns the bytes that it freed. */
export function onKeptRequest(giveBack: (kind: MemoryKind, device: number, bytes: number) => number): void {
  const kinds = Object.keys(NativeMemoryKind) as MemoryKind[];
  native().onKeptRequest(threadNumber(), (kind, device, bytes) => giveBack(kinds[kind] as MemoryKind, device, bytes));
}

/** Returns a function that adds to what a resource holds, or subtracts from it, as other environments see it. */
export function countKept(kind: MemoryKind, device: number, label: string): (bytes: number) => void {
  let keeper = 0;
  return (bytes) => {
    native().noteKept(keeper, NativeMemoryKind[kind], device, label, bytes);
    keeper = mailbox[1] as number;
  };
}

/** Blocks until other environments have returned so many bytes, or have answered, or a time is over. Returns the bytes that they returned. */
export function askForKept(kind: MemoryKind, device: number, bytes: number): number {
  native().askForKept(NativeMemoryKind[kind], device, bytes, patienceMilliseconds);
  return mailbox[1] as number;
}

/** What resources of other environments hold of a kind of memory, or of a device, as text: `worker 1's pool 'a' holds 900 MiB, and did not answer`. */
export function describeKept(kind: MemoryKind, device: number): string {
  return native().keptElsewhere(NativeMemoryKind[kind], device);
}
