import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type BufferLeak, watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { CudaMemoryResource, MiB, PinnedHostMemoryResource, PoolMemoryResource, Stream } from '../../src/index.js';
import {
  AccountingResourceAdaptor,
  AdmittingResourceAdaptor,
  SpillableBuffer,
  SpillingResourceAdaptor,
  withQuota,
} from '../../src/serving/index.js';
import { checkOrderInEachTest } from '../support/order-checked-tests.js';
import { collectGarbageUntil } from './collection.js';

const most = 4 * MiB;
let stream: Stream;
let leaf: CudaMemoryResource;
let pool: PoolMemoryResource;
let admitting: AdmittingResourceAdaptor;
let pinned: PinnedHostMemoryResource;
let host: PoolMemoryResource;
let resource: SpillingResourceAdaptor;

beforeEach(() => {
  stream = new Stream({ nonBlocking: true });
  leaf = new CudaMemoryResource();
  pool = new PoolMemoryResource(leaf, { initialBytes: most, maximumBytes: most });
  admitting = new AdmittingResourceAdaptor(pool, { limitBytes: most });
  pinned = new PinnedHostMemoryResource();
  host = new PoolMemoryResource(pinned);
  resource = new SpillingResourceAdaptor(admitting, host);
});

afterEach(() => {
  for (const each of [resource, admitting, pool, host, leaf, pinned, stream]) each[Symbol.dispose]();
  expect([leaf.reservedBytes, pinned.reservedBytes, watchedBuffers().count]).toEqual([0, 0, 0]);
});

checkOrderInEachTest();

/** V8 itself may keep the last one for long. */
const dropped = 16;
const bytes = most / dropped;

const drop = (label: string) => void new SpillableBuffer(bytes, { stream, resource, label });

const dropAll = () => {
  for (let i = 0; i < dropped; i++) drop(`${i}`);
};

it('a spillable buffer that is dropped frees its memory where that lies, which its leak tells', async () => {
  const kinds = new Map<string | undefined, string>();
  const onLeak = (message: unknown) => {
    const { label, memoryKind, bytes: leaked, pointer } = message as BufferLeak;
    expect([leaked, pointer > 0]).toEqual([bytes, true]);
    kinds.set(label, memoryKind);
  };
  subscribe('cistern:leak', onLeak);
  dropAll();
  expect(resource.spill(most / 2)).toBe(most / 2);
  expect(resource.statistics()).toMatchObject({ buffers: dropped, hostBytes: most / 2, deviceBytes: most / 2 });
  await collectGarbageUntil(() => resource.statistics().buffers === 0);
  unsubscribe('cistern:leak', onLeak);
  expect([...kinds].map(([label, kind]) => [Number(label), kind]).sort(([one], [other]) => Number(one) - Number(other))).toEqual(
    Array.from({ length: dropped }, (_, i) => [i, i < dropped / 2 ? 'pinned-host' : 'device']),
  );
  expect(resource.statistics()).toMatchObject({ hostBytes: 0, deviceBytes: 0, liveBytes: 0 });
  expect([host.statistics().allocatedBytes, pool.statistics().allocatedBytes]).toEqual([0, 0]);
});

it('a pin that is dropped ends, and keeps its buffer until then', async () => {
  const buffers = Array.from({ length: dropped }, () => new SpillableBuffer(bytes, { stream, resource }));
  const pinAll = async () => {
    for (const buffer of buffers) await buffer.pin();
  };
  await pinAll();
  expect(resource.spill()).toBe(0);
  await collectGarbageUntil(() => resource.statistics().pinnedBytes === 0);
  expect(resource.spill()).toBe(most);
  for (const buffer of buffers) buffer.dispose();
});

it('whoever waits for memory is served by what is dropped, pinned or not', async () => {
  const accounting = new AccountingResourceAdaptor(resource);
  const leave = async () => {
    const buffer = new SpillableBuffer(most, { stream, resource: accounting });
    await buffer.pin();
  };
  await withQuota({ name: 'tenant' }, leave);
  using needed = await SpillableBuffer.create(3 * MiB, { stream, resource });
  expect(needed.isOnDevice).toBe(true);
  needed.dispose();
  await withQuota({ name: 'tenant' }, leave);
  using grant = await admitting.reserve(3 * MiB);
  expect(grant.bytes).toBe(3 * MiB);
});
