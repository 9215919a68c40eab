/**
 * What processes and `cistern keep` say to each other: one JSON text a message, and at most one descriptor with it.
 *
 *     process                                      cistern keep
 *     open region, layout, bytes, device     ──►
 *                                            ◄──   writing                        the region was empty
 *     commit address, sizes  + descriptor    ──►   committed; the process reads it now
 *                                            ◄──   committed
 *
 *     open …                                 ──►
 *                                            ◄──   reading address, sizes  + descriptor
 *     (the connection ends)                        the process reads, or writes, no more
 *
 * Every message is checked as a whole before anything is changed. What either side may send is bounded by the constants below, and so
 * is what a peer can make `cistern keep` remember.
 */

import { type ArgumentRangeError, formatValue, invalidValue } from '../basics/errors.js';

/** The longest name of a region or a share. */
const longestName = 64;
/** The longest text that tells layouts apart. */
const longestLayout = 128;
/** The most allocations in a region: their sizes fit one message. */
export const mostAllocations = 8192;
/** The most regions that one `cistern keep` has. Their list fits one message. */
export const mostRegions = 256;
/** The most shares, likewise. */
export const mostShares = 64;
/** How many processes a list names for each of them, likewise. */
export const mostProcesses = 16;

/** Where the region is, for whom, and what is in it. */
export interface OpenRegion {
  readonly op: 'open';
  readonly region: string;
  /** What must be equal for the contents to be of use: a hash of weights and of how they are laid out. */
  readonly layout: string;
  readonly bytes: number;
  /** The UUID of the device. */
  readonly device: string;
}

/** The contents are complete. A descriptor of the memory comes with it. */
export interface CommitRegion {
  readonly op: 'commit';
  readonly address: number;
  /** The bytes of each allocation, in order. */
  readonly sizes: readonly number[];
}

/** Ends a region that nobody uses. */
export interface RemoveRegion {
  readonly op: 'remove';
  readonly region: string;
}

/** From now on the process has a part of a share, until its connection ends. It is told whenever its part changes. */
export interface JoinShare {
  readonly op: 'join';
  readonly share: string;
}

/** Makes a share, or changes how much it has; 0 bytes without members end it. */
export interface SetShare {
  readonly op: 'set share';
  readonly share: string;
  readonly bytes: number;
}

/** A message of a process. */
export type Request = OpenRegion | CommitRegion | RemoveRegion | JoinShare | SetShare | { readonly op: 'list' };

/** A share as `cistern keep --list` shows it. */
export interface ShareState {
  readonly share: string;
  readonly bytes: number;
  /** The processes that have equal parts of it. */
  readonly processes: readonly number[];
}

/** A region as `cistern keep --list` shows it. */
export interface RegionState {
  readonly region: string;
  readonly layout: string;
  readonly bytes: number;
  readonly device: string;
  /** `writing`: one process fills it; it is gone if that process ends first. `committed`: it can be read, or is being read. */
  readonly state: 'writing' | 'committed';
  /** The processes that write or read it. */
  readonly processes: readonly number[];
}

/** All that a `cistern keep` has. */
export interface ListReply {
  readonly is: 'list';
  readonly limitBytes: number | null;
  readonly regions: readonly RegionState[];
  readonly shares: readonly ShareState[];
}

/** The answers to each request, besides a refusal. */
export const answersTo: Readonly<Record<Request['op'], readonly Reply['is'][]>> = {
  open: ['writing', 'reading'],
  commit: ['committed'],
  remove: ['removed'],
  list: ['list'],
  join: ['part'],
  'set share': ['share set'],
};

/** Why `cistern keep` refuses a request. */
export type Refusal = 'in use' | 'limit' | 'mismatch' | 'absent' | 'invalid';

/** An answer of `cistern keep`. */
export type Reply =
  | { readonly is: 'writing' }
  | { readonly is: 'reading'; readonly address: number; readonly sizes: readonly number[] }
  | { readonly is: 'committed' }
  /** 0 bytes: there was no such region. */
  | { readonly is: 'removed'; readonly bytes: number }
  | ListReply
  /** Also without a request, whenever it changes. */
  | { readonly is: 'part'; readonly bytes: number }
  | { readonly is: 'share set' }
  | { readonly is: 'refused'; readonly why: Refusal; readonly message: string };

