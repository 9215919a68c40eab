/**
 * Memory exported to other processes, and memory imported from them. The state is native, in memory
 * that the processes share: see `native/addon/ipc.h`.
 */
import { CisternError, DeviceUnavailableError, formatValue, LifetimeError, UnsupportedError } from '../basics/errors.js';
import { Device } from '../driver/device.js';
import { mailbox, NativeStatus, native } from '../driver/native.js';
import { check, invalidDeviceStatus, notSupportedStatus } from '../driver/status.js';
import { assertStreamOf, type Stream } from '../driver/streams/stream.js';

declare module '../driver/native.js' {
  interface NativeBinding {
    /**
     * Lets other processes open memory, ordered after the work queued on the stream. Writes 56 bytes.
     * `[1]`: the export. The status is CUDA's 801 (not supported) for memory that cannot be shared.
     */
    exportMemory(address: number, bytes: number, byteLength: number, alignment: number, stream: number, handle: Uint8Array): void;
    /** Orders later opens also after the work that is now queued on the stream. */
    refreshExport(number: number, byteLength: number, stream: number): void;
    /** Clears the uses of all processes that have ended. */
    noticeEndedImporters(): void;
    /** `[1]`: 1 if other processes use the memory, or have ended without being detected. */
    exportIsUsed(number: number): void;
    /**
     * Prevents processes from opening the memory, unless one uses it and `onlyIfUnused` is true. `[1]`:
     * 1 if none uses it.
     */
    closeExport(number: number, onlyIfUnused: boolean): void;
    /** Undoes `closeExport`. */
    reopenExport(number: number): void;
    /** Forgets a closed export that no process uses. */
    endExport(number: number): void;
    /**
     * Maps memory of another process, and makes the stream wait for the work queued there. `[1]`: the
     * import, `[2]` the address, `[3]` the length of the contents, `[4]` the bytes, `[5]` the device,
     * `[6]` the alignment. If it fails, `[1]` is the process, and `[2]` is 1 if the process has
     * ended.
     */
    openImport(handle: Uint8Array, stream: number): void;
    /** Unmaps memory that no work uses. CUDA's 600 (not ready) if something stalls a stream. */
    closeImport(number: number): void;
  }
}

/** The size of a handle in bytes. */
export const handleBytes = 56;

/** Memory to export. */
export interface ExportedRange {
  readonly pointer: number;
  /** The allocated bytes; 0 if there is no memory. */
  readonly bytes: number;
  readonly byteLength: number;
  readonly alignment: number;
}

/** Memory of another process that is mapped here. */
export interface ImportedRange extends ExportedRange {
  /** The number of the import, from 1. */
  readonly number: number;
  readonly device: Device;
}

/**
 * Lets other processes open memory, ordered after the work queued on a stream so far. Writes the
 * handle.
 * @returns the number of the export; `undefined` if the driver cannot share this memory
 * @throws CisternError, UnsupportedError, DriverError; nothing has changed then.
 */
export function exportMemory(memory: ExportedRange, stream: Stream, handle: Uint8Array): number | undefined {
  const { pointer, bytes, byteLength, alignment } = memory;
  native().exportMemory(pointer, bytes, byteLength, alignment, stream.handle, handle);
  if (mailbox[0] === notSupportedStatus) return undefined;
  if (mailbox[0] === NativeStatus.noProcessMemory) throw new UnsupportedError(`cannot export a buffer: ${noProcessMemory()}`);
  if (mailbox[0] === NativeStatus.tooManyExports) {
    throw new CisternError('ERR_CISTERN_INVALID_STATE', 'cannot export a buffer: this process already exports 65536 buffers');
  }
  check('export a buffer');
  return mailbox[1] as number;
}

/** Orders later opens also after the work that is now queued on the stream. */
export function refreshExport(number: number, byteLength: number, stream: Stream): void {
  native().refreshExport(number, byteLength, stream.handle);
  check('export a buffer');
}

/**
 * Detects processes that have ended while they used exported memory. One call does this for all exports.
 */
export function noticeEndedImporters(): void {
  native().noticeEndedImporters();
}

/** Whether other processes use exported memory, or have ended without being detected yet. */
export function exportIsUsed(number: number): boolean {
  native().exportIsUsed(number);
  check('look for users of a buffer');
  return mailbox[1] === 1;
}

