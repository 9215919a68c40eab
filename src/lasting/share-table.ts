/**
 * The shares of `cistern keep`: limits that are divided among the processes which join them, and that a command raises and lowers
 * while they run. It knows no sockets.
 */

import { formatBytes } from '../basics/units.js';
import { type JoinShare, mostProcesses, mostShares, type Reply, type SetShare, type ShareState } from './protocol.js';
import { breaks, type Peer, refuse } from './region-table.js';

interface Share {
  bytes: number;
  readonly members: Set<Peer>;
}

/** An answer, and the members whose part has changed by it. */
export interface ShareAnswer {
  readonly reply: Reply;
  readonly isLast?: true | undefined;
  readonly told: readonly Peer[];
}

/** The shares of one `cistern keep`. */
export class ShareTable {
  readonly #shares = new Map<string, Share>();
  readonly #joined = new Map<Peer, string>();

  /** Whether a connection has a part of a share. */
  holds(peer: Peer): boolean {
    return this.#joined.has(peer);
  }

  answer(peer: Peer, request: JoinShare | SetShare): ShareAnswer {
    return request.op === 'join' ? this.#join(peer, request.share) : this.#set(request);
  }

  /** The part of a member: all have the same. */
  partOf(peer: Peer): number {
    const share = this.#shares.get(this.#joined.get(peer) ?? '');
    return share === undefined ? 0 : Math.floor(share.bytes / share.members.size);
  }

  /** A connection has ended. The members whose part has changed by it. */
  ended(peer: Peer): Peer[] {
    const name = this.#joined.get(peer);
    if (name === undefined) return [];
    this.#joined.delete(peer);
    const { members } = this.#shares.get(name) as Share;
    members.delete(peer);
    return [...members];
  }

  list(): ShareState[] {
    return [...this.#shares].map(([share, { bytes, members }]) => ({
      ...{ share, bytes },
      processes: [...members].slice(0, mostProcesses).map(({ process }) => process),
    }));
  }

  #join(peer: Peer, name: string): ShareAnswer {
    if (this.#joined.has(peer)) return { ...breaks('a connection joins one share'), told: [] };
    const share = this.#shares.get(name);
    if (share === undefined)
      return { reply: refuse('absent', `there is no such share; "cistern keep --share ${name}=SIZE" makes it`), told: [] };
    const told = [...share.members];
    share.members.add(peer);
    this.#joined.set(peer, name);
    return { reply: { is: 'part', bytes: this.partOf(peer) }, told };
  }

  #set({ share: name, bytes }: SetShare): ShareAnswer {
    const known = this.#shares.get(name);
    if (known === undefined && this.#shares.size >= mostShares) {
      return {
        reply: refuse('limit', `there are ${mostShares} shares, which is the most, and ${formatBytes(bytes)} were asked for`),
        told: [],
      };
    }
    const share = known ?? { bytes, members: new Set<Peer>() };
    share.bytes = bytes;
    this.#shares.set(name, share);
    if (bytes === 0 && share.members.size === 0) this.#shares.delete(name);
    return { reply: { is: 'share set' }, told: [...share.members] };
  }
}
