import { CisternError, OutOfMemoryError } from '../basics/errors.js';
import { awaitMessages, closeDescriptor, connectTo, type Descriptor, receiveFrom, sendTo, unavailable } from './local-socket.js';
import { answersTo, InvalidMessage, parseReply, type Refusal, type Reply, type Request } from './protocol.js';

const hasEnded = 'ECONNRESET';

/**
 * A connection to `cistern keep`. While it holds a region it is the lock: the region is writing or reading until the connection ends,
 * which it does with the process at the latest.
 */
export class KeepConnection {
  readonly #path: string;
  #socket: Descriptor | undefined;

  /** @throws CisternError (`ERR_CISTERN_KEEP_UNAVAILABLE`) */
  constructor(path: string) {
    this.#path = path;
    this.#socket = connectTo(path);
  }

  /**
   * Sends a request and waits for the answer, five seconds at most. After an error other than a refusal the connection is closed.
   * @param subject what the request is about, for errors
   * @throws CisternError, OutOfMemoryError
   */
  request(
    request: Request,
    subject: string,
    descriptor?: Descriptor,
  ): { readonly reply: Reply; readonly descriptor: Descriptor | undefined } {
    const socket = this.#socket;
    if (socket === undefined) throw unavailable(this.#path, 'the connection has ended');
    const sent = sendTo(socket, JSON.stringify(request), descriptor);
    if (sent !== 'done' && sent !== hasEnded) throw this.#lost(sent);
    // A connection that was ended may still have the reason, which the system tells after the end.
    let received = receiveFrom(socket);
    if (received === hasEnded) received = receiveFrom(socket);
    if (typeof received === 'string') throw this.#lost(received);
    let reply: Reply;
    try {
      reply = parseReply(received.text);
      if (reply.is !== 'refused' && !answersTo[request.op].includes(reply.is))
        throw new InvalidMessage('the answer is about something else');
    } catch (error) {
      if (received.descriptor !== undefined) closeDescriptor(received.descriptor);
      if (error instanceof InvalidMessage) throw this.#lost(error.message);
      throw error;
    }
    if (reply.is !== 'refused') return { reply, descriptor: received.descriptor };
    if (received.descriptor !== undefined) closeDescriptor(received.descriptor);
    throw refusal(reply.why, `${subject}: ${reply.message}`, request);
  }

  /**
   * What `cistern keep` has said since the last call, without a request and without a wait.
   * @throws CisternError (`ERR_CISTERN_KEEP_UNAVAILABLE`) if the connection has ended
   */
  news(): Reply[] {
    const news: Reply[] = [];
    while (this.#socket !== undefined && awaitMessages([this.#socket], 0).length > 0) {
      const received = receiveFrom(this.#socket);
      if (typeof received === 'string') throw this.#lost(received);
      if (received.descriptor !== undefined) closeDescriptor(received.descriptor);
      try {
        news.push(parseReply(received.text));
      } catch (error) {
        throw error instanceof InvalidMessage ? this.#lost(error.message) : error;
      }
    }
    return news;
  }

  close(): void {
    if (this.#socket !== undefined) closeDescriptor(this.#socket);
    this.#socket = undefined;
  }

  #lost(reason: string): CisternError {
    this.close();
    const reasons: Readonly<Record<string, string>> = { EAGAIN: 'it does not answer', [hasEnded]: 'it has ended' };
    return unavailable(this.#path, reasons[reason] ?? reason);
  }
}

function refusal(why: Refusal, message: string, request: Request): CisternError {
  switch (why) {
    case 'limit': {
      const requestedBytes = request.op === 'open' ? request.bytes : 0;
      return new OutOfMemoryError(message, { requestedBytes, path: ['cistern keep'] });
    }
    case 'in use':
      return new CisternError('ERR_CISTERN_REGION_IN_USE', message);
    case 'mismatch':
      return new CisternError('ERR_CISTERN_REGION_MISMATCH', message);
    default:
      return new CisternError('ERR_CISTERN_INVALID_STATE', message);
  }
}