/**
 * Prevents processes from opening the memory from now on. Returns whether none uses it.
 * @param onlyIfUnused whether to change nothing if one uses it
 */
export function closeExport(number: number, onlyIfUnused: boolean): boolean {
  native().closeExport(number, onlyIfUnused);
  check('close the export of a buffer');
  return mailbox[1] === 1;
}

/** Undoes `closeExport`. */
export function reopenExport(number: number): void {
  native().reopenExport(number);
  check('reopen the export of a buffer');
}

/** Forgets a closed export that no process uses. */
export function endExport(number: number): void {
  native().endExport(number);
  check('end the export of a buffer');
}

/**
 * Maps memory of another process, and makes the stream wait for everything that the process had
 * queued before the export.
 * @throws LifetimeError, CisternError, UnsupportedError, DeviceUnavailableError for a handle that
 * cannot be opened, DriverError; nothing has changed then.
 */
export function openImport(handle: Uint8Array, stream: Stream): ImportedRange {
  native().openImport(handle, stream.handle);
  const [status, first, second, byteLength, bytes, device, alignment] = mailbox as unknown as [number, ...number[]];
  if (status !== NativeStatus.success) throw openError(status, handle, first as number, second === 1, device as number, stream);
  return {
    number: first as number,
    pointer: second as number,
    byteLength: byteLength as number,
    bytes: bytes as number,
    alignment: alignment as number,
    device: Device.get(device),
  };
}

/**
 * Unmaps memory that no device uses any more. Returns false if you must try again later, because
 * something stalls a stream or the driver refuses.
 */
export function closeImport(number: number): boolean {
  native().closeImport(number);
  return mailbox[0] === NativeStatus.success;
}

function noProcessMemory(): string {
  return `processes share memory on Linux only, and this is ${process.platform}`;
}

function openError(
  status: number,
  handle: Uint8Array,
  first: number,
  isProcessGone: boolean,
  device: number,
  stream: Stream,
): Error | undefined {
  const refusal = 'cannot open a buffer';
  switch (status) {
    case NativeStatus.foreignMessage:
      return new LifetimeError(
        'ERR_CISTERN_FOREIGN_HANDLE',
        `${refusal}: these ${handle.byteLength} bytes are not a handle from an export; they begin with ${formatValue(Buffer.from(handle.subarray(0, 8)).toString('hex'))}`,
      );
    case NativeStatus.unknownVersion:
      return new UnsupportedError(`${refusal}: its handle has version ${first}, but this version of cistern reads only version 1`);
    case NativeStatus.otherBackend:
      return new LifetimeError(
        'ERR_CISTERN_FOREIGN_HANDLE',
        `${refusal}: it is memory of ${first === 1 ? 'a software device' : 'a CUDA device'}, and this process uses ${stream.device.name}`,
      );
    case NativeStatus.staleMessage:
      return new LifetimeError(
        'ERR_CISTERN_STALE_HANDLE',
        isProcessGone
          ? `${refusal}: process ${first}, which exported it, has ended`
          : `${refusal}: process ${first}, which exported it, has released it`,
      );
    case NativeStatus.ownMessage:
      return new CisternError(
        'ERR_CISTERN_INVALID_STATE',
        `${refusal}: this process, ${first}, exported it; use the buffer itself, or share it with other workers`,
      );
    case NativeStatus.forbiddenProcess:
      return new UnsupportedError(
        `${refusal}: the system does not let this process access process ${first}, which exported it; run both as the same user`,
      );
    case NativeStatus.noProcessMemory:
      return new UnsupportedError(`${refusal}: ${noProcessMemory()}`);
    case NativeStatus.tooManyImporters:
      return new CisternError('ERR_CISTERN_INVALID_STATE', `${refusal}: 64 processes already have memory of process ${first} open`);
    case NativeStatus.noSuchDevice:
      return new DeviceUnavailableError(
        `${refusal}: process ${first} exported it on a device with a UUID that no device of this process has`,
      );
    case invalidDeviceStatus:
      if (device >= 0) assertStreamOf(stream, Device.get(device));
  }
  try {
    check('open a buffer');
  } catch (error) {
    return error as Error;
  }
  return undefined;
}
