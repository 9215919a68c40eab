import { CisternError } from '../basics/errors.js';
import { KeepState } from './keep-state.js';
import { acceptFrom, awaitMessages, closeDescriptor, type Descriptor, listenAt, receiveFrom, sendTo } from './local-socket.js';
import type { Reply } from './protocol.js';
import { type Peer, refuse } from './region-table.js';

/** The most connections at a time, and of one process; how long one may say nothing before it holds a region or a share. */
const mostConnections = 512;
const mostOfProcess = 64;
const silentMilliseconds = 2000;
/** How many connections are accepted before others are answered. */
const mostAtOnce = 64;

/** A process that is connected. */
class Connection implements Peer {
  readonly socket: Descriptor;
  readonly process: number;
  readonly since = performance.now();

  constructor(socket: Descriptor, process: number) {
    this.socket = socket;
    this.process = process;
  }
}

/**
 * Serves regions and shares at one socket, for ever: it needs no event loop, no device and no driver, and maps nothing. It holds no state
 * that must be saved, so that any signal may end it.
 *
 * No peer can make it wait: it never blocks but for the next message of any, reads one message of each in turn, and ends the connection
 * of one that does not read what it is sent.
 * @param onReady called once processes can connect
 * @throws CisternError (`ERR_CISTERN_KEEP_UNAVAILABLE`) if it cannot listen there
 */
export function serveRegions(path: string, limitBytes: number, onReady: () => void): never {
  const listening = listenAt(path);
  if (typeof listening === 'string') {
    const reason = listening === 'EBUSY' ? 'another one listens there' : `the system says ${listening}`;
    throw new CisternError('ERR_CISTERN_KEEP_UNAVAILABLE', `cistern keep cannot listen at ${path}: ${reason}`);
  }
  onReady();
  const server = new Server(limitBytes);
  for (;;) server.turn(listening.listener);
}

class Server {
  readonly #state: KeepState<Descriptor>;
  readonly #connections = new Set<Connection>();

  constructor(limitBytes: number) {
    this.#state = new KeepState(limitBytes, closeDescriptor);
  }

  /** Waits for messages, and answers one of each connection that has any. */
  turn(listener: Descriptor): void {
    const asked = [...this.#connections];
    const isAnySilent = asked.some((each) => !this.#state.holds(each));
    const sockets = [listener, ...asked.map(({ socket }) => socket)];
    for (const place of awaitMessages(sockets, isAnySilent ? silentMilliseconds : -1)) {
      const connection = asked[place - 1];
      if (connection === undefined) this.#accept(listener);
      else if (this.#connections.has(connection) && !this.#answer(connection)) this.#end(connection);
    }
    const latest = performance.now() - silentMilliseconds;
    for (const each of asked) if (each.since < latest && !this.#state.holds(each)) this.#end(each);
  }

  #accept(listener: Descriptor): void {
    for (let i = 0; i < mostAtOnce; i++) {
      const accepted = acceptFrom(listener);
      if (typeof accepted === 'string') return;
      const ofProcess = [...this.#connections].filter((each) => each.process === accepted.process).length;
      if (this.#connections.size < mostConnections && ofProcess < mostOfProcess) {
        this.#connections.add(new Connection(accepted.socket, accepted.process));
      } else {
        // It reads this instead of an answer.
        const whose = ofProcess < mostOfProcess ? `there are ${mostConnections} connections` : `a process has ${mostOfProcess} connections`;
        sendTo(accepted.socket, JSON.stringify(refuse('invalid', `${whose}, which is the most`)));
        closeDescriptor(accepted.socket);
      }
    }
  }

  /** Answers one message. False if the connection must end. */
  #answer(connection: Connection): boolean {
    const received = receiveFrom(connection.socket);
    if (typeof received === 'string') return received === 'EAGAIN';
    const { reply, descriptor, isLast, told = [] } = this.#state.answer(connection, received.text, received.descriptor);
    const isUnderstood = isSent(connection, reply, descriptor) && isLast !== true;
    this.#tell(told);
    return isUnderstood;
  }

  /** Tells members of a share what their part is now. Those that do not listen leave it, which changes the parts of the rest. */
  #tell(told: readonly Peer[]): void {
    const deaf = (told as readonly Connection[]).filter((each) => this.#connections.has(each) && !isSent(each, this.#state.partOf(each)));
    for (const each of deaf) this.#end(each);
  }

  #end(connection: Connection): void {
    if (!this.#connections.delete(connection)) return;
    closeDescriptor(connection.socket);
    this.#tell(this.#state.ended(connection));
  }
}

/** False if the process has ended, or does not read. */
function isSent(connection: Connection, reply: Reply, descriptor?: Descriptor): boolean {
  return sendTo(connection.socket, JSON.stringify(reply), descriptor) === 'done';
}
