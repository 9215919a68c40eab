import { CisternError } from '../basics/errors.js';
import { acceptFrom, awaitMessages, closeDescriptor, type Descriptor, listenAt, receiveFrom, sendTo } from './local-socket.js';
import { type Peer, RegionTable } from './region-table.js';

/** The most connections at a time, and of one process; how long one may say nothing before it holds a region. */
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
 * Serves the regions of one socket, for ever: it needs no event loop, no device and no driver, and maps nothing. It holds no state
 * that must be saved, so that any signal may end it.
 *
 * No peer can make it wait: it never blocks but for the next message of any, reads one message of each in turn, and ends the connection
 * of one that does not read its answer.
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
  const table = new RegionTable<Descriptor>(limitBytes, closeDescriptor);
  const connections: Connection[] = [];
  const end = (connection: Connection) => {
    table.ended(connection);
    closeDescriptor(connection.socket);
    connections.splice(connections.indexOf(connection), 1);
  };
  for (;;) {
    const asked = connections.slice();
    const isAnySilent = asked.some((each) => !table.holds(each));
    const sockets = [listening.listener, ...asked.map(({ socket }) => socket)];
    for (const place of awaitMessages(sockets, isAnySilent ? silentMilliseconds : -1)) {
      if (place === 0) accept(listening.listener, connections);
      else if (!answer(asked[place - 1] as Connection, table)) end(asked[place - 1] as Connection);
    }
    const latest = performance.now() - silentMilliseconds;
    for (const each of asked) if (each.since < latest && !table.holds(each) && connections.includes(each)) end(each);
  }
}

function accept(listener: Descriptor, connections: Connection[]): void {
  for (let i = 0; i < mostAtOnce; i++) {
    const accepted = acceptFrom(listener);
    if (typeof accepted === 'string') return;
    const ofProcess = connections.filter((each) => each.process === accepted.process).length;
    if (connections.length < mostConnections && ofProcess < mostOfProcess) {
      connections.push(new Connection(accepted.socket, accepted.process));
    } else {
      closeDescriptor(accepted.socket);
    }
  }
}

/** Answers one message. False if the connection must end. */
function answer(connection: Connection, table: RegionTable<Descriptor>): boolean {
  const received = receiveFrom(connection.socket);
  if (typeof received === 'string') return received === 'EAGAIN';
  const { reply, descriptor, isLast } = table.answer(connection, received.text, received.descriptor);
  return sendTo(connection.socket, JSON.stringify(reply), descriptor) === 'done' && isLast !== true;
}
