import { expect, test } from 'vitest';
import { Account, AccountingResourceAdaptor, withQuota } from '../../src/index.js';
import { sampleStatistics } from '../../src/watch/index.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

const resource = new AccountingResourceAdaptor(new SpyResource());

test('accounts of one path are one sample, with the sum of their bytes and limits', () => {
  const tenant = new Account({ name: 'tenant' });
  const requests = [256, 512].map((bytes) =>
    tenant.run(() =>
      withQuota({ name: 'request', limitBytes: 1024 }, (account) => ({ account, bytes, pointer: resource.allocate(bytes, stream) })),
    ),
  );
  expect(sampleStatistics().accounts).toEqual([
    { path: 'tenant', accounts: 1, liveBytes: 768, peakBytes: 768, limitBytes: null },
    { path: 'tenant/request', accounts: 2, liveBytes: 768, peakBytes: 512, limitBytes: 2048 },
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
