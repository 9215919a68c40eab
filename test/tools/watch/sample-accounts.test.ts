import { expect, test } from 'vitest';
import { CudaMemoryResource, PinnedHostMemoryResource } from '../../../src/index.js';
import {
  Account,
  AccountingResourceAdaptor,
  AdmittingResourceAdaptor,
  SpillableBuffer,
  SpillingResourceAdaptor,
  withQuota,
} from '../../../src/serving/index.js';
import { prometheusText, sampleStatistics } from '../../../src/tools/watch/index.js';
import { SpyResource } from '../../support/spy-resource.js';
import { stream } from '../../support/stream.js';

const resource = new AccountingResourceAdaptor(new SpyResource());
const nothingLeft = { spilledBytes: 0, waitedMilliseconds: 0 };

test('accounts of one path are one sample, with the sum of their bytes and limits', () => {
  const tenant = new Account({ name: 'tenant' });
  const requests = [256, 512].map((bytes) =>
    tenant.run(() =>
      withQuota({ name: 'request', limitBytes: 1024 }, (account) => ({ account, bytes, pointer: resource.allocate(bytes, stream) })),
    ),
  );
  expect(sampleStatistics().accounts).toEqual([
    { path: 'tenant', accounts: 1, liveBytes: 768, peakBytes: 768, limitBytes: null, ...nothingLeft },
    { path: 'tenant/request', accounts: 2, liveBytes: 768, peakBytes: 512, limitBytes: 2048, ...nothingLeft },
  ]);
  for (const { pointer, bytes } of requests) resource.deallocate(pointer, bytes, stream);
  expect(sampleStatistics().accounts.map(({ liveBytes }) => liveBytes)).toEqual([0, 0]);
});

test('the 20 paths that hold most have samples, the others one together, in which no byte counts twice', () => {
  const kept = Array.from({ length: 30 }, (_, i) => {
    const account = new Account({ name: `a${i}` });
    account.run(() => resource.allocate(256 * (100 + i), stream));
    return account;
  });
  const others = new Account({ name: 'others' });
  others.run(() => withQuota({ name: 'within' }, () => resource.allocate(256, stream)));
  const { accounts } = sampleStatistics();
  expect(accounts.slice(0, 20).map(({ path }) => path)).toEqual(
    kept
      .slice(10)
      .reverse()
      .map(({ path }) => path),
  );
  const hidden = kept.slice(0, 10).reduce((sum, { liveBytes }) => sum + liveBytes, 0);
  expect(accounts.slice(20)).toMatchObject([{ path: '(other accounts)', liveBytes: hidden + 256, limitBytes: null }]);
});

test('refusals of all accounts are counted', () => {
  const before = sampleStatistics().accountRefusals;
  const account = new Account({ name: 'refusing', limitBytes: 0 });
  expect(() => account.run(() => resource.allocate(1, stream))).toThrow();
  expect(sampleStatistics().accountRefusals).toBe(before + 1);
});

test('what is promised, and who waits, are in samples and metrics until the adaptor is disposed', async () => {
  const admitting = new AdmittingResourceAdaptor(new SpyResource(), { limitBytes: 1024 });
  const grant = await admitting.reserve(768);
  const next = admitting.reserve(512);
  await expect(admitting.reserve(2048)).rejects.toMatchObject({ reason: 'too-large' });
  const sample = sampleStatistics();
  const [admission] = sample.admissions;
  expect(sample.admissions).toEqual([{ name: admission?.name, device: 0, ...admitting.statistics() }]);
  expect(admission).toMatchObject({ limitBytes: 1024, committedBytes: 768, grants: 1, waiting: 1, waitingBytes: 512, admitted: 1 });
  const labels = `layer="${admission?.name}",device="0"`;
  expect(admission?.name).toMatch(/^AdmittingResourceAdaptor \d+$/);
  for (const line of [
    `cistern_admission_limit_bytes{${labels}} 1024`,
    `cistern_admission_committed_bytes{${labels}} 768`,
    `cistern_admission_grants{${labels}} 1`,
    `cistern_admission_waiting{${labels}} 1`,
    `cistern_admission_wanted_bytes{${labels}} 512`,
    `cistern_admission_admitted_total{${labels}} 1`,
    `cistern_admission_admitted_after_wait_total{${labels}} 0`,
    `cistern_admission_not_admitted_total{${labels},reason="too-large"} 1`,
    `cistern_admission_not_admitted_total{${labels},reason="aborted"} 0`,
  ])
    expect(prometheusText(sample).split('\n')).toContain(line);
  grant.dispose();
  (await next).dispose();
  admitting.dispose();
  expect(sampleStatistics().admissions).toEqual([]);
});

test('what has left, and how long somebody waited for memory, is told by account', async () => {
  const spilling = new SpillingResourceAdaptor(new CudaMemoryResource(), new PinnedHostMemoryResource());
  const admitting = new AdmittingResourceAdaptor(new SpyResource(), { limitBytes: 1024 });
  const tenant = new Account({ name: 'spilling tenant' });
  // Among those that hold most.
  tenant.run(() => resource.allocate(256 * 1000, stream));
  const buffer = tenant.run(() => new SpillableBuffer(512, { stream, resource: spilling }));
  spilling.spill();
  const holding = await admitting.reserve(1024);
  const waiting = tenant.run(() => admitting.reserve(256));
  await new Promise((resolve) => setTimeout(resolve, 5));
  holding.dispose();
  (await waiting).dispose();
  const sample = sampleStatistics();
  const account = sample.accounts.find(({ path }) => path === 'spilling tenant');
  expect(account).toMatchObject({ spilledBytes: 512, waitedMilliseconds: admitting.statistics().waitedMilliseconds });
  expect(account?.waitedMilliseconds).toBeGreaterThan(0);
  const [spill] = sample.spills;
  expect(sample.spills).toEqual([{ name: spill?.name, device: 0, ...spilling.statistics() }]);
  const labels = `layer="${spill?.name}",device="0"`;
  for (const line of [
    'cistern_account_spilled_bytes{account="spilling tenant"} 512',
    `cistern_account_waited{account="spilling tenant"} ${account?.waitedMilliseconds}`,
    `cistern_spill_on_host_bytes{${labels}} 512`,
    `cistern_spill_in_files_bytes{${labels}} 0`,
    `cistern_spill_left_bytes_total{${labels}} 512`,
    `cistern_spill_returned_bytes_total{${labels}} 0`,
  ])
    expect(prometheusText(sample).split('\n')).toContain(line);
  buffer.dispose();
  spilling.dispose();
  admitting.dispose();
  expect(sampleStatistics().spills).toEqual([]);
});
