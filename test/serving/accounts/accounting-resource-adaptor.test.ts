import { AsyncResource } from 'node:async_hooks';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { describe, expect, test } from 'vitest';
import {
  CudaMemoryResource,
  DeviceBuffer,
  FailureCallbackResourceAdaptor,
  LimitingResourceAdaptor,
  MiB,
  MonotonicMemoryResource,
  OutOfMemoryError,
  Stream,
  withResource,
} from '../../../src/index.js';
import { accountRefusals, formatHolders } from '../../../src/serving/accounts/account.js';
import { Account, AccountingResourceAdaptor, currentAccount, withQuota } from '../../../src/serving/index.js';
import { caught } from '../../support/errors.js';
import { printed, runModule } from '../../support/run-module.js';
import { SpyResource } from '../../support/spy-resource.js';
import { stream } from '../../support/stream.js';
import { runWithWorkers } from '../../support/workers.js';

function accounting(): AccountingResourceAdaptor {
  return new AccountingResourceAdaptor(new SpyResource());
}

/** Nothing was refused before the first test. */
const refusalsBefore = accountRefusals();

describe('charges', () => {
  test('go to the account in whose scope memory is allocated, and to those around it', () => {
    const resource = accounting();
    const tenant = new Account({ name: 'tenant' });
    const pointers: number[] = [];
    tenant.run(() => {
      pointers.push(resource.allocate(512, stream));
      withQuota({ name: 'request' }, (request) => {
        pointers.push(resource.allocate(1024, stream));
        expect([request.path, request.liveBytes, request.parent]).toEqual(['tenant/request', 1024, tenant]);
      });
    });
    expect(tenant.liveBytes).toBe(1536);
    resource.deallocate(pointers[1] as number, 1024, stream);
    expect(tenant.liveBytes).toBe(512);
    resource.deallocate(pointers[0] as number, 512, stream);
    expect([tenant.liveBytes, tenant.peakBytes, tenant.totalBytes]).toEqual([0, 1536, 1536]);
  });

  test('are paid back to the same account in whichever scope the memory is freed', () => {
    const resource = accounting();
    const [a, b] = [new Account({ name: 'a' }), new Account({ name: 'b' })];
    const ofA = a.run(() => resource.allocate(256, stream));
    const ofB = b.run(() => resource.allocate(512, stream));
    b.run(() => resource.deallocate(ofA, 256, stream));
    expect([a.liveBytes, b.liveBytes]).toEqual([0, 512]);
    resource.deallocate(ofB, 512, stream);
    expect([a.liveBytes, b.liveBytes]).toEqual([0, 0]);
  });

  test('are not made outside of every scope, nor for zero bytes', () => {
    const resource = accounting();
    const account = new Account({ name: 'a', limitBytes: 0 });
    const outside = resource.allocate(4096, stream);
    account.run(() => {
      resource.deallocate(outside, 4096, stream);
      expect(resource.allocate(0, stream)).toBe(0);
      resource.deallocate(0, 4096, stream);
    });
    expect([account.liveBytes, account.totalBytes]).toEqual([0, 0]);
  });

  test('follow asynchronous calls that go on by turns', async () => {
    const resource = accounting();
    const accounts = Array.from({ length: 8 }, (_, i) => new Account({ name: `account ${i}` }));
    const steps = 20;
    const use = async (account: Account, i: number) => {
      for (let step = 0; step < steps; step++) {
        expect(currentAccount()).toBe(account);
        const pointer = resource.allocate(256 * (i + 1), stream);
        await (step % 3 === 0 ? sleep(0) : step % 3 === 1 ? nextTurn() : undefined);
        resource.deallocate(pointer, 256 * (i + 1), stream);
      }
    };
    await Promise.all(accounts.map((account, i) => account.run(() => use(account, i))));
    expect(accounts.map(({ totalBytes }) => totalBytes)).toEqual(accounts.map((_, i) => 256 * (i + 1) * steps));
    expect(accounts.map(({ liveBytes }) => liveBytes)).toEqual(accounts.map(() => 0));
    expect(currentAccount()).toBeUndefined();
  });

  test('go to the account of a function that another execution calls back', () => {
    const [a, b] = [new Account({ name: 'a' }), new Account({ name: 'b' })];
    const inA = a.run(() => new AsyncResource('test'));
    b.run(() => {
      expect(currentAccount()).toBe(b);
      expect(inA.runInAsyncScope(currentAccount)).toBe(a);
      expect(inA.runInAsyncScope(() => b.run(currentAccount))).toBe(b);
      expect(inA.runInAsyncScope(currentAccount)).toBe(a);
      expect(currentAccount()).toBe(b);
    });
  });

  test.each([
    ['another account waits', (other: Account, on: Stream) => other.run(() => on.synchronizeSync())],
    ['the event loop does', (_other: Account, on: Stream) => on.synchronize()],
  ])('of a host function go to the account that launched it, although %s', async (_name, wait) => {
    const resource = accounting();
    using on = new Stream({ nonBlocking: true });
    const [launcher, other] = [new Account({ name: 'launcher' }), new Account({ name: 'other' })];
    const seen: (Account | undefined)[] = [];
    const launch = () =>
      on.launchHostFunction(() => {
        seen.push(currentAccount());
        resource.allocate(256, on);
      });
    launch();
    launcher.run(launch);
    await launcher.run(async () => {
      await undefined;
      launch();
    });
    await wait(other, on);
    expect(seen).toEqual([undefined, launcher, launcher]);
    expect([launcher.liveBytes, other.liveBytes, currentAccount()]).toEqual([512, 0, undefined]);
    other.run(() => expect(currentAccount()).toBe(other));
  });

  test('of a host function in a graph go to the account in whose scope it was captured', () => {
    using on = new Stream({ nonBlocking: true });
    const [capturing, launching] = [new Account({ name: 'capturing' }), new Account({ name: 'launching' })];
    const seen: (Account | undefined)[] = [];
    using graph = capturing.run(() => on.capture(() => on.launchHostFunction(() => seen.push(currentAccount()))));
    using exec = graph.instantiate();
    launching.run(() => {
      exec.launch(on);
      on.synchronizeSync();
    });
    expect(seen).toEqual([capturing]);
  });

  test('are of the innermost account, whichever other scopes are within it', () => {
    const resource = accounting();
    const account = new Account({ name: 'a' });
    account.run(() => withResource(resource, () => expect(currentAccount()).toBe(account)));
  });

  test('end with the scope even if its function throws', () => {
    const account = new Account({ name: 'a' });
    const fault = new Error('fault');
    expect(
      caught(() =>
        account.run(() => {
          throw fault;
        }),
      ),
    ).toBe(fault);
    expect(currentAccount()).toBeUndefined();
  });

  test('count each allocation rounded up to 256 bytes', () => {
    const resource = accounting();
    const account = new Account({ name: 'a' });
    const pointer = account.run(() => resource.allocate(1, stream));
    expect(account.liveBytes).toBe(256);
    resource.deallocate(pointer, 1, stream);
    expect(account.liveBytes).toBe(0);
  });

  test('are taken back if the upstream fails, and count for no peak', () => {
    const upstream = new SpyResource();
    const resource = new AccountingResourceAdaptor(upstream);
    const account = new Account({ name: 'a' });
    const first = account.run(() => resource.allocate(256, stream));
    upstream.failure = new Error('fault');
    expect(caught(() => account.run(() => resource.allocate(4096, stream)))).toMatchObject({ message: 'fault' });
    expect([account.liveBytes, account.peakBytes, account.totalBytes]).toEqual([256, 256, 256]);
    resource.deallocate(first, 256, stream);
    expect([account.liveBytes, account.peakBytes, account.totalBytes]).toEqual([0, 256, 256]);
  });

  test('stay if the upstream refuses a free', () => {
    const upstream = new SpyResource();
    const resource = new AccountingResourceAdaptor(upstream);
    const account = new Account({ name: 'a' });
    const pointer = account.run(() => resource.allocate(256, stream));
    upstream.failure = new Error('fault');
    expect(() => resource.deallocate(pointer, 256, stream)).toThrow('fault');
    expect(account.liveBytes).toBe(256);
    resource.deallocate(pointer, 256, stream);
    expect(account.liveBytes).toBe(0);
  });

  test('of memory that a function gets while the same address is freed are its own', () => {
    const spy = new SpyResource();
    const resource = new AccountingResourceAdaptor(spy);
    const [a, b] = [new Account({ name: 'a' }), new Account({ name: 'b' })];
    const pointer = a.run(() => resource.allocate(256, stream));
    spy.allocate = () => pointer;
    spy.meanwhile = () => {
      b.run(() => resource.allocate(512, stream));
    };
    resource.deallocate(pointer, 256, stream);
    expect([a.liveBytes, b.liveBytes]).toEqual([0, 512]);
    resource.deallocate(pointer, 512, stream);
    expect([a.liveBytes, b.liveBytes]).toEqual([0, 0]);
  });

  test('are paid back by a bulk free', () => {
    using upstream = new CudaMemoryResource();
    const monotonic = new MonotonicMemoryResource(upstream);
    const resource = new AccountingResourceAdaptor(monotonic);
    const account = new Account({ name: 'a' });
    account.run(() => resource.allocate(1024, stream));
    account.run(() => new DeviceBuffer(2048, { stream, resource }));
    expect(account.liveBytes).toBe(3072);
    monotonic.dispose();
    expect(account.liveBytes).toBe(0);
  });

  test('of many accounts that come and go are kept apart', () => {
    const resource = accounting();
    for (let round = 0; round < 3; round++) {
      const live = Array.from({ length: 100 }, (_, i) => {
        const account = new Account({ name: 'request' });
        return { account, bytes: 256 * (i + 1), pointer: account.run(() => resource.allocate(256 * (i + 1), stream)) };
      });
      for (const { pointer, bytes } of live.slice(0, 50)) resource.deallocate(pointer, bytes, stream);
      expect(live.map(({ account }) => account.liveBytes)).toEqual(live.map(({ bytes }, i) => (i < 50 ? 0 : bytes)));
      for (const { pointer, bytes } of live.slice(50)) resource.deallocate(pointer, bytes, stream);
      expect(live.map(({ account }) => account.liveBytes)).toEqual(live.map(() => 0));
    }
  });
});

