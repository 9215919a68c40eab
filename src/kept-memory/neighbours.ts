/**
 * Resources on one device that keep free memory, and so can help each other: before one runs out of memory, the others
 * return what is wholly free.
 *
 *     pool 'a'   [ free ][ free ][ used ]  ── returns two blocks, the one that was idle longest first ──► device
 *     pool 'b'   asks the device for a block: refused; asks its neighbours; asks the device again: served
 *
 * A neighbour helps if what it returns comes to a resource that both are built on; or if the device itself refused, not a
 * limit, and both have its memory. Nobody is kept alive by being known here, and nothing is done here until memory runs out.
 *
 * If the device refused and nobody here can help, other workers of the process are asked, if one of their resources holds memory
 * of the device: `native/addon/kept_memory.h`. The native side knows that from the blocks that resources take and return.
 */
import { CisternError, type OutOfMemoryError } from '../basics/errors.js';
import { LiveInstances } from '../basics/live-instances.js';
import { formatBytes } from '../basics/units.js';
import { describeOtherUsers } from '../budget/device-usage.js';
import { Device, type MemoryKind } from '../driver/device.js';
import { Stream } from '../driver/streams/stream.js';
import { isAnythingCaptured } from '../driver/streams/stream-identity.js';
import { askForKept, countKept, describeKept, onKeptRequest } from '../driver/workers/collection-requests.js';
import type { MemoryResource, ReservingMemoryResource } from '../memory-resource.js';
import { kindOf } from '../resource-kind.js';

/** Someone who may ask neighbours: a resource, and all below it. */
export interface Asking {
  readonly resource: Pick<MemoryResource, 'memoryKind' | 'device'>;
  /** The resource itself if it is a leaf; otherwise the resources below it. */
  readonly below: readonly MemoryResource[];
  /** How often other workers may still be asked for this request: what they return, a third one may take. */
  roundsLeft: number;
}

/** A resource that keeps free memory. */
export interface Neighbour extends Omit<Asking, 'roundsLeft'> {
  readonly resource: ReservingMemoryResource;
  /** Its name, if the program gave it one. */
  readonly name: string | undefined;
  /** Whether it is in a call that takes memory from below: its state is about to change. */
  readonly isTaking: boolean;
  /** When it last looked for memory beyond that of the asking stream: {@link nextMoment}. */
  readonly lastMiss: number;
  /** The bytes that it keeps and that are not allocated. */
  freeBytes(): number;
  /**
   * Returns memory that is wholly free, in the order of a stream, until at least `bytes` are returned or there is no more.
   * Memory for which the stream need not wait comes first. Returns how many bytes it returned.
   */
  returnFree(stream: Stream, bytes: number): number;
}

type Refusal = Pick<OutOfMemoryError, 'limitBytes'>;

/** How many neighbours an error names. */
const mostNamed = 3;
/** How often other workers are asked for one request. */
export const mostRounds = 8;

const neighbours = new LiveInstances<Neighbour>();
/** By device: streams without work, for what other workers need. */
const idleStreams: Stream[] = [];
let isListening = false;
let moment = 0;
/** How many calls for memory of a resource below have not returned. */
let taking = 0;

/** A number that is greater than all before. */
export function nextMoment(): number {
  return ++moment;
}

/**
 * From now on, others may ask it for memory. Does not keep it alive.
 * Returns a function to be told of all that it takes from below, and, as a negative number, returns.
 */
export function becomeNeighbour(neighbour: Neighbour): (bytes: number) => void {
  neighbours.add(neighbour);
  if (!isListening) onKeptRequest(returnToOthers);
  isListening = true;
  const { memoryKind, device } = neighbour.resource;
  return countKept(memoryKind, device.index, nameOf(neighbour, ''));
}

/** Runs a call in which a resource takes memory from the one below, which then does not ask neighbours: the one above has other ways left. */
export function takingFromBelow<T>(take: () => T): T {
  taking++;
  try {
    return take();
  } finally {
    taking--;
  }
}

