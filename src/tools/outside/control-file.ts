/**
 * The file through which `cistern run` and the processes that it covers know each other;
 * `native/interpose/control.h` describes its bytes. The processes map it into their memory.
 *
 *     head     'cistrun2'  u32 whether the file is taken  u32 limits  u64 bytes between stacks  u64 libraries  the recording's path
 *     limits   16 times    u64 bytes  name  u32 whether it held for some request
 *     slots    64 times    u32 process  u32 whether it writes that file  u64 current, peak, allocations, refusals, 16 of limits, dumps, managed  …
 *     libraries 256 times  u32 process  u32 0  name  u64 bytes on devices, their peak, bytes on the host, allocations
 */
import { closeSync, readFileSync, writeSync } from 'node:fs';
import { ArgumentRangeError, resultOrNothing } from '../../basics/errors.js';
import { createFile } from '../../files/new-file.js';

const magic = 'cistrun2';
const pathAt = 32;
const limitsAt = 4096;
const limitBytes = 128;
const limitUsedAt = 124;
const slotsAt = 6144;
const slotBytes = 256;
const slotCount = 64;
const librariesAt = slotsAt + slotCount * slotBytes;
const libraryBytes = 128;
const libraryCount = 256;
const noStacks = 0xffff_ffff_ffff_ffffn;

/** The most limits of a run. */
export const mostLimits = 16;

/** A limit on what all processes of a run together may have allocated, of devices' memory and of managed memory. */
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
interface OutsideProcess {
  readonly process: number;
  /** Whether it writes the file that the run named, rather than one beside it. */
  readonly hasMainFile: boolean;
  /** What it has not freed; of a process that was killed, too. */
  readonly currentBytes: number;
  readonly peakBytes: number;
  readonly allocations: number;
  readonly refusals: number;
  /** How many files it has written that show what was held when it was refused. */
  readonly dumps: number;
}

/**
 * Writes the file at a path that does not exist.
 * @throws ArgumentRangeError for a path or a name that does not fit
 */
export function createControlFile(path: string, { file, limits, stackBytes }: OutsideOptions): void {
  const bytes = new Uint8Array(librariesAt + libraryCount * libraryBytes);
  const view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode(magic));
  view.setUint32(12, limits.length, true);
  view.setBigUint64(16, stackBytes === undefined ? noStacks : BigInt(stackBytes), true);
  putText(bytes, pathAt, limitsAt - pathAt, file, 'the path of the recording');
  for (const [i, limit] of limits.entries()) {
    view.setBigUint64(limitsAt + i * limitBytes, BigInt(limit.bytes), true);
    putText(bytes, limitsAt + i * limitBytes + 8, limitUsedAt - 8, limit.name, 'the name of a limit');
  }
  const descriptor = createFile(path, 'write', 0o600);
  try {
    writeSync(descriptor, bytes);
  } finally {
    closeSync(descriptor);
  }
}

/** What is known when a run has ended. */
export interface OutsideEnd {
  /** The processes that have used a device, in order. */
  readonly processes: readonly OutsideProcess[];
  /** The names of limits that held for nothing, as nobody allocated under such a name. */
  readonly unusedLimits: readonly string[];
  /** The names of what allocated. */
  readonly libraries: readonly string[];
}

/** Reads what the processes left. */
export function readControlFile(path: string): OutsideEnd {
  const bytes = readFileSync(path);
  const unusedLimits: string[] = [];
  for (let i = 0; i < bytes.readUInt32LE(12); i++) {
    const at = limitsAt + i * limitBytes;
    const name = textAt(bytes, at + 8);
    if (name !== '' && bytes.readUInt32LE(at + limitUsedAt) === 0) unusedLimits.push(name);
  }
  const libraries = new Set<string>();
  for (let at = librariesAt; at < bytes.length && bytes.readUInt32LE(at) !== 0; at += libraryBytes) libraries.add(textAt(bytes, at + 8));
  return { processes: processesIn(new DataView(bytes.buffer, bytes.byteOffset)), unusedLimits, libraries: [...libraries].sort() };
}

function processesIn(view: DataView): OutsideProcess[] {
  const processes: OutsideProcess[] = [];
  for (let at = slotsAt; at < librariesAt; at += slotBytes) {
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
      dumps: number(168),
    });
  }
  return processes;
}

/** What a library of a process has allocated from the driver. */
export interface OutsideLibrary {
  /** Its npm package, or its file; `cistern` for cistern's own resources. */
  readonly name: string;
  /** Bytes on devices now, and the most at once. */
  readonly deviceBytes: number;
  readonly peakDeviceBytes: number;
  /** Bytes of the host that devices can use, pinned or managed. */
  readonly hostBytes: number;
  readonly allocations: number;
}

/** The libraries of a process; none if the file is no longer there, or is of another version. */
export function readOutsideLibraries(path: string, process: number): OutsideLibrary[] {
  const bytes = resultOrNothing(() => readFileSync(path));
  if (bytes === undefined || bytes.length < librariesAt + libraryCount * libraryBytes || bytes.toString('latin1', 0, 8) !== magic)
    return [];
  const libraries: OutsideLibrary[] = [];
  for (let at = librariesAt; at < bytes.length; at += libraryBytes) {
    if (bytes.readUInt32LE(at) !== process) continue;
    const number = (offset: number) => Number(bytes.readBigUInt64LE(at + offset));
    libraries.push({
      name: textAt(bytes, at + 8),
      deviceBytes: number(96),
      peakDeviceBytes: number(104),
      hostBytes: number(112),
      allocations: number(120),
    });
  }
  return libraries;
}

/** A text, which is followed by a zero. */
function textAt(bytes: Buffer, at: number): string {
  return bytes.toString('utf8', at, bytes.indexOf(0, at));
}

/** Puts a text, which is followed by at least one zero. */
function putText(bytes: Uint8Array, at: number, capacity: number, text: string, what: string): void {
  const encoded = new TextEncoder().encode(text);
  if (encoded.length >= capacity)
    throw new ArgumentRangeError(`${what} must have fewer than ${capacity} bytes, got ${encoded.length}`, 'ERR_OUT_OF_RANGE');
  bytes.set(encoded, at);
}
