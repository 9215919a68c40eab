/**
 * Writers of other programs' logs, from what is published about each format and from nothing of the readers in src/. They all write the same
 * history, whose totals are counted here, too.
 */

/** A change of memory; times are whole microseconds of a day. */
export interface Step {
  readonly microseconds: number;
  readonly isAllocation: boolean;
  readonly device: number;
  readonly address: number;
  readonly bytes: number;
}

export interface Totals {
  readonly allocationCount: number;
  readonly peakLiveBytes: number;
  readonly neverFreedBytes: number;
  readonly neverFreedCount: number;
}

const slotBytes = 2 ** 25;
const baseOf = (device: number) => 0x7f00_0000_0000 + device * 2 ** 40;
const noon = 12 * 3600e6;

/** Random allocations and frees; addresses are used again. */
export function randomHistory(seed: number, count: number, devices: number): Step[] {
  let state = seed;
  const below = (limit: number) => {
    state = (state * 48_271) % 2_147_483_647;
    return state % limit;
  };
  const live: Step[] = [];
  let microseconds = noon;
  return Array.from({ length: count }, () => {
    microseconds += 1 + below(1000);
    if (live.length > 0 && below(100) < 45) {
      const [freed] = live.splice(below(live.length), 1) as [Step];
      return { ...freed, microseconds, isAllocation: false };
    }
    const device = below(devices);
    let slot = 0;
    while (live.some(({ address }) => address === baseOf(device) + slot * slotBytes)) slot++;
    const step = {
      microseconds,
      isAllocation: true,
      device,
      address: baseOf(device) + slot * slotBytes,
      bytes: 256 * (1 + below(2 ** 16)),
    };
    live.push(step);
    return step;
  });
}

/** Counted by addresses. */
export function totalsOf(history: readonly Step[], device: number): Totals {
  const live = new Map<number, number>();
  let allocationCount = 0;
  let bytes = 0;
  let peakLiveBytes = 0;
  for (const step of history) {
    if (step.device !== device) continue;
    if (step.isAllocation) {
      live.set(step.address, step.bytes);
      allocationCount++;
    } else live.delete(step.address);
    bytes = [...live.values()].reduce((sum, each) => sum + each, 0);
    peakLiveBytes = Math.max(peakLiveBytes, bytes);
  }
  return { allocationCount, peakLiveBytes, neverFreedBytes: bytes, neverFreedCount: live.size };
}

/** A number in hexadecimal, as C's %p prints it. */
const hexadecimal = (value: number) => `0x${value.toString(16)}`;

/** 14:03:22, and microseconds after `separator`. */
function clock(microseconds: number, separator: string): string {
  const two = (value: number) => String(value).padStart(2, '0');
  const seconds = Math.floor(microseconds / 1e6);
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60].map(two);
  return `${parts.join(':')}${separator}${String(microseconds % 1e6).padStart(6, '0')}`;
}

/** Kineto's JSON: `torch.profiler.profile(profile_memory=True).export_chrome_trace`. */
export function asKineto(history: readonly Step[]): string {
  const lines = history.map(({ microseconds, isAllocation, device, address, bytes }, i) => {
    const args = `"Total Reserved": 1073741824, "Total Allocated": ${bytes}, "Bytes": ${isAllocation ? bytes : -bytes}, "Addr": ${address}, "Device Id": ${device}, "Device Type": 1, "Ev Idx": ${i}`;
    return `  {\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n    "pid": 4711, "tid": 4712,\n    "ts": ${(microseconds + 0.125).toFixed(3)},\n    "args": {\n      ${args}\n    }\n  },`;
  });
  return `
{
  "schemaVersion": 1, "deviceProperties": [ { "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150000000000 } ],
  "cuda_runtime_version": 12060, "with_flops": 0, "record_shapes": 0, "profile_memory": 1,
  "baseTimeNanoseconds": 1750000000000000000,
  "traceEvents": [
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 4711, "tid": 4712, "ts": ${noon}, "dur": 3.1, "args": { "External id": 1 }
  },
${lines.join('\n')}
  {
    "name": "process_name", "ph": "M", "ts": ${noon}, "pid": 4711, "tid": 0, "args": { "name": "python" }
  },
  { "ph": "s", "id": 9, "pid": 4711, "tid": 4712, "ts": ${noon}, "cat": "ac2g", "name": "ac2g" },
  { "name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": ${noon} } ],
  "traceName": "trace.json"
}
`;
}

