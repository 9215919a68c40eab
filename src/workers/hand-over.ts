/**
 * Memory, streams and events handed over from one environment (the main thread or a worker) to
 * others. The state is native and belongs to the process: see `native/addon/hand_overs.h`.
 */
import { ArgumentTypeError, CisternError, formatValue, LifetimeError } from '../basics/errors.js';
import { currentBackend } from '../driver/backend.js';
import { Device, type MemoryKind } from '../driver/device.js';
import { HandOverContent, keptResult, mailbox, NativeMemoryKind, NativeStatus, native } from '../driver/native.js';
import { check } from '../driver/status.js';
import type { Stream } from '../driver/streams/stream.js';

/**
 * What {@link detachBuffer} and {@link shareBuffer} return: a plain object that
 * `postMessage` can send to any worker of the process. It refers to the memory without containing
 * it.
 */
export interface BufferMessage {
  readonly kind: 'cistern-buffer';
  /** The number of the message, from 1, never reused in a process. */
  readonly number: number;
  /**
   * A random number, so that a message of another process is not mistaken for one of this process.
   */
  readonly nonce: number;
  /** The label of the buffer. */
  readonly label?: string | undefined;
}

/**
 * What {@link detachStream} and {@link shareStream} return: a plain object that `postMessage` can send to
 * any worker of the process.
 */
export interface StreamMessage {
  readonly kind: 'cistern-stream';
  /** As in {@link BufferMessage}. */
  readonly number: number;
  /** As in {@link BufferMessage}. */
  readonly nonce: number;
}

/**
 * What {@link detachEvent} and {@link shareEvent} return: a plain object that `postMessage` can send to
 * any worker of the process.
 */
export interface EventMessage {
  readonly kind: 'cistern-event';
  /** As in {@link BufferMessage}. */
  readonly number: number;
  /** As in {@link BufferMessage}. */
  readonly nonce: number;
}

type Message = BufferMessage | StreamMessage | EventMessage;

/** What a message can refer to. */
type Content = keyof typeof HandOverContent;

