/**
 * NVIDIA's management library (NVML), which knows about a device without a context on it: how much memory it has, and which
 * processes hold it. It comes with the driver, and is loaded when it is first asked.
 */
import { native } from './native.js';

/** What NVML says about a device. */
export interface NvmlUsage {
  readonly totalBytes: number;
  readonly freeBytes: number;
  readonly usedBytes: number;
  /** Not set if NVML does not tell this user, or for this device. Bytes are not set where the system alone knows them, as on Windows. */
  readonly processes: readonly { readonly pid: number; readonly bytes: number | undefined }[] | undefined;
}

const notFound = 6;

let path = process.platform === 'win32' ? 'nvml.dll' : 'libnvidia-ml.so.1';
/** Why NVML cannot be used; empty if it can. */
let failure: string | undefined;

/** @internal Loads NVML from another place, for tests. */
export function useNvml(library: string): void {
  path = library;
  failure = undefined;
}

/** Why NVML cannot be used, or `undefined` if it can. */
export function nvmlUnavailableReason(): string | undefined {
  failure ??= native().openNvml(path);
  return failure === '' ? undefined : `${path} cannot be used: ${failure}`;
}

/**
 * What NVML says about a device or an instance of one; `undefined` if it knows none, or cannot be used.
 * @param uuid as NVML writes it (`GPU-…`, `MIG-…`), or 32 hexadecimal digits
 */
export function nvmlUsage(uuid: string): NvmlUsage | undefined {
  if (nvmlUnavailableReason() !== undefined) return undefined;
  for (const name of namesOf(uuid)) {
    const [status, listStatus, totalBytes = 0, freeBytes = 0, usedBytes = 0, ...pairs] = native().nvmlDevice(name);
    if (status === notFound) continue;
    if (status !== 0) return undefined;
    const processes = Array.from({ length: pairs.length / 2 }, (_, i) => {
      const bytes = pairs[2 * i + 1] as number;
      return { pid: pairs[2 * i] as number, bytes: bytes < 0 ? undefined : bytes };
    });
    return { totalBytes, freeBytes, usedBytes, processes: listStatus === 0 ? processes : undefined };
  }
  return undefined;
}

/** The driver says the same 16 bytes for a whole device and for an instance. */
function namesOf(uuid: string): readonly string[] {
  const [, ...parts] = /^([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$/.exec(uuid) ?? [];
  return parts.length === 0 ? [uuid] : [`GPU-${parts.join('-')}`, `MIG-${parts.join('-')}`];
}
