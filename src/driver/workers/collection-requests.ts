/** Requests of one environment of the process to others, which have attached its memory, to collect garbage. */
import { mailbox, native } from '../native.js';
import { check } from '../status.js';

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