/** A message that is none of the protocol. */
export class InvalidMessage extends Error {}

/** Whether a text can name a region. */
function isRegionName(value: unknown): value is string {
  return typeof value === 'string' && value.length <= longestName && /^[A-Za-z0-9][A-Za-z0-9._:/-]*$/.test(value);
}

/** Whether a text can tell layouts apart. */
function isLayout(value: unknown): value is string {
  return typeof value === 'string' && value.length <= longestLayout && /^[\x21-\x7e]+$/.test(value);
}

/** @throws ArgumentRangeError unless the value can name a region or a share */
export function assertRegion(region: unknown, name = 'region'): asserts region is string {
  if (!isRegionName(region))
    throw invalidText(name, region, `1 to ${longestName} letters, digits and ._:/-, of which the first is a letter or digit`);
}

/** @throws ArgumentRangeError unless the value can tell layouts apart */
export function assertLayout(layout: unknown): asserts layout is string {
  if (!isLayout(layout)) throw invalidText('layout', layout, `1 to ${longestLayout} printable characters without spaces`);
}

/** @throws InvalidMessage unless the text is a request */
export function parseRequest(text: string): Request {
  const message = parseObject(text);
  switch (message['op']) {
    case 'open': {
      const { region, layout, bytes, device } = message;
      if (!isRegionName(region)) throw refused('region', region);
      if (!isLayout(layout)) throw refused('layout', layout);
      if (!isBytes(bytes) || bytes === 0) throw refused('bytes', bytes);
      if (!isLayout(device)) throw refused('device', device);
      return { op: 'open', region, layout, bytes, device };
    }
    case 'commit': {
      const { address, sizes } = message;
      if (!isBytes(address) || address === 0) throw refused('address', address);
      return { op: 'commit', address, sizes: parseSizes(sizes) };
    }
    case 'remove': {
      const { region } = message;
      if (!isRegionName(region)) throw refused('region', region);
      return { op: 'remove', region };
    }
    case 'join': {
      const { share } = message;
      if (!isRegionName(share)) throw refused('share', share);
      return { op: 'join', share };
    }
    case 'set share': {
      const { share, bytes } = message;
      if (!isRegionName(share)) throw refused('share', share);
      if (!isBytes(bytes)) throw refused('bytes', bytes);
      return { op: 'set share', share, bytes };
    }
    case 'list':
      return { op: 'list' };
    default:
      throw refused('op', message['op']);
  }
}

/**
 * Reads the fields of an answer that a process relies on.
 * @throws InvalidMessage
 */
export function parseReply(text: string): Reply {
  const message = parseObject(text);
  if (message['is'] === 'reading') {
    const { address, sizes } = message;
    if (!isBytes(address) || address === 0) throw refused('address', address);
    return { is: 'reading', address, sizes: parseSizes(sizes) };
  }
  if (message['is'] === 'refused' && typeof message['message'] !== 'string') throw refused('message', message['message']);
  if (message['is'] === 'list' && !Array.isArray(message['regions'])) throw refused('regions', message['regions']);
  if (message['is'] === 'list' && !Array.isArray(message['shares'])) throw refused('shares', message['shares']);
  if ((message['is'] === 'removed' || message['is'] === 'part') && !isBytes(message['bytes'])) throw refused('bytes', message['bytes']);
  return message as unknown as Reply;
}

function parseObject(text: string): Readonly<Record<string, unknown>> {
  let message: unknown;
  try {
    message = JSON.parse(text);
  } catch {
    throw new InvalidMessage('the message is not JSON');
  }
  if (typeof message !== 'object' || message === null || Array.isArray(message)) throw new InvalidMessage('the message is not an object');
  return message as Record<string, unknown>;
}

function parseSizes(sizes: unknown): number[] {
  if (!Array.isArray(sizes) || sizes.length > mostAllocations || !sizes.every(isBytes)) throw refused('sizes', sizes);
  return sizes;
}

function isBytes(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function refused(name: string, value: unknown): InvalidMessage {
  return new InvalidMessage(`${name} cannot be ${formatValue(value).slice(0, 100)}`);
}

function invalidText(name: string, value: unknown, expected: string): ArgumentRangeError {
  return invalidValue(`${name} must be ${expected}, got ${formatValue(value)}`);
}
