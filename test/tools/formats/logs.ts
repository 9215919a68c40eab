import { gzipSync } from 'node:zlib';
import { type AllocationLog, readAllocationLog } from '../../../src/tools/replay/index.js';

export const header = 'Thread,Time,Action,Pointer,Size,Stream';

/** The path of the log that comes with the project. */
export const arrowEtl = 'examples/traces/arrow-etl.csv.gz';

/** A row of a log; the pointer is in units of 256 bytes. */
export function row(action: string, pointer: number, bytes: number, { thread = 1, stream = '0x0' } = {}): string {
  return `${thread},00:00:00.000000,${action},0x${(pointer * 256).toString(16)},${bytes},${stream}`;
}

/** The text of a log with the given rows. */
export function logText(...rows: readonly string[]): string {
  return [header, ...rows, ''].join('\n');
}

/** The bytes in pieces of a given size. */
export async function* pieces(bytes: Uint8Array, size = bytes.length || 1): AsyncGenerator<Uint8Array> {
  for (let start = 0; start < bytes.length; start += size) yield bytes.slice(start, start + size);
}

/** Reads text as a log. */
export function readText(text: string, { pieceBytes, gzip = false }: { pieceBytes?: number; gzip?: boolean } = {}): Promise<AllocationLog> {
  const bytes = gzip ? gzipSync(text) : Buffer.from(text);
  return readAllocationLog(pieces(bytes, pieceBytes), { name: 'trace.csv' });
}
