import { expect, test } from 'vitest';
import { CudaMemoryResource, DeviceBuffer, KiB, PoolMemoryResource, reclaimUnreachableBuffers } from '../../src/index.js';
import { liveAccounts } from '../../src/serving/accounts/account.js';
import { AdmissionQueue, type Holder, type Outcome } from '../../src/serving/admission/admission-queue.js';
import { Account, AccountingResourceAdaptor, AdmittingResourceAdaptor, currentAccount, withQuota } from '../../src/serving/index.js';
import { stream } from '../support/stream.js';
import { collectGarbage, collectGarbageUntil } from './collection.js';

const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 1024 * KiB });

test('memory of a buffer that the collector takes is paid back, in whatever scope that is', async () => {
  const resource = new AccountingResourceAdaptor(pool);
  const [tenant, other] = [new Account({ name: 'tenant' }), new Account({ name: 'other' })];
  (() => {
    tenant.run(() => withQuota({ name: 'request' }, () => new DeviceBuffer(64 * KiB, { stream, resource })));
  })();
  expect(tenant.liveBytes).toBe(64 * KiB);
  await collectGarbage();
  other.run(() => reclaimUnreachableBuffers('major'));
  expect([tenant.liveBytes, other.liveBytes, other.totalBytes]).toEqual([0, 0, 0]);
});

test('an account that is dropped stays as long as memory is charged to it, and no longer', async () => {
  const resource = new AccountingResourceAdaptor(pool);
  const paths = () => liveAccounts().map(({ path }) => path);
  const pointer = (() => withQuota({ name: 'dropped' }, () => resource.allocate(256, stream)))();
  await collectGarbage();
  expect(paths()).toContain('dropped');
  expect(resource.accountOf(pointer)?.liveBytes).toBe(256);
  resource.deallocate(pointer, 256, stream);
  // The scope that was asked for last is remembered until the next question.
  expect(currentAccount()).toBeUndefined();
  // Whoever looks at a weak reference keeps its object until the turn ends, so nobody looks before.
  for (let round = 0; round < 3; round++) await collectGarbage();
  expect(paths()).not.toContain('dropped');
});

test('memory of a grant that is dropped goes back, and what is still allocated as it is freed', async () => {
  const resource = new AdmittingResourceAdaptor(pool, { limitBytes: 256 * KiB });
  const pointer = await (async () => (await resource.reserve(192 * KiB)).run(() => resource.allocate(64 * KiB, stream)))();
  const waiting = resource.reserve(192 * KiB);
  await collectGarbageUntil(() => resource.statistics().waiting === 0);
  const grant = await waiting;
  expect(resource.statistics()).toMatchObject({ committedBytes: 256 * KiB, grants: 1 });
  resource.deallocate(pointer, 64 * KiB, stream);
  grant.dispose();
  expect(resource.statistics().committedBytes).toBe(0);
});

test('a request that waits for what a dropped grant has makes V8 look for it in a while', async () => {
  const resource = new AdmittingResourceAdaptor(pool, { limitBytes: 256 * KiB });
  await (async () => void (await resource.reserve(192 * KiB)))();
  using grant = await resource.reserve(192 * KiB, { timeoutMilliseconds: 20_000 });
  expect(resource.statistics()).toMatchObject({ committedBytes: grant.bytes, grants: 1 });
});

test('a grant that only its scope refers to keeps its promise until the function has returned', async () => {
  const resource = new AdmittingResourceAdaptor(pool, { limitBytes: 256 * KiB });
  const committed = await (await resource.reserve(192 * KiB)).run(async () => {
    for (let round = 0; round < 3; round++) await collectGarbage();
    const { committedBytes } = resource.statistics();
    resource.deallocate(resource.allocate(128 * KiB, stream), 128 * KiB, stream);
    return committedBytes;
  });
  expect(committed).toBe(192 * KiB);
});

test('what a function returned at once does not keep a dropped grant', async () => {
  const resource = new AdmittingResourceAdaptor(pool, { limitBytes: 256 * KiB });
  const result = await (async () => (await resource.reserve(192 * KiB)).run(() => ({ name: 'lives on' })))();
  await collectGarbageUntil(() => resource.statistics().committedBytes === 0);
  expect([result.name, resource.statistics().grants]).toEqual(['lives on', 0]);
});

test.each(['withdrawn', 'admitted'])('a request that is %s keeps nothing of its maker', async (end) => {
  const queue = new AdmissionQueue('', 1024, 16, () => {});
  const admitted = ({ kind, ...rest }: Outcome) => {
    if (kind === 'admitted') queue.end((rest as { holder: Holder }).holder);
  };
  let holder: Holder | undefined;
  queue.ask({ bytes: 1024, priority: 0, settle: (outcome) => (holder = (outcome as { holder: Holder }).holder) });
  const makers = Array.from({ length: 8 }, () => {
    const settle = (outcome: Outcome) => admitted(outcome);
    const number = queue.ask({ bytes: end === 'withdrawn' ? 256 : 0, priority: 0, settle });
    expect(queue.withdraw(number)).toBe(end === 'withdrawn');
    return new WeakRef(settle);
  });
  // Whoever looks at a weak reference keeps its object until the turn ends, so nobody looks before.
  for (let round = 0; round < 3; round++) await collectGarbage();
  expect(makers.filter((maker) => maker.deref() !== undefined).length).toBeLessThan(2);
  queue.end(holder as Holder);
  expect(queue.read()).toMatchObject({ committedBytes: 0, waiting: 0 });
});

test('a grant that has allocated nothing, in no bytes, is not kept by that', async () => {
  const resource = new AdmittingResourceAdaptor(pool, { limitBytes: 1024 });
  const holders: WeakRef<Holder>[] = [];
  const { use } = AdmissionQueue.prototype;
  AdmissionQueue.prototype.use = function (holder, bytes) {
    holders.push(new WeakRef(holder));
    return use.call(this, holder, bytes);
  };
  try {
    for (let i = 0; i < 8; i++) {
      using grant = await resource.reserve(256);
      grant.run(() => resource.deallocate(resource.allocate(0, stream), 0, stream));
    }
  } finally {
    AdmissionQueue.prototype.use = use;
  }
  resource.deallocate(resource.allocate(256, stream), 256, stream);
  for (let round = 0; round < 3; round++) await collectGarbage();
  expect(holders).toHaveLength(8);
  expect(holders.filter((holder) => holder.deref() !== undefined).length).toBeLessThan(2);
  resource[Symbol.dispose]();
});
