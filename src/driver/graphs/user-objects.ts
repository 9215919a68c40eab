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

/** Something that is called once the last graph, executable graph and launch that retained it has ended. */
export class GraphUse {
  /** Must not throw. */
  readonly ended: () => void;

  constructor(ended: () => void) {
    this.ended = ended;
  }
}

/** @param graph a native handle */
export function retainInGraph(graph: number, object: object): void {
  retain(object, (number) => native().retainInGraph(graph, number));
}

/** Makes the graph that a stream is captured into retain an object. @param stream a native handle */
export function retainInCapture(stream: number, object: object): void {
  retain(object, (number) => native().retainInCapture(stream, number));
}

function retain(object: object, attach: (number: number) => void): void {
  if (lastNumber === 0) native().onEndedParts(letGoOfEnded);
  lastNumber += 1;
  attach(lastNumber);
  check('retain an object in a graph');
  retained.set(lastNumber, object);
}

/** Releases the objects that ended graphs retained. Never throws. */
export function letGoOfEnded(): void {
  while (retained.size > 0) {
    native().takeEndedPart();
    const number = mailbox[1] as number;
    if (number === 0) return;
    const object = retained.get(number);
    retained.delete(number);
    if (object instanceof GraphUse) object.ended();
  }
}