describe('a limit', () => {
  test('allows exactly its bytes, and not one more', () => {
    const resource = accounting();
    const account = new Account({ name: 'a', limitBytes: 1024 });
    account.run(() => {
      const pointer = resource.allocate(1024, stream);
      expect(() => resource.allocate(1, stream)).toThrow(OutOfMemoryError);
      resource.deallocate(pointer, 1024, stream);
      resource.allocate(1024, stream);
    });
    expect([account.liveBytes, account.refusals]).toEqual([1024, 1]);
  });

  test('allows exactly its bytes above a soft limit, too, and is shown', () => {
    const resource = accounting();
    const account = new Account({ name: 'a', limitBytes: 512, softBytes: 256, labels: { user: 'ada' } });
    const around = new Account({ name: 'around' });
    const within = new Account({ name: 'b', parent: around, limitBytes: 512 });
    for (const each of [account, within]) each.run(() => resource.allocate(512, stream));
    expect([account, around, within].map(({ limitBytes, liveBytes }) => [limitBytes, liveBytes])).toEqual([
      [512, 512],
      [undefined, 512],
      [512, 512],
    ]);
    expect(inspect(account)).toBe(
      "Account {\n  path: 'a',\n  limitBytes: 512,\n  liveBytes: 512,\n  peakBytes: 512,\n  labels: { user: 'ada' }\n}",
    );
    expect(() => structuredClone(account)).toThrow(expect.objectContaining({ name: 'DataCloneError' }));
  });

  test('that refuses is named, not one that would be reached exactly, and what is left is told', () => {
    const refusalsHere = accountRefusals();
    const resource = accounting();
    const outer = new Account({ name: 'outer', limitBytes: 512 });
    const inner = new Account({ name: 'inner', parent: outer, limitBytes: 1024 });
    outer.run(() => resource.allocate(256, stream));
    const refused = (account: Account, bytes: number) =>
      caught(() => account.run(() => resource.allocate(bytes, stream))) as OutOfMemoryError;
    const around = refused(inner, 1024);
    expect(around).toMatchObject({ account: 'outer', limitBytes: 512, availableBytes: 256 });
    expect(around.message).toContain('were asked for by "outer/inner", 256 B are left');
    const own = refused(outer, 512);
    expect(own.message).toContain('(512 bytes) were asked for, 256 B are left');
    expect(refused(new Account({ name: 'none', parent: outer, limitBytes: 0 }), 256)).toMatchObject({ account: 'outer/none' });
    outer.limitBytes = 0;
    expect(refused(inner, 256)).toMatchObject({ account: 'outer', availableBytes: 0 });
    expect([outer.refusals, inner.refusals]).toEqual([3, 0]);
    expect([refusalsBefore, accountRefusals() - refusalsHere]).toEqual([0, 4]);
    outer.limitBytes = 640;
    expect(inner.refusing(512)).toEqual({ account: outer, missingBytes: 128 });
  });

  test('of an account around holds for all within, and nothing is charged if it refuses', () => {
    const resource = accounting();
    const tenant = new Account({ name: 'tenant', limitBytes: 1024 });
    const request = new Account({ name: 'request', parent: tenant });
    tenant.run(() => resource.allocate(512, stream));
    expect(() => request.run(() => resource.allocate(768, stream))).toThrow(OutOfMemoryError);
    expect([tenant, request].map(({ liveBytes, totalBytes, refusals }) => [liveBytes, totalBytes, refusals])).toEqual([
      [512, 512, 1],
      [0, 0, 0],
    ]);
    request.run(() => resource.allocate(512, stream));
    expect([tenant.liveBytes, request.liveBytes]).toEqual([1024, 512]);
  });

  test('names the account and its largest holders', () => {
    const resource = accounting();
    const tenant = new Account({ name: 'tenant', limitBytes: 8 * MiB });
    const [small, large] = [new Account({ name: 'small', parent: tenant }), new Account({ name: 'large', parent: tenant })];
    tenant.run(() => resource.allocate(2 * MiB, stream));
    for (const [account, bytes] of [
      [small, MiB],
      [large, 3 * MiB],
    ] as const)
      account.run(() => resource.allocate(bytes, stream));
    expect(caught(() => small.run(() => resource.allocate(4 * MiB, stream)))).toMatchObject({
      name: 'OutOfMemoryError',
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      message:
        'the limit of the account "tenant" of 8 MiB is reached: 4 MiB (4194304 bytes) were asked for by "tenant/small", 2 MiB are left; ' +
        'the largest holders are "tenant/large" 3 MiB, "tenant" 2 MiB, "tenant/small" 1 MiB',
      account: 'tenant',
      requestedBytes: 4 * MiB,
      availableBytes: 2 * MiB,
      limitBytes: 8 * MiB,
      holders: [
        { account: 'tenant/large', bytes: 3 * MiB },
        { account: 'tenant', bytes: 2 * MiB },
        { account: 'tenant/small', bytes: MiB },
      ],
      path: ['AccountingResourceAdaptor'],
    });
  });

  test('names three holders, and says how many more there are', () => {
    const holders = [4, 3, 2, 1].map((bytes) => ({ account: `a${bytes}`, bytes }));
    const three = '; the largest holders are "a4" 4 B, "a3" 3 B, "a2" 2 B';
    expect([0, 3, 4].map((count) => formatHolders(holders.slice(0, count)))).toEqual(['', three, `${three} and 1 more`]);
  });

  test('is named with the accounts of the same path as one, and with no others', () => {
    const resource = accounting();
    const tenant = new Account({ name: 'tenant', limitBytes: 1024 });
    const other = new Account({ name: 'other' });
    other.run(() => resource.allocate(MiB, stream));
    for (let i = 0; i < 4; i++) tenant.run(() => withQuota({ name: 'request' }, () => resource.allocate(256, stream)));
    expect(caught(() => tenant.run(() => resource.allocate(256, stream)))).toMatchObject({
      holders: [{ account: 'tenant/request', bytes: 1024 }],
    });
  });

  test('can be changed, and keeps what is charged', () => {
    const resource = accounting();
    const account = new Account({ name: 'a', limitBytes: 1024 });
    account.run(() => {
      resource.allocate(1024, stream);
      account.limitBytes = 512;
      expect(account.liveBytes).toBe(1024);
      expect(() => resource.allocate(256, stream)).toThrow(OutOfMemoryError);
      account.limitBytes = undefined;
      resource.allocate(4096, stream);
    });
    expect(account.limitBytes).toBeUndefined();
    expect(() => {
      account.limitBytes = -1;
    }).toThrow(/^limitBytes must/);
    expect(account.limitBytes).toBeUndefined();
  });

  test('that refuses makes adaptors above recover memory, as any want of memory does', () => {
    using upstream = new CudaMemoryResource();
    const accounted = new AccountingResourceAdaptor(upstream);
    const resource = new FailureCallbackResourceAdaptor(accounted, () => {
      kept.dispose();
      return true;
    });
    const account = new Account({ name: 'a', limitBytes: MiB });
    const kept = account.run(() => new DeviceBuffer(MiB, { stream, resource }));
    const next = account.run(() => new DeviceBuffer(MiB, { stream, resource }));
    expect([kept.byteLength, account.liveBytes]).toEqual([0, MiB]);
    next.dispose();
    expect(account.liveBytes).toBe(0);
  });
});

