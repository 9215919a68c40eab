/**
 * Objects that graphs retain: JavaScript objects that stay reachable until the last graph, executable graph
 * and launch that uses them has ended.
 *
 *     retainInGraph ──► number ──► the driver's user object ──► graph, executable graphs, launches
 *                          ▲                                                  │
 *     retained: number ──► object   event loop, or letGoOfEnded ◄─────────────┘ the last one has ended
 *
 * The driver reports the end on a thread of its own, some time later.
 */
import { mailbox, native } from '../native.js';
import { check } from '../status.js';

/** By number. */
export const retained = new Map<number, object>();
let lastNumber = 0;

/** @param graph a native handle */
export function retainInGraph(graph: number, object: object): void {
  if (lastNumber === 0) native().onEndedParts(letGoOfEnded);
  lastNumber += 1;
  native().retainInGraph(graph, lastNumber);
  check('retain an object in a graph');
  retained.set(lastNumber, object);
}

/** Releases the objects that ended graphs retained. Never throws. */
export function letGoOfEnded(): void {
  while (retained.size > 0) {
    native().takeEndedPart();
    const number = mailbox[1] as number;
    if (number === 0) return;
    retained.delete(number);
  }
}
