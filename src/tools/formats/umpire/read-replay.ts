/**
 * Reads Umpire's replay log (`UMPIRE_REPLAY=On`) into a {@link RecordedRun}: a JSON object in each line. An allocator is a layer. Two forms
 * are read, that of version 5 and older, which logs an allocation before and after it, and that of the events since version 6:
 *
 *     { "kind":"replay", "timestamp":1, "event": "allocate", "payload": { "allocator_ref": "0x1", "size": 64 }, "result": { "memory_ptr": "0x2" } }
 *     { "category":"operation", "name":"allocate", "numeric_args":{"size":64}, "string_args":{"allocator_ref":"0x1","pointer":"0x2"},
 *       "tags":{"allocator_name":"pool","replay":"true"}, "timestamp":1 }
 *
 * Lines that are no objects are left out, because the program prints to the same output.
 */
import { formatValue, InvalidLogError } from '../../../basics/errors.js';
import { EventKind } from '../event-columns.js';
import { linesOf } from '../lines.js';
import type { ReadingBudget } from '../reading-budget.js';
import type { RecordedRun } from '../recorded-run.js';
import { nameOf, RunWriter, wholeNumber } from '../run-writer.js';

/** What the first bytes of such a log have. */
export const umpireBeginning = /"kind" ?: ?"replay"|"string_args" ?: ?\{|"category" ?: ?"(?:operation|statistic)"/;

type Json = Readonly<Record<string, unknown>>;

/** The fields that the two forms have in common. */
interface Operation {
  readonly name: unknown;
  readonly time: number;
  readonly allocator: unknown;
  readonly allocatorName: unknown;
  readonly size: unknown;
  readonly pointer: unknown;
}

export function readUmpireReplay(source: string, bytes: Buffer, budget: ReadingBudget): RecordedRun {
  const writer = new RunWriter(source, budget);
  const names = new Map<unknown, string>();
  /** By address: Umpire does not log the size of what it frees. */
  const live = new Map<number, { readonly bytes: number; readonly layer: string }>();
  for (const [line, number] of linesOf(source, bytes)) {
    if (!line.startsWith('{')) continue;
    const { name, time, allocator, allocatorName, size, pointer } = operationOf(source, line, number);
    if (typeof allocatorName === 'string' && allocator !== undefined) names.set(allocator, allocatorName);
    const layer = names.get(allocator) ?? `allocator ${nameOf(allocator, 'unknown')}`;
    const address = wholeNumber(pointer);
    if (address === undefined) continue;
    if (name === 'allocate') {
      const bytes = wholeNumber(size);
      if (bytes === undefined)
        throw new InvalidLogError(source, number, `the size must be an integer from 0 to 2^53 - 1, got ${formatValue(size)}`);
      live.set(address, { bytes, layer });
      writer.add({ kind: EventKind.allocate, layer, first: address, second: bytes, time });
    } else if (name === 'deallocate') {
      const freed = live.get(address);
      live.delete(address);
      writer.add({ kind: EventKind.free, layer: freed?.layer ?? layer, first: address, second: freed?.bytes ?? 0, time });
    }
  }
  if (writer.eventCount === 0) throw new InvalidLogError(source, undefined, 'is a replay log of Umpire without allocations');
  return writer.finish(0);
}

function operationOf(source: string, line: string, number: number): Operation {
  let event: Json;
  try {
    event = JSON.parse(line) as Json;
  } catch (cause) {
    throw new InvalidLogError(source, number, 'is not JSON', { cause });
  }
  const timestamp = event['timestamp'];
  const time = typeof timestamp === 'number' && timestamp >= 0 ? timestamp : 0;
  if (event['kind'] === 'replay') {
    const payload = objectOf(event['payload']);
    const result = objectOf(event['result']);
    const isAllocation = event['event'] === 'allocate';
    return {
      name: event['event'],
      time,
      allocator: payload['allocator_ref'] ?? result['allocator_ref'],
      allocatorName: payload['allocator_name'],
      size: payload['size'],
      pointer: isAllocation ? result['memory_ptr'] : payload['memory_ptr'],
    };
  }
  const all: Json = { ...objectOf(event['numeric_args']), ...objectOf(event['string_args']) };
  return {
    name: event['category'] === undefined || event['category'] === 'operation' ? event['name'] : undefined,
    time,
    allocator: all['allocator_ref'],
    allocatorName: objectOf(event['tags'])['allocator_name'],
    size: all['size'],
    pointer: all['pointer'],
  };
}

function objectOf(value: unknown): Json {
  return typeof value === 'object' && value !== null ? (value as Json) : {};
}