describe('a soft limit', () => {
  test('calls its function as it is passed, and again only after it was not', () => {
    const resource = accounting();
    const seen: number[] = [];
    const account = new Account({ name: 'a', softBytes: 512, onSoftLimit: ({ liveBytes }) => seen.push(liveBytes) });
    account.run(() => {
      resource.allocate(512, stream);
      expect(seen).toEqual([]);
      const pointer = resource.allocate(256, stream);
      resource.allocate(256, stream);
      expect(seen).toEqual([768]);
      resource.deallocate(pointer, 256, stream);
      resource.allocate(512, stream);
      expect(seen).toEqual([768]);
    });
    const again = new Account({ name: 'b', softBytes: 512, onSoftLimit: ({ liveBytes }) => seen.push(liveBytes) });
    again.run(() => {
      const pointer = resource.allocate(768, stream);
      resource.deallocate(pointer, 768, stream);
      resource.allocate(1024, stream);
    });
    expect(seen).toEqual([768, 768, 1024]);
  });

  test('lets its function free memory before the allocation is made', () => {
    using upstream = new CudaMemoryResource();
    const limited = new LimitingResourceAdaptor(upstream, { limitBytes: 2 * MiB });
    const resource = new AccountingResourceAdaptor(limited);
    const account: Account = new Account({ name: 'a', softBytes: MiB, onSoftLimit: () => cache.dispose() });
    const cache = account.run(() => new DeviceBuffer(MiB, { stream, resource }));
    const buffer = account.run(() => new DeviceBuffer(2 * MiB, { stream, resource }));
    expect(account.liveBytes).toBe(2 * MiB);
    buffer.dispose();
  });

  test('of each account around that is passed calls its function, even if that of another allocates', () => {
    const resource = accounting();
    const seen: string[] = [];
    const outer = new Account({ name: 'outer', softBytes: 256, onSoftLimit: ({ name }) => seen.push(name) });
    const inner = new Account({
      name: 'inner',
      parent: outer,
      softBytes: 256,
      onSoftLimit: ({ name }) => {
        seen.push(name);
        resource.allocate(4096, stream);
      },
    });
    inner.run(() => resource.allocate(512, stream));
    expect(seen).toEqual(['inner', 'outer']);
    expect(outer.liveBytes).toBe(4608);
  });

  test('that was passed before is not passed again when that of an account within is', () => {
    const resource = accounting();
    const seen: string[] = [];
    const onSoftLimit = ({ name }: Account) => seen.push(name);
    const outer = new Account({ name: 'outer', softBytes: 256, onSoftLimit });
    outer.run(() => resource.allocate(512, stream));
    const inner = new Account({ name: 'inner', parent: outer, softBytes: 256, onSoftLimit });
    inner.run(() => resource.allocate(512, stream));
    expect(seen).toEqual(['outer', 'inner']);
  });

  test('that is not passed, or just reached, calls no function when that of an account within is passed', () => {
    const resource = accounting();
    const seen: string[] = [];
    const onSoftLimit = ({ name }: Account) => seen.push(name);
    const outer = new Account({ name: 'outer', softBytes: 1024, onSoftLimit });
    const middle = new Account({ name: 'middle', parent: outer, softBytes: 512, onSoftLimit });
    const inner = new Account({ name: 'inner', parent: middle, softBytes: 256, onSoftLimit });
    inner.run(() => resource.allocate(512, stream));
    expect(seen).toEqual(['inner']);
  });

  test('charges nothing if its function throws, or disposes the resource', () => {
    const resource = accounting();
    const fault = new Error('fault');
    const account = new Account({
      name: 'a',
      softBytes: 0,
      onSoftLimit: () => {
        throw fault;
      },
    });
    expect(caught(() => account.run(() => resource.allocate(256, stream)))).toBe(fault);
    const disposing = new Account({ name: 'b', softBytes: 0, onSoftLimit: () => resource.dispose() });
    expect(caught(() => disposing.run(() => resource.allocate(256, stream)))).toMatchObject({ code: 'ERR_CISTERN_DISPOSED' });
    expect([account.liveBytes, account.totalBytes, disposing.liveBytes]).toEqual([0, 0, 0]);
  });
});

