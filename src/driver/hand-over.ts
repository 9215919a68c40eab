/**
 * Memory handed from one environment (the main thread or a worker) to others. The state is native
 * and belongs to the process: see `native/addon/hand_overs.h`.
 */
import { ArgumentTypeError, formatValue, LifetimeError } from '../errors.js';
import { Device } from './device.js';
import { mailbox, NativeMemoryKind, NativeStatus, native } from './native.js';
import type { MemoryKind } from './plain-memory.js';
import { check } from './status.js';
import type { Stream } from './stream.js';

/**
 * What {@link DeviceBuffer.detach} and {@link DeviceBuffer.share} give: a plain object that
 * `postMessage` can send to any worker of the process. It stands for the memory, and contains none
 * of it.
 */
export interface BufferMessage {
  readonly kind: 'cistern-buffer';
  /** The number of the message, from 1, never reused in a process. */
  readonly number: number;
  /** A random number, so that a message of another process is not taken for one of this process. */
  readonly nonce: number;
  /** The label of the buffer. */
  readonly label?: string | undefined;
}

/** Memory that is handed over. */
export interface HandedMemory {
  readonly pointer: number;
  /** The allocated bytes. */
  readonly bytes: number;
  /** The length of the contents. */
  readonly byteLength: number;
  readonly alignment: number;
  readonly memoryKind: MemoryKind;
  readonly device: Device;
}

/** A use of handed memory by this environment. */
export interface Attachment {
  /** The hand-over, from 1. */
  readonly handOver: number;
  readonly number: number;
}

/** Memory that was just handed over. */
export interface HandOver extends Attachment {
  readonly message: BufferMessage;
}

const memoryKinds = Object.keys(NativeMemoryKind) as readonly MemoryKind[];

/**
 * Hands memory over, ordered after what is queued on a stream. Throws if the driver refuses;
 * nothing has changed then.
 * @returns a message that can be attached once; or, if the memory is shared, any number of times
 * until the attachment in the result is given back
 */
export function handOver(memory: HandedMemory, stream: Stream, isShared: boolean, label: string | undefined): HandOver {
  const { pointer, bytes, byteLength, alignment, memoryKind, device } = memory;
  const kind = NativeMemoryKind[memoryKind];
  native().handOver(pointer, bytes, byteLength, alignment, kind, device.index, stream.handle, isShared);
  check('hand a buffer over');
  const [, hand, number, nonce, attachment] = mailbox as unknown as [number, number, number, number, number];
  return { handOver: hand, number: attachment, message: messageOf(number, nonce, label) };
}

/**
 * A new message for attached memory, ordered after what is queued on a stream. The attachment ends,
 * unless the memory is to be shared.
 */
export function handOn(
  { handOver: hand, number }: Attachment,
  byteLength: number,
  stream: Stream,
  isShared: boolean,
  label: string | undefined,
): BufferMessage {
  native().handOn(hand, number, byteLength, stream.handle, isShared);
  check('hand a buffer on');
  return messageOf(mailbox[1] as number, mailbox[2] as number, label);
}

/**
 * A copy of a message, whose properties cannot change any more.
 * @throws ArgumentTypeError if the value does not have the form of a message.
 */
export function checkedMessage(message: unknown): BufferMessage {
  const { kind, number, nonce, label } = (typeof message === 'object' && message !== null ? message : {}) as Partial<BufferMessage>;
  const isLabel = label === undefined || typeof label === 'string';
  if (kind === 'cistern-buffer' && isNumber(number) && isNumber(nonce) && isLabel) return messageOf(number, nonce, label);
  throw new ArgumentTypeError(`message must be what detach or share of a buffer returned, got ${formatValue(message)}`);
}

/** What a message stands for. @throws LifetimeError if it cannot be attached. */
export function messageInfo(message: BufferMessage, operation: string): Omit<HandedMemory, 'pointer'> & { readonly isShared: boolean } {
  native().handOverInfo(message.number, message.nonce);
  checkMessage(message, operation);
  const [, bytes, byteLength, alignment, kind, device, isShared] = mailbox as unknown as [number, ...number[]];
  return {
    bytes: bytes as number,
    byteLength: byteLength as number,
    alignment: alignment as number,
    memoryKind: memoryKinds[kind as number] as MemoryKind,
    device: Device.get(device),
    isShared: isShared === 1,
  };
}

/**
 * Takes memory up, and makes the stream wait for everything queued before it was given.
 * @throws LifetimeError if the message cannot be attached, DriverError if the stream cannot wait;
 * nothing has changed then.
 */
export function attach(message: BufferMessage, stream: Stream, operation: string): Attachment & { readonly pointer: number } {
  native().attachHandOver(message.number, message.nonce, stream.handle);
  checkMessage(message, operation);
  stream.identity.outdateFences();
  return { handOver: mailbox[1] as number, number: mailbox[2] as number, pointer: mailbox[3] as number };
}

/** Gives attached memory back, after everything queued on a stream. */
export function giveBack({ handOver: hand, number }: Attachment, stream: Stream): void {
  native().giveBack(hand, number, stream.handle);
  check('give a buffer back');
}

/** Makes sure that nobody attaches a message any more. Returns whether somebody could before. */
export function discardMessage(message: BufferMessage, operation: string): boolean {
  native().discardMessage(message.number, message.nonce);
  checkMessage(message, operation);
  return mailbox[1] === 1;
}

/** Brings memory home that no environment has attached. */
export function recall(hand: number): void {
  native().recallHandOver(hand);
  check('take a buffer back');
}

/**
 * The next hand-over of this environment that has come home, or `undefined`. If not everything that
 * used the memory has run, call {@link followReturned} next.
 */
export function takeReturned(): { readonly handOver: number; readonly isComplete: boolean } | undefined {
  native().takeReturned();
  if (mailbox[0] !== NativeStatus.success || mailbox[1] === 0) return undefined;
  return { handOver: mailbox[1] as number, isComplete: mailbox[2] === 1 };
}

/**
 * Makes a stream wait for everything that used memory which has come home. If that fails, or no
 * stream is given, the memory can be taken again. Returns whether it succeeded.
 */
export function followReturned(hand: number, stream: Stream | undefined): boolean {
  native().followReturned(hand, stream?.handle ?? -1);
  if (mailbox[0] !== NativeStatus.success) return false;
  stream?.identity.outdateFences();
  return true;
}

/** Calls a function, which must not throw, from the event loop whenever memory has come home. */
export function onReturned(callback: () => void): void {
  native().onReturned(callback);
  check('wait for handed memory');
}

function messageOf(number: number, nonce: number, label: string | undefined): BufferMessage {
  return Object.freeze({ kind: 'cistern-buffer', number, nonce, ...(label === undefined ? {} : { label }) });
}

function isNumber(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function checkMessage({ number, nonce }: BufferMessage, operation: string): void {
  if (mailbox[0] === NativeStatus.staleMessage) {
    throw new LifetimeError(
      'ERR_CISTERN_STALE_MESSAGE',
      `cannot ${operation}: message ${number} was already attached or discarded, or the worker that made it has ended`,
    );
  }
  if (mailbox[0] === NativeStatus.foreignMessage) {
    throw new LifetimeError(
      'ERR_CISTERN_FOREIGN_MESSAGE',
      `cannot ${operation}: no worker of this process made message ${number} with nonce ${nonce}`,
    );
  }
  check(operation);
}