/** A stream or an event that was attached. */
export interface AttachedObject<Of extends Message> {
  readonly handle: number;
  readonly device: Device;
  /** The message, if it is shared. */
  readonly shared: Of | undefined;
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

/** A use of handed-over memory by this environment. */
export interface Attachment {
  /** The hand-over, from 1. */
  readonly handOver: number;
  readonly number: number;
}

/** Memory that was just handed over. */
export interface HandOver extends Attachment {
  readonly message: BufferMessage;
}

const words = { buffer: 'a buffer', stream: 'a stream', event: 'an event' } as const;

const memoryKinds = Object.keys(NativeMemoryKind) as readonly MemoryKind[];

/**
 * Hands memory over, ordered after the work queued on a stream so far. Throws if the driver
 * refuses; nothing has changed then.
 * @returns a message that can be attached once, or, if the memory is shared, any number of times
 * until the attachment in the result is returned
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
 * Makes a new message for attached memory, ordered after the work queued on a stream so far. The
 * attachment ends, unless the memory is to be shared.
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
 * A copy of a message, whose properties can no longer change.
 * @throws ArgumentTypeError if the value does not have the form of a message.
 */
export function checkedMessage(message: unknown): BufferMessage {
  const { number, nonce } = checkedNumbers(message, 'buffer');
  const { label } = message as BufferMessage;
  if (label !== undefined && typeof label !== 'string') throw invalidMessage(message, 'buffer');
  return messageOf(number, nonce, label);
}

/** Describes the memory of a message. @throws LifetimeError if it cannot be attached. */
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
 * Attaches memory, and makes the stream wait for everything queued before the hand-over.
 * @throws LifetimeError if the message cannot be attached, DriverError if the stream cannot wait;
 * nothing has changed then.
 */
export function attach(message: BufferMessage, stream: Stream, operation: string): Attachment & { readonly pointer: number } {
  native().attachHandOver(message.number, message.nonce, stream.handle);
  checkMessage(message, operation);
  stream.identity.outdateFences();
  return { handOver: mailbox[1] as number, number: mailbox[2] as number, pointer: mailbox[3] as number };
}

/** Returns attached memory, ordered after everything queued on a stream. */
export function giveBack({ handOver: hand, number }: Attachment, stream: Stream): void {
  native().giveBack(hand, number, stream.handle);
  check('give a buffer back');
}

/**
 * Prevents a message from being attached, unless another environment shares it. Returns whether it
 * could be attached until now.
 * @throws ArgumentTypeError if the value does not have the form of a message; LifetimeError if no
 * environment of this process made it.
 */
export function discardMessage(message: unknown, content: Content): boolean {
  const { number, nonce } = checkedNumbers(message, content);
  native().discardMessage(number, nonce, HandOverContent[content]);
  checkMessage({ number, nonce }, 'discard a message');
  return mailbox[1] === 1;
}

/**
 * Hands a stream of this environment over. Its handle is released, unless it is shared. Throws if the
 * environment does not own it.
 */
export function handOverStream(handle: number, id: number, isShared: boolean): StreamMessage {
  native().handOverStream(handle, id, isShared);
  check('hand a stream over');
  return Object.freeze({ kind: 'cistern-stream', number: mailbox[1] as number, nonce: mailbox[2] as number });
}

/**
 * Hands an event of this environment over. Its handle is released, unless it is shared.
 * @throws CisternError if a wait for its recording is pending, unless it is shared.
 */
export function handOverEvent(handle: number, isShared: boolean): EventMessage {
  native().handOverEvent(handle, isShared);
  if (mailbox[0] === NativeStatus.inUse) {
    throw new CisternError('ERR_CISTERN_INVALID_STATE', 'cannot detach an event: a wait for it is still pending');
  }
  check('hand an event over');
  return Object.freeze({ kind: 'cistern-event', number: mailbox[1] as number, nonce: mailbox[2] as number });
}

/**
 * Attaches a stream. The caller releases its handle.
 * @throws ArgumentTypeError if the value does not have the form of a message; LifetimeError if it cannot
 * be attached.
 */
export function takeStream(message: unknown): AttachedObject<StreamMessage> & { readonly id: number } {
  const numbers = checkedNumbers(message, 'stream');
  native().attachStream(numbers.number, numbers.nonce);
  checkMessage(numbers, 'attach a stream');
  const id = keptResult(4);
  return { ...attachedObject({ kind: 'cistern-stream', ...numbers }), id };
}

/** Attaches an event, as {@link takeStream}. */
export function takeEvent(message: unknown): AttachedObject<EventMessage> {
  const numbers = checkedNumbers(message, 'event');
  native().attachEvent(numbers.number, numbers.nonce);
  checkMessage(numbers, 'attach an event');
  return attachedObject({ kind: 'cistern-event', ...numbers });
}

/** Takes back memory that no environment has attached. */
export function recall(hand: number): void {
  native().recallHandOver(hand);
  check('take a buffer back');
}

/**
 * The next hand-over of this environment that has been returned, or `undefined`. If not all work
 * that used the memory has run, call {@link followReturned} next.
 */
export function takeReturned(): { readonly handOver: number; readonly isComplete: boolean } | undefined {
  native().takeReturned();
  if (mailbox[0] !== NativeStatus.success || mailbox[1] === 0) return undefined;
  return { handOver: mailbox[1] as number, isComplete: mailbox[2] === 1 };
}

/**
 * Makes a stream wait for all work that used returned memory. If that fails, or no stream is given,
 * the memory can be taken again. Returns whether it succeeded.
 */
export function followReturned(hand: number, stream: Stream | undefined): boolean {
  native().followReturned(hand, stream?.handle ?? -1);
  if (mailbox[0] !== NativeStatus.success) return false;
  stream?.identity.outdateFences();
  return true;
}

/**
 * Calls a function, which must not throw, from the event loop whenever memory has been returned.
 */
export function onReturned(callback: () => void): void {
  native().onReturned(callback);
  check('wait for handed memory');
}

function messageOf(number: number, nonce: number, label: string | undefined): BufferMessage {
  return Object.freeze({ kind: 'cistern-buffer', number, nonce, ...(label === undefined ? {} : { label }) });
}

function attachedObject<Of extends Message>(message: Of): AttachedObject<Of> {
  const handle = keptResult(1);
  const shared = mailbox[3] === 1 ? Object.freeze(message) : undefined;
  return { handle, device: Device.get(mailbox[2]), shared };
}

function checkedNumbers(message: unknown, content: Content): { readonly number: number; readonly nonce: number } {
  const { kind, number, nonce } = (typeof message === 'object' && message !== null ? message : {}) as Partial<Message>;
  if (kind === `cistern-${content}` && isNumber(number) && isNumber(nonce)) {
    currentBackend();
    return { number, nonce };
  }
  throw invalidMessage(message, content);
}

function invalidMessage(message: unknown, content: Content): ArgumentTypeError {
  return new ArgumentTypeError(`message must come from ${words[content]} that was detached or shared, got ${formatValue(message)}`);
}

function isNumber(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function checkMessage({ number, nonce }: Pick<Message, 'number' | 'nonce'>, operation: string): void {
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
