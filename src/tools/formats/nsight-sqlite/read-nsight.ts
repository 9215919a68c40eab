/**
 * Reads the memory events of an export of Nsight Systems (`nsys profile --cuda-memory-usage=true`, then `nsys export --type sqlite`) into a
 * {@link RecordedRun}: the table `CUDA_GPU_MEMORY_USAGE_EVENTS`. A kind of memory of a device is a layer, such as `device memory 0`; streams
 * are named if the table has them, phases are ranges of NVTX if they are nested.
 */
import { InvalidLogError } from '../../../basics/errors.js';
import { EventKind } from '../event-columns.js';
import { Cost, type ReadingBudget } from '../reading-budget.js';
import type { RecordedRun } from '../recorded-run.js';
import { RunWriter, wholeNumber } from '../run-writer.js';
import { SqliteFault, SqliteFile } from './sqlite-table.js';

const table = 'CUDA_GPU_MEMORY_USAGE_EVENTS';

/** The kinds of Nsight's `ENUM_CUDA_MEM_KIND`. */
const kinds = ['pageable', 'pinned', 'device', 'array', 'managed', 'device static', 'managed static', 'unknown'];

export function readNsight(source: string, bytes: Buffer, budget: ReadingBudget): RecordedRun {
  try {
    return read(source, new SqliteFile(bytes, (rowBytes) => budget.spend(rowBytes * Cost.rowByte + Cost.node, 'rows')), budget);
  } catch (error) {
    if (!(error instanceof SqliteFault)) throw error;
    throw new InvalidLogError(source, undefined, `is a damaged SQLite database: it ${error.message}`, { cause: error });
  }
}

function read(source: string, file: SqliteFile, budget: ReadingBudget): RecordedRun {
  if (!file.hasTable(table))
    throw new InvalidLogError(
      source,
      undefined,
      `is an SQLite database without the table ${table}: let Nsight Systems record it with "nsys profile --cuda-memory-usage=true"`,
    );
  const writer = new RunWriter(source, budget);
  for (const row of file.table(table)) {
    const time = wholeNumber(row['start']);
    const second = wholeNumber(row['bytes']);
    const first = wholeNumber(row['address']) ?? addressOf(row['address']);
    const operation = row['memoryOperationType'];
    if (time === undefined || second === undefined || first === undefined || (operation !== 0 && operation !== 1)) continue;
    const kind = kinds[row['memKind'] as number] ?? 'device';
    const layer = `${kind} memory ${row['deviceId'] ?? 0}`;
    const stream = row['streamId'] === undefined || row['streamId'] === null ? undefined : String(row['streamId']);
    writer.add({ kind: operation === 0 ? EventKind.allocate : EventKind.free, layer, stream, first, second, time });
  }
  if (writer.eventCount === 0) throw new InvalidLogError(source, undefined, `has no memory events in the table ${table}`);
  return writer.finish();
}

/** An address above 2^53, which no number holds: what it is counts less than that it is the same at the free. */
function addressOf(value: unknown): number | undefined {
  return typeof value === 'bigint' ? Number(BigInt.asUintN(53, value)) : undefined;
}
