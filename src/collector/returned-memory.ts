/**
 * Memory of this environment that other workers use, until it has come home.
 *
 *     DeviceBuffer.detach ──► away ──► message ──► another worker's buffer
 *                               ▲                            │
 *     free on a stream ◄────────┴─── takeReturned ◄──────────┘ disposed, collected, or its worker has ended
 *
 * If the other worker's work has run, the memory is freed on the stream that it was given on.
 * Otherwise it is freed on a stream of its own, which waits for that work: the giver's stream would
 * have to wait for work that it does not depend on.
 */
import type { Device } from '../driver/device.js';
import { followReturned, takeReturned } from '../driver/hand-over.js';
import { Stream } from '../driver/stream.js';
import type { OwnedMemory } from './free-unreachable-buffers.js';

/** Memory that other workers may use, with what is needed to free it. */
export interface AwayMemory extends OwnedMemory {
  /** The stream that the memory was given on. */
  readonly stream: Stream;
  /** Nobody else uses the memory any more. From now on it is ordered on a stream. */
  comeHome(stream: Stream): void;
}

const away = new Map<number, AwayMemory>();
/** By device: the streams that wait for other workers. */
const homeStreams: (Stream | undefined)[] = [];

/** Keeps what is needed to free handed memory once it has come home. */
export function keepAway(handOver: number, memory: AwayMemory): void {
  away.set(handOver, memory);
}

/** The next memory that has come home, or `undefined`. Never throws. */
export function takeHome(): AwayMemory | undefined {
  const returned = away.size === 0 ? undefined : takeReturned();
  if (returned === undefined) return undefined;
  const { handOver, isComplete } = returned;
  const memory = away.get(handOver) as AwayMemory;
  const { stream } = memory;
  const isUsable = isComplete && !stream.isDisposed && stream.identity.announcesEnd;
  const orderedOn = isUsable ? stream : homeStream(stream.device);
  if (!isComplete && !followReturned(handOver, orderedOn)) return undefined;
  away.delete(handOver);
  // Without a stream, the free waits for the device.
  memory.comeHome(orderedOn ?? stream);
  return memory;
}

/** `undefined` if the driver refuses to create it. */
function homeStream(device: Device): Stream | undefined {
  try {
    homeStreams[device.index] ??= new Stream({ device, nonBlocking: true });
  } catch {
    return undefined;
  }
  return homeStreams[device.index];
}