/** spdlog's lines of RMM's pool, which logs an allocation before and after it. */
export function asRmmDebugLog(history: readonly Step[]): string {
  const line = (microseconds: number, level: string, text: string) => `[  4711][${clock(microseconds, ':')}][${level.padEnd(6)}] ${text}\n`;
  const steps = history.map(({ microseconds, isAllocation, address, bytes }) => {
    const asked = `[stream 0x2][${bytes}B]`;
    if (!isAllocation) return line(microseconds, 'trace', `[D]${asked}[${hexadecimal(address)}]`);
    return `${line(microseconds, 'trace', `[A]${asked}`)}${line(microseconds, 'trace', `[A]${asked}[${hexadecimal(address)}]`)}`;
  });
  return `${line(noon, 'info', '----- RMM LOG BEGIN [PTDS DISABLED] -----')}${line(noon, 'debug', '[0x7f00][initial pool 1073741824B]')}${steps.join('')}`;
}

/** RMM's CSV, as its `logging_resource_adaptor` writes it. */
export function asRmmCsv(history: readonly Step[]): string {
  const rows = history.map(({ microseconds, isAllocation, address, bytes }) =>
    ['4711', clock(microseconds, '.'), isAllocation ? 'allocate' : 'free', hexadecimal(address), bytes, '0x2'].join(','),
  );
  return ['Thread,Time,Action,Pointer,Size,Stream', ...rows, ''].join('\n');
}

/** Umpire's lines of version 5 and older, between what the program prints. */
export function asOldUmpireReplay(history: readonly Step[]): string {
  const line = (microseconds: number, event: string, payload: string, result = '') =>
    `{ "kind":"replay", "uid":140737353, "timestamp":${1_700_000_000}${String(microseconds).padStart(12, '0').slice(3)}, "event": "${event}", "payload": { ${payload} }${result === '' ? '' : `, "result": { ${result} }`} }\n`;
  const steps = history.map(({ microseconds, isAllocation, device, address, bytes }) => {
    const allocator = `"allocator_ref": "0x${device + 1}"`;
    const pointer = `"memory_ptr": "${hexadecimal(address)}"`;
    if (!isAllocation) return line(microseconds, 'deallocate', `${allocator}, ${pointer}`);
    return `${line(microseconds, 'allocate', `${allocator}, "size": ${bytes}`)}${line(microseconds, 'allocate', `${allocator}, "size": ${bytes}`, pointer)}`;
  });
  const made = [0, 1].map((device) =>
    line(
      noon,
      'makeAllocator',
      `"type":"umpire::strategy::QuickPool", "allocator_name":"POOL${device}"`,
      `"allocator_ref":"0x${device + 1}"`,
    ),
  );
  return `${line(noon, 'version', '"major":5, "minor":0, "patch":1')}${made.join('')}step 1 of 3\n${steps.join('')}`;
}

/** Umpire's events since version 6. */
export function asUmpireEvents(history: readonly Step[]): string {
  return history
    .map(({ microseconds, isAllocation, device, address, bytes }) =>
      JSON.stringify({
        category: 'operation',
        name: isAllocation ? 'allocate' : 'deallocate',
        numeric_args: isAllocation ? { size: bytes } : {},
        string_args: { allocator_ref: `0x${device + 1}`, pointer: hexadecimal(address) },
        tags: { allocator_name: `POOL${device}`, replay: 'true' },
        timestamp: microseconds * 1000,
      }),
    )
    .concat('')
    .join('\n');
}

const raftSources = ['device', 'workspace'];

