/**
 * The file through which `cistern run` and the processes that it covers know each other;
 * `native/interpose/control.h` describes its bytes. The processes map it into their memory.
 *
 *     head     'cistrun1'  u32 whether the file is taken  u32 limits  u64 bytes between stacks  u64 0  the recording's path
 *     limits   16 times    u64 bytes  name
 *     slots    64 times    u32 process  u32 whether it writes that file  u64 current, peak, allocations, refusals  …
 */
import { closeSync, readFileSync, writeSync } from 'node:fs';
import { ArgumentRangeError } from '../../basics/errors.js';
import { createFile } from '../../files/new-file.js';

const magic = 'cistrun1';
const pathAt = 32;
const limitsAt = 4096;
const limitBytes = 128;
const slotsAt = 6144;
const slotBytes = 256;
const slotCount = 64;
const noStacks = 0xffff_ffff_ffff_ffffn;

/** The most limits of a run. */
export const mostLimits = 16;

/** A limit on what all processes of a run together may have allocated on devices. */
export interface OutsideLimit {
  /** The account that it holds for; empty: everything. */
  readonly name: string;
  readonly bytes: number;
}

/** What is asked of a run. */
export interface OutsideOptions {
  /** The absolute path of the recording. */
  readonly file: string;
  readonly limits: readonly OutsideLimit[];
  /** A stack is recorded whenever this many bytes were allocated since the last; `undefined`: never. */
  readonly stackBytes: number | undefined;
}

/** What a process has allocated on devices. */
export interface OutsideProcess {
  readonly process: number;
  /** Whether it writes the file that the run named, rather than one beside it. */
  readonly hasMainFile: boolean;
  /** What it has not freed; of a process that was killed, too. */
  readonly currentBytes: number;
  readonly peakBytes: number;
  readonly allocations: number;
  readonly refusals: number;
}

/**
 * Writes the file at a path that does not exist.
 * @throws ArgumentRangeError for a path or a name that does not fit
 */
export function createControlFile(path: string, { file, limits, stackBytes }: OutsideOptions): void {
  const bytes = new Uint8Array(slotsAt + slotCount * slotBytes);
  const view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode(magic));
  view.setUint32(12, limits.length, true);
  view.setBigUint64(16, stackBytes === undefined ? noStacks : BigInt(stackBytes), true);
  putText(bytes, pathAt, limitsAt - pathAt, file, 'the path of the recording');
  for (const [i, limit] of limits.entries()) {
    view.setBigUint64(limitsAt + i * limitBytes, BigInt(limit.bytes), true);
    putText(bytes, limitsAt + i * limitBytes + 8, limitBytes - 8, limit.name, 'the name of a limit');
  }
  const descriptor = createFile(path, 'write', 0o600);
  try {
    writeSync(descriptor, bytes);
  } finally {
    closeSync(descriptor);
  }
}

/** The processes that have used a device, in order. */
export function readControlFile(path: string): OutsideProcess[] {
  const view = new DataView(readFileSync(path).buffer);
  const processes: OutsideProcess[] = [];
  for (let at = slotsAt; at < view.byteLength; at += slotBytes) {
    const process = view.getUint32(at, true);
    if (process === 0) break;
    const number = (offset: number) => Number(view.getBigUint64(at + offset, true));
    processes.push({
      process,
      hasMainFile: view.getUint32(at + 4, true) === 1,
      currentBytes: number(8),
      peakBytes: number(16),
      allocations: number(24),
      refusals: number(32),
    });
  }
  return processes;
}

/** Puts a text, which is followed by at least one zero. */
function putText(bytes: Uint8Array, at: number, capacity: number, text: string, what: string): void {
  const encoded = new TextEncoder().encode(text);
  if (encoded.length >= capacity)
    throw new ArgumentRangeError(`${what} must have fewer than ${capacity} bytes, got ${encoded.length}`, 'ERR_OUT_OF_RANGE');
  bytes.set(encoded, at);
}
