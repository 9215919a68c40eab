/**
 * Memory of this environment that other workers use, until it has been returned and freed.
 *
 *     detachBuffer ──► away ──► message ──► another worker's buffer
 *                               ▲                            │
 *     free on a stream ◄────────┴─── takeReturned ◄──────────┘ disposed, collected, or its worker has ended
 *
 * If the other worker's work has run, the memory is freed on the stream of the hand-over.
 * Otherwise, it is freed on a separate stream that waits for that work, because the sender's stream
 * would have to wait for work that it does not depend on.
 *
 * A free of host memory makes the host wait for its stream. So it is freed only when the other worker's
 * work has run, unless memory has run out, and never on the sender's stream, which may have later work:
 * the wait could last forever, because the work may need an answer from this very thread.
 *
 * Returned memory is taken when native code announces it, before each hand-over, and at every sweep
 * for unreachable buffers.
 */
import { freeAtSweeps, freeSoonerOrLater, type OwnedMemory } from '../collector/free-unreachable-buffers.js';
import type { Device } from '../driver/device.js';
import { Stream } from '../driver/streams/stream.js';
import { followReturned, onReturned, takeReturned } from './hand-over.js';

/** Memory that other workers may use, with what is needed to free it. */
export interface AwayMemory extends OwnedMemory {
  /** The stream that the memory was given on. */
  readonly stream: Stream;
  /** No other worker uses the memory any more. From now on, it is ordered on a stream. */
  comeHome(stream: Stream): void;
}

const away = new Map<number, AwayMemory>();
/** By device: the streams that wait for other workers. */
const homeStreams: (Stream | undefined)[] = [];
/** By device: streams that never wait, for memory that nobody uses any more. */
const idleStreams: (Stream | undefined)[] = [];
/** Milliseconds until memory that was still in use is checked again: the first, and the longest. */
const firstDelay = 1;
const longestDelay = 64;
let delay = firstDelay;
let timer: NodeJS.Timeout | undefined;
let isListening = false;

/** Frees handed-over memory once it has been returned. */
export function expectReturn(handOver: number, memory: AwayMemory): void {
  away.set(handOver, memory);
  if (isListening) return;
  isListening = true;
  freeAtSweeps({ mayBeWithWorkers: () => away.size > 0, free: () => freeReturned(true) });
  onReturned(() => freeReturned(false));
}

/**
 * Frees the memory that other workers have returned. Returns its bytes. Never throws.
 * @param mayWait whether to free host memory although other workers' work has not run
 */
export function freeReturned(mayWait: boolean): number {
  let freedBytes = 0;
  const inUse = new Set<number>();
  while (away.size > 0) {
    const returned = takeReturned();
    if (returned === undefined) break;
    const { handOver, isComplete } = returned;
    const memory = away.get(handOver) as AwayMemory;
    const { stream } = memory;
    const { memoryKind } = memory.resource;
    const freeWaits = memoryKind === 'pinned-host' || memoryKind === 'host';
    if (!isComplete && freeWaits && !mayWait) {
      // Without a stream, it goes to the end of the list.
      followReturned(handOver, undefined);
      if (inUse.has(handOver)) break;
      inUse.add(handOver);
      continue;
    }
    const isUsable = isComplete && !freeWaits && !stream.isDisposed && stream.identity.announcesEnd;
    const orderedOn = isUsable ? stream : streamOf(isComplete ? idleStreams : homeStreams, stream.device);
    if (!isComplete && !followReturned(handOver, orderedOn)) break;
    away.delete(handOver);
    delay = firstDelay;
    // Without a stream, the free waits for the device.
    memory.comeHome(orderedOn ?? stream);
    freedBytes += freeSoonerOrLater(memory);
  }
  if (inUse.size > 0 && timer === undefined) lookAgain();
  return freedBytes;
}

function lookAgain(): void {
  timer = setTimeout(() => {
    timer = undefined;
    freeReturned(false);
  }, delay).unref();
  delay = Math.min(2 * delay, longestDelay);
}

/** `undefined` if the driver refuses to create it. */
function streamOf(streams: (Stream | undefined)[], device: Device): Stream | undefined {
  try {
    streams[device.index] ??= new Stream({ device, nonBlocking: true });
  } catch {
    // There is none yet.
  }
  return streams[device.index];
}