test('what was spilled, and how long calls have waited, count for an account and those around it', () => {
  const outer = new Account({ name: 'outer' });
  const inner = new Account({ name: 'inner', parent: outer });
  expect([inner.spilledBytes, inner.waitedMilliseconds, inner.refusals]).toEqual([0, 0, 0]);
  inner.noteSpill(256);
  inner.noteWait(3);
  outer.noteSpill(512);
  outer.noteWait(4);
  expect([inner, outer].map((each) => [each.spilledBytes, each.waitedMilliseconds])).toEqual([
    [256, 3],
    [768, 7],
  ]);
});

test('thousands of nested accounts have a path, are charged and refuse', () => {
  const resource = accounting();
  const root = new Account({ name: 'root', limitBytes: 512 });
  let account = root;
  for (let i = 0; i < 20_000; i++) account = new Account({ name: 'a', parent: account });
  expect(account.path).toBe(`root${'/a'.repeat(20_000)}`);
  const pointer = account.run(() => resource.allocate(512, stream));
  expect(root.liveBytes).toBe(512);
  expect(caught(() => account.run(() => resource.allocate(256, stream)))).toMatchObject({ account: 'root' });
  resource.deallocate(pointer, 512, stream);
  expect(root.liveBytes).toBe(0);
});

describe('an error of the upstream', () => {
  test('names the accounts that hold most', () => {
    const limited = new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 4 * MiB });
    const resource = new AccountingResourceAdaptor(limited);
    const account = new Account({ name: 'the one that holds it' });
    account.run(() => resource.allocate(3 * MiB, stream));
    const error = caught<OutOfMemoryError>(() => resource.allocate(2 * MiB, stream));
    expect(error.message).toContain(
      'the limit of 4 MiB is reached: 2 MiB (2097152 bytes) were asked for, 1 MiB are left; the largest holders are',
    );
    expect(error.message).toContain('"the one that holds it" 3 MiB');
    expect(error).toMatchObject({ account: undefined, limitBytes: 4 * MiB, availableBytes: MiB });
    expect(error.path).toEqual(['AccountingResourceAdaptor', 'LimitingResourceAdaptor']);
    expect(error.holders).toContainEqual({ account: 'the one that holds it', bytes: 3 * MiB });
  });
});