/** Whether the caller is the one to ask neighbours, and not a resource above it. */
export function mayAsk(): boolean {
  return taking === 0;
}

/**
 * Makes the first neighbour that can return memory, because a request was refused below; or other workers, if none can. Returns the bytes; 0 once
 * nobody has any.
 * @param refusal why the resource below, or the device, refused
 */
export function askNeighbours(asking: Asking, refusal: Refusal, bytes: number, stream: Stream): number {
  if (!mayAsk()) return 0;
  for (const neighbour of helpful(asking, refusal).sort((one, other) => one.lastMiss - other.lastMiss)) {
    const returned = neighbour.isTaking ? 0 : returnedBy(neighbour, bytes, stream);
    if (returned > 0) return returned;
  }
  const { memoryKind, device } = asking.resource;
  return refusal.limitBytes === undefined && asking.roundsLeft-- > 0 ? askForKept(memoryKind, device.index, bytes) : 0;
}

/** What another worker asked for. */
function returnToOthers(memoryKind: MemoryKind, index: number, bytes: number): number {
  const device = Device.get(index);
  // A free may be forbidden now.
  if (isAnythingCaptured) return 0;
  idleStreams[index] ??= new Stream({ device, nonBlocking: true });
  const stream = idleStreams[index];
  return askNeighbours({ resource: { memoryKind, device }, below: [], roundsLeft: 0 }, { limitBytes: undefined }, bytes, stream);
}

/** What to add to the message of an error: who keeps free memory that could have helped, and which processes hold the rest of a device that is full. */
export function describeNeighbours(asking: Asking, refusal: Refusal): string {
  const keeping = helpful(asking, refusal)
    .map((neighbour) => ({ neighbour, freeBytes: neighbour.freeBytes() }))
    .filter(({ freeBytes }) => freeBytes > 0)
    .sort((one, other) => other.freeBytes - one.freeBytes);
  const named = keeping.slice(0, mostNamed).map(({ neighbour, freeBytes }) => `${nameOf(neighbour)} keeps ${formatBytes(freeBytes)} free`);
  if (keeping.length > mostNamed) named.push(`${keeping.length - mostNamed} more keep free memory`);
  const elsewhere = refusal.limitBytes === undefined ? describeKept(asking.resource.memoryKind, asking.resource.device.index) : '';
  if (elsewhere !== '') named.push(elsewhere);
  const isFull = refusal.limitBytes === undefined && asking.resource.memoryKind === 'device';
  return `${named.length === 0 ? '' : `; ${named.join(', ')}`}${isFull ? describeOtherUsers(asking.resource.device) : ''}`;
}

/** All resources that keep memory, the one that missed longest ago first. */
export function allNeighbours(): Neighbour[] {
  return neighbours.all().sort((one, other) => one.lastMiss - other.lastMiss);
}

/** As in `pool 'a'`, or `another pool` without a name. */
function nameOf({ resource, name }: Neighbour, unnamed = 'another '): string {
  return name === undefined ? `${unnamed}${kindOf(resource)}` : `${kindOf(resource)} '${name}'`;
}

function helpful(asking: Asking, refusal: Refusal): Neighbour[] {
  const isOfDevice = refusal.limitBytes === undefined;
  return neighbours
    .all()
    .filter(
      (neighbour) =>
        neighbour.resource !== asking.resource &&
        !asking.below.includes(neighbour.resource) &&
        ((isOfDevice && hasSameMemory(asking.resource, neighbour.resource)) ||
          neighbour.below.some((layer) => asking.below.includes(layer))),
    );
}

function hasSameMemory(one: Asking['resource'], other: MemoryResource): boolean {
  return one.memoryKind === other.memoryKind && (one.memoryKind !== 'device' || one.device === other.device);
}

/** What a neighbour cannot do, as during a capture, is no fault of the one who asks. */
function returnedBy(neighbour: Neighbour, bytes: number, stream: Stream): number {
  try {
    return neighbour.returnFree(stream, bytes);
  } catch (error) {
    if (error instanceof CisternError) return 0;
    throw error;
  }
}
