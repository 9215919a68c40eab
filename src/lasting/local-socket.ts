import { constants } from 'node:os';
import { resolve } from 'node:path';
import { getSystemErrorName } from 'node:util';
import { CisternError } from '../basics/errors.js';
import { mailbox, NativeStatus, native } from '../driver/native.js';
import { statusError } from '../driver/status.js';
import { setting } from '../settings.js';

/** A descriptor of this process, as native code knows it. */
export type Descriptor = number;

/** CUDA_ERROR_OPERATING_SYSTEM: `mailbox[1]` is a number of errno.h. */
const operatingSystemStatus = 304;

/** How long a process waits for an answer of `cistern keep`, which needs microseconds unless it is stopped. */
const answerMilliseconds = 5000;

/** Where `cistern keep` listens unless it is told otherwise. */
export function defaultSocketPath(): string {
  const folder = setting('XDG_RUNTIME_DIR');
  const path = folder === undefined ? `/tmp/cistern-keep-${process.getuid?.() ?? 0}.sock` : `${folder}/cistern-keep.sock`;
  return setting('CISTERN_KEEP') ?? path;
}

/** @returns a socket and its lock, or the error */
export function listenAt(path: string): { readonly listener: Descriptor; readonly lock: Descriptor } | string {
  native().listenLocal(resolve(path));
  const result = systemResult('listen');
  return result === 'done' ? { listener: mailbox[1] as number, lock: mailbox[2] as number } : result;
}

/** @returns a connection whose process has this user, or the error; `EAGAIN` if none waits */
export function acceptFrom(listener: Descriptor): { readonly socket: Descriptor; readonly process: number } | string {
  native().acceptLocal(listener);
  const result = systemResult('accept a connection');
  return result === 'done' ? { socket: mailbox[1] as number, process: mailbox[2] as number } : result;
}

/**
 * Sends a message whole, or not at all.
 * @returns `done`, or the error
 */
export function sendTo(socket: Descriptor, text: string, descriptor?: Descriptor): string {
  native().sendLocal(socket, text, descriptor ?? 0);
  return systemResult('send');
}

/** @returns the next message, or the error: `EAGAIN` if there is none, `ECONNRESET` if there will be none */
export function receiveFrom(socket: Descriptor): { readonly text: string; readonly descriptor: Descriptor | undefined } | string {
  const text = native().receiveLocal(socket);
  const result = systemResult('receive');
  return result === 'done' ? { text, descriptor: (mailbox[1] as number) || undefined } : result;
}

/** Waits until sockets have a message or an end; their places. */
export function awaitMessages(sockets: readonly Descriptor[], milliseconds: number): Float64Array {
  const ready = native().pollLocal(Float64Array.from(sockets), milliseconds);
  systemResult('wait for messages');
  return ready ?? new Float64Array();
}

export function closeDescriptor(descriptor: Descriptor): void {
  native().closeDescriptor(descriptor);
}

/**
 * Connects to `cistern keep`.
 * @throws CisternError (`ERR_CISTERN_KEEP_UNAVAILABLE`)
 */
export function connectTo(path: string): Descriptor {
  native().connectLocal(resolve(path), answerMilliseconds);
  const result = systemResult('connect');
  if (result === 'done') return mailbox[1] as number;
  const reasons: Readonly<Record<string, string>> = {
    ENOENT: 'none runs there; start one with "cistern keep"',
    ECONNREFUSED: 'the one that ran there has ended; start one with "cistern keep"',
    EPERM: "the process that listens there is another user's",
    EAGAIN: 'it does not answer',
    ENAMETOOLONG: 'the path is longer than 107 bytes',
    ENOSYS: 'this system has no descriptors that processes can send one another',
  };
  throw unavailable(path, reasons[result] ?? `the system says ${result}`);
}

/** The error of a process that cannot reach `cistern keep`, or gets no sense out of it. */
export function unavailable(path: string, reason: string): CisternError {
  return new CisternError('ERR_CISTERN_KEEP_UNAVAILABLE', `cannot use cistern keep at ${path}: ${reason}`);
}

/** `done`, or the system's name for why it refused a call, such as `EAGAIN`. */
function systemResult(operation: string): string {
  const status = mailbox[0] as number;
  if (status === NativeStatus.success) return 'done';
  if (status !== operatingSystemStatus) throw statusError(operation, status);
  const number = mailbox[1] as number;
  return number === constants.errno.EAGAIN ? 'EAGAIN' : getSystemErrorName(-number);
}