describe('arguments', () => {
  test.each([
    [{ name: '' }, 'name must be a non-empty string, got ""'],
    [{ name: 'a', limitBytes: -1 }, 'limitBytes must be an integer from 0 to 2^53 - 1, got -1'],
    [{ name: 'a', softBytes: '1' }, 'softBytes must be a number, got "1"'],
    [{ name: 'a/b' }, 'name must not contain "/", which separates names in a path, got "a/b"'],
    [{ name: 'a', onSoftLimit: 1 }, 'onSoftLimit must be a function, got 1'],
    [{ name: 'a', parent: {} }, 'parent must be an Account, got an instance of Object'],
    [{ name: 'a', labels: { team: 'b', user: 1 } }, 'labels must have strings, got 1 for "user"'],
    [{ name: 'a', labels: null }, 'labels must be an object, got null'],
    [{ name: 'a', limit: 1 }, 'options must not have "limit"'],
  ])('%j are refused', (options, message) => {
    expect(caught<Error>(() => new Account(options as never)).message).toContain(message);
    expect(caught<Error>(() => withQuota(options as never, () => {})).message).toContain(message);
  });

  test('of withQuota must include a function', () => {
    expect(caught(() => withQuota({ name: 'a' }, undefined as never))).toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    expect(caught(() => new Account({ name: 'a' }).run(undefined as never))).toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
  });

  test('labels are kept, as a copy', () => {
    const labels = { user: 'ada' };
    const account = new Account({ name: 'a', labels });
    labels.user = 'bob';
    expect(account.labels).toEqual({ user: 'ada' });
    expect(Object.isFrozen(account.labels)).toBe(true);
  });
});

