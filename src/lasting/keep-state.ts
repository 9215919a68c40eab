import { InvalidMessage, parseRequest, type Reply } from './protocol.js';
import { type Answer, type Peer, RegionTable, refuse } from './region-table.js';
import { ShareTable } from './share-table.js';

/** An answer to one connection, and the others that are to be told of their parts of a share. */
export interface KeepAnswer<Descriptor> extends Answer<Descriptor> {
  readonly told?: readonly Peer[] | undefined;
}

/** All that `cistern keep` knows, and its answer to every message, without the sockets. */
export class KeepState<Descriptor> {
  readonly #close: (descriptor: Descriptor) => void;
  readonly #regions: RegionTable<Descriptor>;
  readonly #shares = new ShareTable();

  /** @param close ends a descriptor that came with a message, once it is not needed */
  constructor(limitBytes: number, close: (descriptor: Descriptor) => void) {
    this.#close = close;
    this.#regions = new RegionTable(limitBytes, close);
  }

  /** The bytes of all regions. */
  get regionBytes(): number {
    return this.#regions.bytes;
  }

  /** Whether a connection has anything that ends with it. */
  holds(peer: Peer): boolean {
    return this.#regions.holds(peer) || this.#shares.holds(peer);
  }

  /** Answers a message. A descriptor that comes with it is closed unless it is needed. */
  answer(peer: Peer, text: string, descriptor: Descriptor | undefined): KeepAnswer<Descriptor> {
    let isNeeded = false;
    try {
      const answer = this.#answer(peer, text, descriptor);
      isNeeded = answer.reply.is === 'committed';
      return answer;
    } catch (error) {
      if (!(error instanceof InvalidMessage)) throw error;
      return { reply: refuse('invalid', error.message), isLast: true };
    } finally {
      if (descriptor !== undefined && !isNeeded) this.#close(descriptor);
    }
  }

  /** What a member of a share is told. */
  partOf(peer: Peer): Reply {
    return { is: 'part', bytes: this.#shares.partOf(peer) };
  }

  /** A connection has ended. The others that are to be told. */
  ended(peer: Peer): readonly Peer[] {
    this.#regions.ended(peer);
    return this.#shares.ended(peer);
  }

  #answer(peer: Peer, text: string, descriptor: Descriptor | undefined): KeepAnswer<Descriptor> {
    const request = parseRequest(text);
    switch (request.op) {
      case 'list':
        return { reply: this.#list() };
      case 'join':
      case 'set share':
        return this.#shares.answer(peer, request);
      default:
        return this.#regions.answer(peer, request, descriptor);
    }
  }

  #list(): Reply {
    const { limitBytes } = this.#regions;
    return {
      is: 'list',
      limitBytes: Number.isFinite(limitBytes) ? limitBytes : null,
      regions: this.#regions.list(),
      shares: this.#shares.list(),
    };
  }
}
