import { layersOf } from '../../adaptors/layers.js';
import type { StreamOrderedStatistics } from '../../adaptors/pooling/keeper.js';
import { resultOrNothing } from '../../basics/errors.js';
import { formatBytes, formatCount } from '../../basics/units.js';
import { describeUsers, deviceUsage } from '../../budget/device-usage.js';
import { type OwnedMemory, watchedMemory } from '../../collector/free-unreachable-buffers.js';
import { describeKept } from '../../driver/workers/collection-requests.js';
import { allNeighbours, type Neighbour } from '../../kept-memory/neighbours.js';
import { assertMemoryResource, type MemoryResource, type ReservingMemoryResource } from '../../memory-resource.js';
import { kindOf, stackName } from '../../resource-kind.js';
import { type Account, liveAccounts } from '../accounts/account.js';
import { AdmittingResourceAdaptor } from '../admission/admitting-resource-adaptor.js';
import { SpillingResourceAdaptor } from '../spilling/spilling-resource-adaptor.js';

/** How many accounts, and groups of buffers, are listed. */
const listed = 10;

/**
 * A human-readable summary of the memory that a resource stack holds: for each layer, its reserved,
 * allocated and free bytes and the largest free block; other resources that keep memory, also in other workers; promised memory and waiting requests; memory
 * spilled to the host; and the accounts and buffers that hold the most. Files written for
 * `CISTERN_DUMP_ON_OUT_OF_MEMORY` begin with it.
 *
 * Its format may change between versions. In programs, use `statistics()`, or `sampleStatistics` of
 * `cistern/watch`.
 *
 * Counterpart of PyTorch's `torch.cuda.memory_summary`.
 * @param resource any resource: the outermost one shows the most
 * @throws ArgumentTypeError if it is not a resource. Figures that a layer fails to provide are left
 * out.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream, { initialBytes: 64 * MiB });
 * console.log(memorySummary(pool));
 * ```
 */
export function memorySummary(resource: MemoryResource): string {
  assertMemoryResource(resource, 'resource');
  const layers = layersOf(resource);
  return [
    headOf(resource),
    section('Layers', layers.flatMap(layerRow)),
    section('Other resources that keep memory', otherRows(layers)),
    section('Resources of other workers', otherWorkersRows(resource)),
    section('Promised', layers.flatMap(promiseRow)),
    section('Spilled', layers.flatMap(spillRow)),
    section('Accounts', accountRows()),
    section('Buffers', bufferRows(resource)),
  ]
    .filter((part) => part !== '')
    .join('\n\n');
}

function headOf(resource: MemoryResource): string {
  const { index, name } = resource.device;
  // A resource may be foreign code, and the driver may fail.
  const memory = resultOrNothing(() => resource.device.memoryInfo());
  const free = memory === undefined ? '' : `: ${formatBytes(memory.freeBytes)} of ${formatBytes(memory.totalBytes)} are free`;
  const users = resultOrNothing(() => deviceUsage(resource.device).users) ?? [];
  const who = users.length === 0 ? '' : `\n${describeUsers(users)}`;
  return `${stackName(resource)} on device ${index}, ${name}${free}${who}`;
}

/** Lines in columns under a title; nothing if there are none. */
function section(title: string, rows: readonly (readonly string[])[]): string {
  if (rows.length === 0) return '';
  const widths: number[] = [];
  for (const row of rows) for (const [i, cell] of row.entries()) widths[i] = Math.max(widths[i] ?? 0, cell.length);
  const lines = rows.map((row) => `  ${row.map((cell, i) => cell.padEnd(widths[i] as number)).join('  ')}`.trimEnd());
  return [title, ...lines].join('\n');
}

function layerRow(layer: MemoryResource): string[][] {
  const row = resultOrNothing(() => {
    const { reservedBytes, peakReservedBytes } = layer as ReservingMemoryResource;
    if (typeof reservedBytes !== 'number') return undefined;
    const reserved = `reserved ${formatBytes(reservedBytes)}, at most ${formatBytes(peakReservedBytes)}`;
    const statistics = (layer as { statistics?: () => Partial<StreamOrderedStatistics> }).statistics?.();
    if (typeof statistics?.largestFreeBytes !== 'number') return [kindOf(layer), reserved];
    const { allocatedBytes, largestFreeBytes, upstreamBlocks } = statistics as StreamOrderedStatistics;
    const freeBytes = reservedBytes - allocatedBytes;
    return [
      kindOf(layer),
      reserved,
      `allocated ${formatBytes(allocatedBytes)}`,
      `free ${formatBytes(freeBytes)}${freeBytes === 0 ? '' : `, at most ${formatBytes(largestFreeBytes)} in one piece`}`,
      `${formatCount(upstreamBlocks)} ${upstreamBlocks === 1 ? 'block' : 'blocks'}`,
    ];
  });
  return row === undefined ? [] : [row];
}