describe('memory that goes to other workers', () => {
  const worker = (end: string) => `
    const [worker] = start(\`
      const stream = new Stream();
      const buffers = [attachBuffer(await received(), { stream })];
      post('attached');
      await received();
      ${end}
      post('done');
    \`);
    const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
    const resource = new cistern.AccountingResourceAdaptor(pool);
    const stream = new Stream();
    const account = new cistern.Account({ name: 'a' });
    const buffer = account.run(() => new DeviceBuffer(64 * KiB, { stream, resource }));
    const came = received(worker);
    worker.postMessage(detachBuffer(buffer));
    await came;
    show(account.liveBytes);`;
  const home = `
    for (let i = 0; i < 2000 && account.liveBytes > 0; i++) await setTimeout(1);
    show(account.liveBytes, account.peakBytes, account.totalBytes);
    process.exit();`;

  test('is paid back once it came home', () => {
    const end = runWithWorkers(`${worker('buffers.pop().dispose();')}
      worker.postMessage('go on');
      ${home}`);
    expect(end).toEqual(printed('65536', '0 65536 65536'));
  });

  test('is paid back if the worker ends without disposing it', () => {
    const end = runWithWorkers(`${worker('process.exit();')}
      worker.postMessage('go on');
      ${home}`);
    expect(end).toEqual(printed('65536', '0 65536 65536'));
  });
});

test('a limit that nothing counts against causes one warning with the name of its account', () => {
  const program = (setUp: string) => `
    import { DeviceBuffer, Stream, currentResource, setCurrentResource } from 'cistern';
    import { Account, AccountingResourceAdaptor, withQuota } from 'cistern/serving';
    ${setUp}
    const stream = new Stream();
    withQuota({ name: 'unlimited' }, () => {});
    for (let i = 0; i < 2; i++)
      new Account({ name: 'tenant' }).run(() => withQuota({ name: 'request', limitBytes: 1024 }, () => new DeviceBuffer(64, { stream })));`;
  const { status, stderr } = runModule(program(''));
  expect(status).toBe(0);
  expect(stderr.match(/CISTERN_NO_ACCOUNTING/g)).toHaveLength(1);
  expect(stderr).toMatch(/the limit of the account "tenant\/request" has no effect: .* AccountingResourceAdaptor/);
  const charged = runModule(program('setCurrentResource(new AccountingResourceAdaptor(currentResource()));'));
  expect(charged).toMatchObject({ status: 0, stderr: '' });
});