/** RAFT's CSV: a row for each event, or a sample after each `every` events. */
export function asRaftCsv(history: readonly Step[], every?: number): string {
  const names = raftSources.flatMap((source) => ['current', 'peak', 'total_alloc', 'total_freed'].map((figure) => `${source}_${figure}`));
  const extra = every === undefined ? ['event_source', 'event_bytes', 'alloc_range'] : [];
  const rows = [['timestamp_us', ...names, 'nvtx_depth', 'nvtx_range', ...extra].join(',')];
  const figures = raftSources.map(() => ({ current: 0, peak: 0, allocated: 0, freed: 0 }));
  for (const [i, { microseconds, isAllocation, device, bytes }] of history.entries()) {
    const own = figures[device] as (typeof figures)[number];
    own.current += isAllocation ? bytes : -bytes;
    if (isAllocation) own.allocated += bytes;
    else own.freed += bytes;
    own.peak = Math.max(own.peak, own.current);
    if (every !== undefined && (i + 1) % every !== 0 && i + 1 < history.length) continue;
    const counts = figures.flatMap(({ current, peak, allocated, freed }) => [current, peak, allocated, freed]);
    const event = every === undefined ? [raftSources[device], isAllocation ? bytes : -bytes, '"build > fit, again"'] : [];
    rows.push([microseconds, ...counts, 1, '"build"', ...event].join(','));
    // With samples, a peak is that of the time since the last one.
    if (every !== undefined) for (const each of figures) each.peak = each.current;
  }
  return `${rows.join('\n')}\n`;
}

/** A table of integers in an SQLite database, from https://www.sqlite.org/fileformat.html; other pages than leaves are one level. */
export function asSqlite(table: string, columns: readonly string[], rows: readonly (readonly number[])[], pageBytes = 4096): Buffer {
  const leaves: Buffer[][] = [[]];
  let room = pageBytes - 8;
  for (const [i, values] of rows.entries()) {
    const cell = cellOf(i + 1, values.map(integerOf));
    if (cell.length + 2 > room) {
      leaves.push([]);
      room = pageBytes - 8;
    }
    leaves.at(-1)?.push(cell);
    room -= cell.length + 2;
  }
  const sql = `CREATE TABLE ${table} (${columns.map((name) => `${name} INTEGER`).join(', ')})`;
  const master = cellOf(1, [textOf('table'), textOf(table), textOf(table), integerOf(2), textOf(sql)]);
  const first = pageOf(13, [master], pageBytes, 100);
  first.write('SQLite format 3\0');
  first.writeUInt16BE(pageBytes === 65_536 ? 1 : pageBytes, 16);
  first.set([1, 1, 0, 64, 32, 32], 18);
  first.writeUInt32BE(leaves.length + 2, 28);
  first.writeUInt32BE(4, 44);
  first.writeUInt32BE(1, 56);
  // The last leaf is named by the header of the page above, each other one by a cell with the last id in it.
  let last = 0;
  const children = leaves.slice(0, -1).map((leaf, i) => {
    last += leaf.length;
    const cell = Buffer.alloc(4);
    cell.writeUInt32BE(i + 3);
    return Buffer.concat([cell, varint(last)]);
  });
  const root = pageOf(5, children, pageBytes);
  root.writeUInt32BE(leaves.length + 2, 8);
  return Buffer.concat([first, root, ...leaves.map((leaf) => pageOf(13, leaf, pageBytes))]);
}

type Value = readonly [type: number, bytes: Buffer];

function textOf(text: string): Value {
  return [13 + 2 * text.length, Buffer.from(text, 'latin1')];
}

/** The serial type of eight bytes. */
function integerOf(value: number): Value {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE(BigInt(value));
  return [6, bytes];
}

function varint(value: number): Buffer {
  const bytes = [value % 128];
  for (let rest = Math.floor(value / 128); rest > 0; rest = Math.floor(rest / 128)) bytes.unshift(128 + (rest % 128));
  return Buffer.from(bytes);
}