/** The resources outside the stack that keep free memory of a device. */
function otherRows(layers: readonly MemoryResource[]): string[][] {
  const others = allNeighbours()
    .filter(({ resource }) => !layers.includes(resource))
    .map((neighbour) => ({ ...resultOrNothing(() => keptBy(neighbour)), neighbour }))
    .filter(({ reservedBytes = 0 }) => reservedBytes > 0)
    .sort((one, other) => (other.freeBytes ?? 0) - (one.freeBytes ?? 0));
  return withRest(others, ({ neighbour: { resource, name }, reservedBytes = 0, freeBytes = 0 }) => [
    `${stackName(resource)}${name === undefined ? '' : ` '${name}'`}`,
    `device ${resource.device.index}`,
    `reserved ${formatBytes(reservedBytes)}`,
    `free ${formatBytes(freeBytes)}`,
  ]);
}

function otherWorkersRows({ memoryKind, device }: MemoryResource): string[][] {
  const text = describeKept(memoryKind, device.index);
  return text === '' ? [] : [[text]];
}

function keptBy(neighbour: Neighbour): { readonly reservedBytes: number; readonly freeBytes: number } {
  return { reservedBytes: neighbour.resource.reservedBytes, freeBytes: neighbour.freeBytes() };
}

function promiseRow(layer: MemoryResource): string[][] {
  if (!(layer instanceof AdmittingResourceAdaptor)) return [];
  const { committedBytes, limitBytes, outsideBytes, grants, waiting, waitingBytes, longestWaitMilliseconds } = layer.statistics();
  return [
    [
      `${formatBytes(committedBytes)} of ${formatBytes(limitBytes)}`,
      `${formatCount(grants)} ${grants === 1 ? 'grant' : 'grants'}, ${formatBytes(outsideBytes)} outside of grants`,
      `${formatCount(waiting)} ${waiting === 1 ? 'request waits' : 'requests wait'} for ${formatBytes(waitingBytes)}`,
      `longest wait ${Math.round(longestWaitMilliseconds)} ms`,
    ],
  ];
}

function spillRow(layer: MemoryResource): string[][] {
  if (!(layer instanceof SpillingResourceAdaptor)) return [];
  const { hostBytes, deviceBytes, pinnedBytes, spills, returns, waiting } = layer.statistics();
  return [
    [
      `${formatBytes(hostBytes)} of ${formatBytes(hostBytes + deviceBytes)} are on the host, ${formatBytes(pinnedBytes)} are pinned`,
      `${formatCount(spills)} left, ${formatCount(returns)} came back`,
      `${formatCount(waiting)} ${waiting === 1 ? 'call waits' : 'calls wait'}`,
    ],
  ];
}

function accountRows(): string[][] {
  const accounts = liveAccounts().sort((a, b) => b.liveBytes - a.liveBytes);
  return withRest(
    accounts.filter(({ liveBytes }) => liveBytes > 0),
    (account) => [
      account.path,
      `${formatBytes(account.liveBytes)}${limitOf(account)}`,
      `at most ${formatBytes(account.peakBytes)}`,
      Object.entries(account.labels)
        .map(([name, label]) => `${name}=${label}`)
        .join(' '),
    ],
  );
}

function limitOf({ limitBytes }: Account): string {
  return limitBytes === undefined ? '' : ` of ${formatBytes(limitBytes)}`;
}

/** The memory of live buffers that comes from a stack, from any of its layers or from resources above it. */
export function* memoryOfBuffers(stack: MemoryResource): Generator<OwnedMemory & { readonly resource: MemoryResource }> {
  const layers = new Set(layersOf(stack));
  for (const memory of watchedMemory() as Generator<OwnedMemory & { readonly resource: MemoryResource }>) {
    if (memory.bytes > 0 && layersOf(memory.resource).some((layer) => layers.has(layer))) yield memory;
  }
}

/** Buffers of a stack, by label, or otherwise by the place of their creation. */
function bufferRows(stack: MemoryResource): string[][] {
  const groups = new Map<string, { bytes: number; count: number }>();
  for (const { bytes, label, createdAt } of memoryOfBuffers(stack)) {
    const name = label ?? createdAt?.split('\n', 1)[0]?.trim() ?? '(no label)';
    const group = groups.get(name) ?? { bytes: 0, count: 0 };
    groups.set(name, { bytes: group.bytes + bytes, count: group.count + 1 });
  }
  return withRest(
    [...groups].sort(([, one], [, other]) => other.bytes - one.bytes),
    ([name, { bytes, count }]) => [name, formatBytes(bytes), `${formatCount(count)} ${count === 1 ? 'buffer' : 'buffers'}`],
  );
}

function withRest<T>(all: readonly T[], row: (each: T) => string[]): string[][] {
  const rows = all.slice(0, listed).map(row);
  if (all.length > listed) rows.push([`and ${formatCount(all.length - listed)} more`]);
  return rows;
}
