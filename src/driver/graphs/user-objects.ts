/**
 * What belongs to a graph: JavaScript objects that stay reachable, and functions that are called, until the
 * last graph, executable graph and launch that uses them is gone.
 *
 *     retainInGraph ──► number ──► the driver's user object ──► graph, executable graphs, launches
 *                          ▲                                                  │
 *     parts: number ──► part      event loop, or runGraphEnds ◄───────────────┘ the last one has ended
 *
 * The driver says so on a thread of its own, at some time after the end.
 */
import { mailbox, native } from '../native.js';
import { check } from '../status.js';
import type { Graph } from './graph.js';

interface Part {
  /** Must stay reachable. */
  readonly object?: object;
  readonly onEnd?: () => void;
}

const parts = new Map<number, Part>();
let lastNumber = 0;

/** @param graph a native handle */
export function retainInGraph(graph: number, part: Part): void {
  if (lastNumber === 0) native().onEndedParts(runGraphEnds);
  lastNumber += 1;
  native().retainInGraph(graph, lastNumber);
  check('retain an object in a graph');
  parts.set(lastNumber, part);
}

/**
 * Calls a function once no launch of the graph, nor of an executable graph that is made of it from now on,
 * is queued or runs, and they are all disposed or collected. It is called from the event loop or within a
 * call that waits or frees what is unreachable, or never if this environment ends before; not
 * within this call. It must not throw.
 */
export function whenGraphEnds(graph: Graph, onEnd: () => void): void {
  retainInGraph(graph.handle, { onEnd });
}

/** Calls the functions of graphs that have ended, and lets go of what they retain. Never throws. */
export function runGraphEnds(): void {
  while (parts.size > 0) {
    native().takeEndedPart();
    const number = mailbox[1] as number;
    if (number === 0) return;
    const part = parts.get(number);
    parts.delete(number);
    try {
      part?.onEnd?.();
    } catch (error) {
      process.emitWarning(`a function for the end of a graph failed: ${String(error)}`, { code: 'CISTERN_GRAPH_END' });
    }
  }
}
