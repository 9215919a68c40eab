import { assertBytes, assertName, assertOptions, optionNames } from '../basics/validation.js';
import { KeepConnection } from './keep-connection.js';
import { defaultSocketPath } from './local-socket.js';
import { assertRegion, type ListReply, type RegionState, type Reply, type Request, type ShareState } from './protocol.js';

/** Which `cistern keep` to ask. */
export interface KeepOptions {
  /**
   * The path of its socket.
   * @defaultValue `CISTERN_KEEP`, otherwise where `cistern keep` listens by default
   */
  readonly socket?: string | undefined;
}

const knownOptions = optionNames<KeepOptions>({ socket: true });

/** What a `cistern keep` has. */
export interface KeepState {
  /** The most bytes that all regions may have; infinite without a limit. */
  readonly limitBytes: number;
  readonly regions: readonly RegionState[];
  readonly shares: readonly ShareState[];
}

/**
 * The regions that `cistern keep` has, and which processes use them.
 * @throws CisternError (`ERR_CISTERN_KEEP_UNAVAILABLE`)
 */
export function listRegions(options: KeepOptions = {}): KeepState {
  const reply = ask({ op: 'list' }, 'cannot list regions', options);
  const { limitBytes, regions, shares } = reply as ListReply;
  return { limitBytes: limitBytes ?? Number.POSITIVE_INFINITY, regions, shares };
}

/**
 * Ends a region, so that its memory is free. Returns its bytes; 0 if there is no such region.
 * @throws CisternError (`ERR_CISTERN_REGION_IN_USE`) while a process writes or reads it; (`ERR_CISTERN_KEEP_UNAVAILABLE`)
 */
export function removeRegion(region: string, options: KeepOptions = {}): number {
  assertRegion(region);
  const reply = ask({ op: 'remove', region }, `cannot remove the region '${region}'`, options);
  return reply.is === 'removed' ? reply.bytes : 0;
}

/**
 * Makes a share of `cistern keep`, or changes how many bytes it has. The processes that follow it are told. A share of 0 bytes that
 * nobody follows ends.
 * @throws CisternError (`ERR_CISTERN_KEEP_UNAVAILABLE`)
 */
export function setShare(share: string, bytes: number, options: KeepOptions = {}): void {
  assertRegion(share, 'share');
  assertBytes(bytes);
  ask({ op: 'set share', share, bytes }, `cannot set the share '${share}'`, options);
}

function ask(request: Request, subject: string, options: KeepOptions): Reply {
  assertOptions(options, knownOptions);
  const { socket = defaultSocketPath() } = options;
  assertName(socket, 'socket');
  const connection = new KeepConnection(socket);
  try {
    return connection.request(request, subject).reply;
  } finally {
    connection.close();
  }
}
