/**
 * The regions of `cistern keep`, and who uses them. It knows neither sockets nor what a descriptor is.
 *
 *     empty ── open ──► writing (one process) ── commit ──► committed ◄── open, end of the connection ──► reading (many)
 *       ▲                      │                                │
 *       └── end of the connection                               └── remove, if nobody reads ──► empty
 *
 * A connection is the lock: it holds one region at most, and its end, for whatever reason, takes back what it holds. Invariants: a region
 * has a descriptor if and only if it is committed; the sum of all bytes is at most the limit.
 */

import { formatBytes } from '../basics/units.js';
import {
  type CommitRegion,
  mostProcesses,
  mostRegions,
  type OpenRegion,
  type Refusal,
  type RegionState,
  type RemoveRegion,
  type Reply,
} from './protocol.js';

/** The requests about regions. */
export type RegionRequest = OpenRegion | CommitRegion | RemoveRegion;

/** A connection. */
export interface Peer {
  readonly process: number;
}

interface Region<Descriptor> {
  readonly layout: string;
  readonly bytes: number;
  readonly device: string;
  /** Absent as long as one process writes. */
  contents?: { readonly address: number; readonly sizes: readonly number[]; readonly descriptor: Descriptor };
  readonly users: Set<Peer>;
}

/** An answer, and a descriptor to send with it, which stays where it is. */
export interface Answer<Descriptor> {
  readonly reply: Reply;
  readonly descriptor?: Descriptor | undefined;
  /** The peer breaks the protocol: its connection must end. */
  readonly isLast?: true | undefined;
}

/** The regions of one `cistern keep`. */
export class RegionTable<Descriptor> {
  readonly limitBytes: number;
  readonly #close: (descriptor: Descriptor) => void;
  readonly #regions = new Map<string, Region<Descriptor>>();
  /** The region that each connection writes or reads. */
  readonly #held = new Map<Peer, string>();
  #bytes = 0;

  /** @param close ends a descriptor that came with a message, once it is not needed */
  constructor(limitBytes: number, close: (descriptor: Descriptor) => void) {
    this.limitBytes = limitBytes;
    this.#close = close;
  }

  /** The bytes of all regions. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Whether a connection writes or reads a region. */
  holds(peer: Peer): boolean {
    return this.#held.has(peer);
  }

  /** Answers a request. A descriptor that comes with it belongs to the table if the answer is `committed`. */
  answer(peer: Peer, request: RegionRequest, descriptor: Descriptor | undefined): Answer<Descriptor> {
    if (request.op === 'commit') return this.#commit(peer, request, descriptor);
    return request.op === 'open' ? this.#open(peer, request) : { reply: this.#remove(request) };
  }

  /** A connection has ended: what its process was writing is gone, what it was reading stays. */
  ended(peer: Peer): void {
    const name = this.#held.get(peer);
    if (name === undefined) return;
    this.#held.delete(peer);
    const region = this.#regions.get(name) as Region<Descriptor>;
    region.users.delete(peer);
    if (region.contents === undefined) this.#forget(name, region);
  }

  list(): RegionState[] {
    return [...this.#regions].map(([region, { layout, bytes, device, contents, users }]) => ({
      ...{ region, layout, bytes, device, state: contents === undefined ? 'writing' : 'committed' },
      processes: [...users].slice(0, mostProcesses).map(({ process }) => process),
    }));
  }

  #open(peer: Peer, { region: name, layout, bytes, device }: OpenRegion): Answer<Descriptor> {
    if (this.#held.has(peer)) return breaks('a connection opens one region');
    const known = this.#regions.get(name);
    if (known === undefined) return { reply: this.#begin(peer, name, { layout, bytes, device }) };
    for (const [what, has, wanted] of [
      ['device', known.device, device],
      ['layout', known.layout, layout],
      ['bytes', known.bytes, bytes],
    ] as const) {
      if (has !== wanted) return { reply: refuse('mismatch', `its ${what} is ${has} and not ${wanted}`) };
    }
    if (known.contents === undefined) {
      const [writer] = known.users;
      return { reply: refuse('in use', `process ${writer?.process} writes it`) };
    }
    this.#hold(peer, name, known);
    const { address, sizes, descriptor } = known.contents;
    return { reply: { is: 'reading', address, sizes }, descriptor };
  }

  #begin(peer: Peer, name: string, region: Omit<Region<Descriptor>, 'users'>): Reply {
    if (this.#regions.size >= mostRegions) return refuse('limit', `there are ${mostRegions} regions, which is the most`);
    if (region.bytes > this.limitBytes - this.#bytes) {
      const left = formatBytes(this.limitBytes - this.#bytes);
      return refuse(
        'limit',
        `${formatBytes(region.bytes)} were asked for, and of the limit of ${formatBytes(this.limitBytes)}, ${left} are left`,
      );
    }
    const added = { ...region, users: new Set<Peer>() };
    this.#regions.set(name, added);
    this.#bytes += region.bytes;
    this.#hold(peer, name, added);
    return { is: 'writing' };
  }

  #commit(peer: Peer, { address, sizes }: CommitRegion, descriptor: Descriptor | undefined): Answer<Descriptor> {
    const region = this.#regions.get(this.#held.get(peer) ?? '');
    if (region === undefined || region.contents !== undefined) return breaks('this connection writes no region');
    if (descriptor === undefined) return breaks('a commit comes with a descriptor');
    if (sizes.reduce((sum, bytes) => sum + bytes, 0) > region.bytes) return breaks('the sizes are larger than the region');
    region.contents = { address, sizes, descriptor };
    return { reply: { is: 'committed' } };
  }

  #remove({ region: name }: RemoveRegion): Reply {
    const region = this.#regions.get(name);
    if (region === undefined) return { is: 'removed', bytes: 0 };
    if (region.users.size > 0) {
      const processes = [...region.users].slice(0, mostProcesses).map(({ process }) => process);
      return refuse('in use', `${region.contents === undefined ? 'written' : 'read'} by process ${processes.join(', ')}`);
    }
    this.#forget(name, region);
    return { is: 'removed', bytes: region.bytes };
  }

  #hold(peer: Peer, name: string, region: Region<Descriptor>): void {
    region.users.add(peer);
    this.#held.set(peer, name);
  }

  #forget(name: string, { bytes, contents }: Region<Descriptor>): void {
    this.#regions.delete(name);
    this.#bytes -= bytes;
    if (contents !== undefined) this.#close(contents.descriptor);
  }
}

/** The answer to a request that cannot be met. */
export function refuse(why: Refusal, message: string): Reply {
  return { is: 'refused', why, message };
}

/** A peer that says what the protocol does not permit is not spoken to any longer. */
export function breaks(message: string): { readonly reply: Reply; readonly isLast: true } {
  return { reply: refuse('invalid', message), isLast: true };
}
