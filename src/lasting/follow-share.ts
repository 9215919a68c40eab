import { LimitingResourceAdaptor } from '../adaptors/pass-through/limiting-resource-adaptor.js';
import { ArgumentTypeError, CisternError, formatValue } from '../basics/errors.js';
import { assertFunction, assertMilliseconds, assertName, assertOptions, optionNames } from '../basics/validation.js';
import { KeepConnection } from './keep-connection.js';
import { defaultSocketPath } from './local-socket.js';
import { assertRegion, type Reply } from './protocol.js';

/** That the part of this process in a share is smaller than what it has allocated. */
export interface ShareEvent {
  /** The name of the share. */
  readonly share: string;
  /** The part of this process, which is the limit of the resource now. */
  readonly bytes: number;
  /** How much more than that is allocated. */
  readonly overBytes: number;
}

/** Options of {@link followShare}. */
export interface FollowShareOptions {
  /** The resource whose limit follows. Its own `limitBytes` holds until the part is known. */
  readonly resource: LimitingResourceAdaptor;
  /**
   * The time between two looks whether the part has changed, in milliseconds. A look takes a few microseconds.
   * @defaultValue 200
   */
  readonly intervalMilliseconds?: number | undefined;
  /**
   * The path of the socket of `cistern keep`.
   * @defaultValue `CISTERN_KEEP`, otherwise where `cistern keep` listens by default
   */
  readonly socket?: string | undefined;
}

/** Follows a share until it is disposed. */
export interface ShareFollower extends Disposable {
  /** Looks immediately whether the part has changed. */
  check(): void;
  /** Leaves the share: its part goes to the others. The limit stays as it is. A second call does nothing. */
  dispose(): void;
}

const knownOptions = optionNames<FollowShareOptions>({ intervalMilliseconds: true, resource: true, socket: true });
const longestInterval = 2 ** 31 - 1;
/** Between two attempts to join again after `cistern keep` has ended. */
const joinMilliseconds = 1000;
/** There is none, or it does not have the share. */
const endings: readonly string[] = ['ERR_CISTERN_KEEP_UNAVAILABLE', 'ERR_CISTERN_INVALID_STATE'];

/**
 * Keeps the limit of a resource at this process's part of a share of `cistern keep`. All processes that follow a share have equal parts
 * of it, and `cistern keep --share NAME=SIZE` (or {@link setShare}) changes it while they run.
 *
 * A part that becomes smaller takes nothing away: allocations beyond it are refused, and a function is called that frees what the
 * process can do without. So the processes may have more together until they have done so.
 *
 * The looks do not keep the process alive. If `cistern keep` ends, the limit stays, and the process joins again once there is one with
 * the share.
 * @param giveBack called if more is allocated than the part has, each time that the part has changed
 * @throws CisternError (`ERR_CISTERN_KEEP_UNAVAILABLE`), or (`ERR_CISTERN_INVALID_STATE`) if there is no such share, or if workers share the limit
 * @example
 * ```ts
 * const resource = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 1 * GiB });
 * using follower = followShare('caches', ({ overBytes }) => console.log(`${overBytes} bytes too many`), { resource });
 * ```
 */
export function followShare(share: string, giveBack: (event: ShareEvent) => void, options: FollowShareOptions): ShareFollower {
  assertRegion(share, 'share');
  assertFunction(giveBack, 'giveBack');
  assertOptions(options, knownOptions);
  const { resource, intervalMilliseconds = 200, socket = defaultSocketPath() } = options;
  if (!(resource instanceof LimitingResourceAdaptor)) {
    throw new ArgumentTypeError(`resource must be a LimitingResourceAdaptor, got ${formatValue(resource)}`);
  }
  assertMilliseconds(intervalMilliseconds, 'intervalMilliseconds');
  assertName(socket, 'socket');
  let connection: KeepConnection | undefined;
  let joinAt = 0;
  let isDisposed = false;

  const follow = (bytes: number) => {
    resource.setLimit(bytes);
    const overBytes = resource.allocatedBytes - bytes;
    if (overBytes > 0) giveBack(Object.freeze({ share, bytes, overBytes }));
  };
  /** The part of this process from now on. */
  const join = (): Reply => {
    joinAt = performance.now() + joinMilliseconds;
    const joining = new KeepConnection(socket);
    try {
      const { reply } = joining.request({ op: 'join', share }, `cannot follow the share '${share}'`);
      connection = joining;
      return reply;
    } catch (error) {
      joining.close();
      throw error;
    }
  };
  /** What has been heard last, if anything; nothing if `cistern keep` has ended. */
  const heard = (): Reply | undefined => {
    try {
      if (connection !== undefined) return connection.news().at(-1);
      return performance.now() >= joinAt ? join() : undefined;
    } catch (error) {
      connection = undefined;
      if (error instanceof CisternError && endings.includes(error.code)) return undefined;
      throw error;
    }
  };
  const followReply = (reply: Reply | undefined) => {
    if (reply?.is === 'part') follow(reply.bytes);
  };
  const check = () => {
    if (!isDisposed) followReply(heard());
  };
  // Refused if workers share the limit.
  resource.setLimit(resource.limitBytes);
  const first = join();
  const timer = setInterval(check, Math.min(intervalMilliseconds, longestInterval)).unref();
  const dispose = () => {
    isDisposed = true;
    clearInterval(timer);
    connection?.close();
    connection = undefined;
  };
  try {
    followReply(first);
  } catch (error) {
    dispose();
    throw error;
  }
  return { check, dispose, [Symbol.dispose]: dispose };
}