function cellOf(id: number, values: readonly Value[]): Buffer {
  const types = Buffer.concat(values.map(([type]) => varint(type)));
  const record = Buffer.concat([varint(types.length + 1), types, ...values.map(([, bytes]) => bytes)]);
  return Buffer.concat([varint(record.length), varint(id), record]);
}

function pageOf(kind: 5 | 13, cells: readonly Buffer[], pageBytes: number, start = 0): Buffer {
  const page = Buffer.alloc(pageBytes);
  page[start] = kind;
  page.writeUInt16BE(cells.length, start + 3);
  let place = pageBytes;
  for (const [i, cell] of cells.entries()) {
    place -= cell.length;
    cell.copy(page, place);
    page.writeUInt16BE(place, start + (kind === 5 ? 12 : 8) + 2 * i);
  }
  page.writeUInt16BE(place % 65_536, start + 5);
  return page;
}

/** The columns of Nsight Systems' table, with those of pools, which came later. */
export const nsightColumns = [
  ...['start', 'globalPid', 'deviceId', 'contextId', 'address', 'pc', 'bytes', 'memKind', 'memoryOperationType', 'name', 'correlationId'],
  ...['streamId', 'localMemoryPoolAddress', 'localMemoryPoolReleaseThreshold', 'localMemoryPoolSize', 'localMemoryPoolUtilizedSize'],
];

/** The rows of Nsight Systems' table; device memory is of kind 2. */
export function nsightRows(history: readonly Step[]): number[][] {
  return history.map(({ microseconds, isAllocation, device, address, bytes }, i) => [
    ...[1000 * microseconds, 2 ** 48, device, 1, address, 0, bytes, 2, isAllocation ? 0 : 1, 0, i, 13],
    ...[0, 0, 0, 0],
  ]);
}

/**
 * A snapshot of PyTorch as text in Python: one segment for each device, in which each slot is a block, and the trace from `from` on, as if the
 * entries before had been dropped.
 */
export function asSnapshot(history: readonly Step[], devices: number, from = 0): string {
  const frames = "[{'name': 'forward', 'filename': '/m/net.py', 'line': 3}]";
  const parts = Array.from({ length: devices }, (_, device) => {
    const live = new Map<number, number>();
    let slots = 0;
    for (const step of history.filter((each) => each.device === device)) {
      slots = Math.max(slots, (step.address - baseOf(device)) / slotBytes + 1);
      if (step.isAllocation) live.set(step.address, step.bytes);
      else live.delete(step.address);
    }
    const blocks = Array.from({ length: slots }, (__, slot) => {
      const address = baseOf(device) + slot * slotBytes;
      const bytes = live.get(address) ?? 0;
      const used = `{'address': ${address}, 'size': ${bytes}, 'requested_size': ${bytes}, 'state': 'active_allocated', 'frames': ${frames}}, `;
      return `${bytes === 0 ? '' : used}{'address': ${address + bytes}, 'size': ${slotBytes - bytes}, 'requested_size': 0, 'state': 'inactive', 'frames': []}`;
    });
    const segment = `{'device': ${device}, 'address': ${baseOf(device)}, 'total_size': ${slots * slotBytes}, 'stream': 0, 'segment_type': 'large', 'segment_pool_id': (0, 0), 'is_expandable': False, 'frames': [], 'blocks': [${blocks.join(', ')}]}`;
    const entries = history.slice(from).flatMap((step) => {
      if (step.device !== device) return [];
      const rest = `'addr': ${step.address}, 'size': ${step.bytes}, 'stream': 0, 'time_us': ${1.7e15 + step.microseconds}, 'frames': ${frames}, 'pool_id': (0, 0)`;
      return (step.isAllocation ? ['alloc'] : ['free_requested', 'free_completed']).map((action) => `{'action': '${action}', ${rest}}`);
    });
    return { segment, trace: `[${entries.join(', ')}]` };
  });
  const joined = (part: 'segment' | 'trace') => parts.map((each) => each[part]).join(', ');
  return `{'segments': [${joined('segment')}], 'device_traces': [${joined('trace')}], 'allocator_settings': {}, 'external_annotations': []}`;
}
