import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, describe, expect, test } from 'vitest';
import { CudaMemoryResource, DeviceBuffer, KiB, MiB, PoolMemoryResource } from '../../../src/index.js';
import {
  Account,
  AccountingResourceAdaptor,
  AdmittingResourceAdaptor,
  type BudgetEvent,
  memorySummary,
  observeBudget,
  withQuota,
} from '../../../src/serving/index.js';
import { eventsOf, readRecording } from '../../support/read-recording.js';
import { runModule } from '../../support/run-module.js';
import { SpyResource } from '../../support/spy-resource.js';
import { stream } from '../../support/stream.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-dumps-'));
afterAll(() => rmSync(folder, { recursive: true }));

let folders = 0;
/** Runs a program with a dump for each want of memory, and returns its files and what it wrote. */
function run(program: string, into = join(folder, String(++folders))) {
  const made = runModule(
    `import { mkdirSync } from 'node:fs';
     import { CudaMemoryResource, DeviceBuffer, FallbackResourceAdaptor, LimitingResourceAdaptor, MiB, OutOfMemoryError, PoolMemoryResource, FailureCallbackResourceAdaptor, PinnedHostMemoryResource, Stream } from 'cistern';
     import { GraphMemoryResource } from 'cistern/graphs';
     import { Account, AccountingResourceAdaptor, AdmittingResourceAdaptor, SpillableBuffer, SpillingResourceAdaptor } from 'cistern/serving';
     if (!process.env.CISTERN_DUMP_ON_OUT_OF_MEMORY.includes('missing')) mkdirSync(process.env.CISTERN_DUMP_ON_OUT_OF_MEMORY, { recursive: true });
     const stream = new Stream();
     const attempt = (fn) => { try { return fn(); } catch (error) { if (!(error instanceof OutOfMemoryError)) throw error; console.log(error.message); } };
     ${program}`,
    { CISTERN_DUMP_ON_OUT_OF_MEMORY: into },
  );
  const files = into.includes('missing')
    ? []
    : readdirSync(into)
        .sort()
        .map((file) => join(into, file));
  return { ...made, files };
}

describe('a dump', () => {
  test('has what the live buffers of the stack held, for whom, the failed call, and the summary', async () => {
    const { files, stderr, stdout } = run(`
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 4 * MiB, maximumBytes: 4 * MiB });
      const resource = new AccountingResourceAdaptor(pool);
      const other = new PoolMemoryResource(new CudaMemoryResource());
      const elsewhere = new DeviceBuffer(MiB, { stream, resource: other, label: 'elsewhere' });
      const tenant = new Account({ name: 'tenant', labels: { user: 'ada' } });
      const weights = tenant.run(() => new DeviceBuffer(2 * MiB, { stream, resource, label: 'weights' }));
      const rest = new DeviceBuffer(MiB, { stream, resource });
      function load() { return new DeviceBuffer(3 * MiB, { stream, resource }); }
      attempt(load);
      console.log(weights.byteLength + rest.byteLength + elsewhere.byteLength);`);
    expect(files).toHaveLength(1);
    expect(stderr).toContain(`memory ran out; to see what it was used for, run: cistern report ${files[0]}`);
    const run_ = await readRecording(files[0] as string);
    const events = eventsOf(run_).map(({ kind, second }, i) => [kind, second, run_.accounts[run_.accountOf[i] as number]]);
    expect(events).toEqual([
      ['growth', 4 << 20, ''],
      ['allocate', 2 << 20, 'tenant'],
      ['label', 1, ''],
      ['allocate', 1 << 20, ''],
      ['failure', 3 << 20, ''],
    ]);
    expect(run_.labels).toEqual(['', 'weights']);
    expect(eventsOf(run_).at(-1)?.stack).toMatch(/^load \(/);
    const [note] = run_.notes;
    expect(note?.startsWith(`${stdout.split('\n')[0]}\n\naccounting(pool(cuda)) on device 0, `)).toBe(true);
    expect(note).toContain('user=ada');
    expect(note).not.toContain('elsewhere');
  });

  test('has no buffers whose contents have left, but says how much has', async () => {
    const { files } = run(`
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 4 * MiB, maximumBytes: 4 * MiB });
      const resource = new AccountingResourceAdaptor(new SpillingResourceAdaptor(pool, new PoolMemoryResource(new PinnedHostMemoryResource())));
      const away = new SpillableBuffer(MiB, { stream, resource, label: 'away' });
      const kept = new SpillableBuffer(2 * MiB, { stream, resource, label: 'kept' });
      const pin = kept.pinSync();
      attempt(() => new DeviceBuffer(3 * MiB, { stream, resource }));
      console.log(away.isOnDevice, pin.byteLength);`);
    const recorded = await readRecording(files[0] as string);
    expect(eventsOf(recorded).map(({ kind, second }) => [kind, second])).toEqual([
      ['growth', 4 << 20],
      ['allocate', 2 << 20],
      ['label', 1],
      ['failure', 3 << 20],
    ]);
    expect(recorded.labels).toEqual(['', 'kept']);
    expect(recorded.notes[0]).toContain(
      'Spilled\n  1 MiB of 3 MiB are on the host, 2 MiB are pinned  1 left, 0 came back  0 calls wait\n\nBuffers\n  kept  2 MiB  1 buffer',
    );
  });

  test('is not written if memory is recovered, and once if a buffer tried again', () => {
    const { files, stdout } = run(`
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 4 * MiB, maximumBytes: 4 * MiB });
      const limit = new LimitingResourceAdaptor(pool, { limitBytes: 4 * MiB });
      const kept = new DeviceBuffer(3 * MiB, { stream, resource: limit });
      const reclaiming = new FailureCallbackResourceAdaptor(limit, () => !kept.isDisposed && (kept.dispose(), true));
      const second = new DeviceBuffer(2 * MiB, { stream, resource: reclaiming });
      console.log(second.byteLength);
      attempt(() => new DeviceBuffer(3 * MiB, { stream, resource: limit }));
      console.log(second.byteLength);`);
    expect(stdout.split('\n')[0]).toBe(String(2 << 20));
    expect(files).toHaveLength(1);
  });

  test.each([
    [
      'a buffer that waits until another is unpinned',
      'const made = SpillableBuffer.create(3 * MiB, { stream, resource }); await settled(); pin[Symbol.dispose](); await made;',
    ],
    [
      'a pin that waits for memory',
      'const away = new SpillableBuffer(MiB, { stream, resource }); resource.spill(); const filler = new DeviceBuffer(2 * MiB, { stream, resource }); const pinned = away.pin(); await settled(); filler.dispose(); (await pinned)[Symbol.dispose]();',
    ],
    [
      'contents that could not be prefetched',
      'const away = new SpillableBuffer(MiB, { stream, resource }); resource.spill(); const filler = new DeviceBuffer(2 * MiB, { stream, resource }); console.log(away.prefetch());',
    ],
    [
      'garbage that made room',
      'new SpillableBuffer(2 * MiB, { stream, resource }).pinSync(); await settled(); new SpillableBuffer(2 * MiB, { stream, resource });',
    ],
    [
      'a host that is full, if nothing else is',
      'new SpillableBuffer(MiB, { stream, resource }); host.allocate(8 * MiB, stream); console.log(resource.spill());',
    ],
    [
      'a wait whose time is over, once',
      'await SpillableBuffer.create(3 * MiB, { stream, resource, timeoutMilliseconds: 1 }).catch(() => {});',
      1,
    ],
    [
      'a wait that is of no use, once',
      'pin[Symbol.dispose](); first.dispose(); await SpillableBuffer.create(9 * MiB, { stream, resource }).catch(() => {});',
      1,
    ],
    ['a buffer that is refused at once, once', 'attempt(() => new SpillableBuffer(3 * MiB, { stream, resource }));', 1],
  ])('over spilling is written only for what the program sees: %s', (_name, program, count = 0) => {
    const { files } = run(`
      const host = new PoolMemoryResource(new PinnedHostMemoryResource(), { initialBytes: 8 * MiB, maximumBytes: 8 * MiB });
      const resource = new SpillingResourceAdaptor(new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 3 * MiB }), host);
      const first = new SpillableBuffer(MiB, { stream, resource });
      const pin = first.pinSync();
      const settled = () => new Promise((resolve) => setTimeout(resolve, 5));
      ${program}`);
    expect(files).toHaveLength(count);
  });

  test.each([
    ['a retry that waits and succeeds', 'await waits(); free(); await retried;', 0],
    ['a retry whose function goes on later, and waits', 'await waits(); free(); await retried; await later;', 1],
    [
      'a retry that fails, once',
      'await second.retry(() => resource.allocate(4 * MiB, stream)).catch((error) => console.log(error.code)); free(); await retried;',
      1,
    ],
  ])('over grants is written only for what the program sees: %s', (_name, program, count) => {
    const { files } = run(`
      const resource = new AdmittingResourceAdaptor(new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 3 * MiB }), { limitBytes: 8 * MiB });
      const [first, second] = [await resource.reserve(2 * MiB), await resource.reserve(2 * MiB)];
      const pointer = first.run(() => resource.allocate(2 * MiB, stream));
      const free = () => { resource.deallocate(pointer, 2 * MiB, stream); first.dispose(); };
      const waits = () => new Promise((resolve) => setTimeout(resolve, 5));
      let later;
      const retried = second.retry(async () => {
        await undefined;
        const made = resource.allocate(2 * MiB, stream);
        later = new Promise((resolve) => setTimeout(() => resolve(attempt(() => resource.allocate(MiB, stream))), 10));
        return made;
      });
      retried.catch(() => {});
      ${program}
      process.exit();`);
    expect(files).toHaveLength(count);
  });

  test('is not written if a graph gets less memory at once than it would like, or a fallback serves', () => {
    const { files, stdout } = run(`
      const { planAllocations } = await import('cistern/planning');
      const limit = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 3.75 * MiB });
      const graphs = new GraphMemoryResource(limit, { planner: planAllocations });
      const capture = () => graphs.capture(stream, () => {
        const pointers = [MiB, MiB / 2].map((bytes) => graphs.allocate(bytes, stream));
        [MiB, MiB / 2].forEach((bytes, i) => graphs.deallocate(pointers[i], bytes, stream));
      });
      const held = [capture(), capture()];
      const fallback = new FallbackResourceAdaptor(new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 1000 }), new CudaMemoryResource());
      fallback.allocate(5000, stream);
      console.log(held.length, graphs.statistics().plannedCaptures, graphs.reservedBytes / MiB);`);
    expect(stdout).toBe('2 1 3.5\n');
    expect(files).toEqual([]);
  });

  test('is written for calls without buffers, at most ten times', () => {
    const { files } = run(`
      const limit = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: MiB });
      for (let i = 0; i < 12; i++) attempt(() => limit.allocate(2 * MiB, stream));`);
    expect(files).toHaveLength(10);
  });

  test('that cannot be written is a warning, and the program gets its error', () => {
    const { stderr, stdout } = run(
      `const limit = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: MiB });
       attempt(() => limit.allocate(2 * MiB, stream));`,
      join(folder, 'missing'),
    );
    expect(stdout).toContain('the limit of 1 MiB is reached');
    expect(stderr).toMatch(/memory ran out, and .*missing.* could not be written: /);
  });
});

describe('a summary', () => {
  test('has layers, promises, accounts and buffers, those that hold most first', async () => {
    const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 1024 * KiB, maximumBytes: 1024 * KiB });
    const admitting = new AdmittingResourceAdaptor(pool, { limitBytes: 1024 * KiB });
    const resource = new AccountingResourceAdaptor(admitting);
    const tenant = new Account({ name: 'tenant', limitBytes: 512 * KiB, labels: { user: 'ada' } });
    const grant = await admitting.reserve(512 * KiB);
    const waiting = admitting.reserve(1024 * KiB);
    const buffers = grant.run(() =>
      tenant.run(() =>
        [64, 128, 64].map((size, i) => new DeviceBuffer(size * KiB, { stream, resource, label: i === 1 ? 'weights' : 'input' })),
      ),
    );
    const withoutTimes = (text: string) => text.replace(/longest wait \d+ ms/, 'longest wait N ms').replace(/: .* are free/, '');
    expect(withoutTimes(memorySummary(resource))).toBe(
      [
        `accounting(admitting(pool(cuda))) on device 0, ${resource.device.name}`,
        '',
        'Layers',
        '  pool  reserved 1 MiB, at most 1 MiB  allocated 256 KiB  free 768 KiB, at most 768 KiB in one piece  1 block',
        '  cuda  reserved 1 MiB, at most 1 MiB',
        '',
        'Promised',
        '  512 KiB of 1 MiB  1 grant, 0 B outside of grants  1 request waits for 1 MiB  longest wait N ms',
        '',
        'Accounts',
        '  tenant  256 KiB of 512 KiB  at most 256 KiB  user=ada',
        '',
        'Buffers',
        '  input    128 KiB  2 buffers',
        '  weights  128 KiB  1 buffer',
      ].join('\n'),
    );
    for (const buffer of buffers) buffer.dispose();
    grant.dispose();
    (await waiting).dispose();
  });

  test('of a resource of the program itself has its layers, and of nothing is refused', () => {
    expect(memorySummary(new SpyResource())).toMatch(/^spy on device 0, /);
    expect(() => memorySummary(undefined as never)).toThrow(/resource must be a MemoryResource/);
  });

  test('shows ten accounts, and how many more there are', () => {
    const resource = new AccountingResourceAdaptor(new SpyResource());
    const pointers = Array.from({ length: 12 }, (_, i) => withQuota({ name: `a${i}` }, () => resource.allocate(256 * (i + 1), stream)));
    const lines = memorySummary(resource).split('\n');
    expect(lines.filter((line) => /^ {2}a\d/.test(line))).toHaveLength(10);
    expect(lines.at(-1)).toBe('  and 2 more');
    for (const [i, pointer] of pointers.entries()) resource.deallocate(pointer, 256 * (i + 1), stream);
  });
});

describe('an address', () => {
  test('tells the account that it is charged to, until it is freed', () => {
    const resource = new AccountingResourceAdaptor(new SpyResource());
    const account = new Account({ name: 'a' });
    const [charged, uncharged] = [account.run(() => resource.allocate(256, stream)), resource.allocate(256, stream)];
    expect([resource.accountOf(charged), resource.accountOf(uncharged)]).toEqual([account, undefined]);
    resource.deallocate(charged, 256, stream);
    expect(resource.accountOf(charged)).toBeUndefined();
    expect(() => resource.accountOf(-1)).toThrow(/pointer/);
    resource.deallocate(uncharged, 256, stream);
  });
});

describe('a budget', () => {
  const device = stream.device;
  const usedShare = () => 1 - device.memoryInfo().freeBytes / device.memoryInfo().totalBytes;
  const resource = new CudaMemoryResource();
  const bytes = 64 * MiB;

  test('tells once of the highest share that was passed, and again after use fell', () => {
    const told: BudgetEvent[] = [];
    const { totalBytes } = device.memoryInfo();
    const step = bytes / totalBytes;
    const shares = [usedShare() + 1.5 * step, usedShare() + step / 2, 1] as const;
    const budget = observeBudget((event) => told.push(event), { device, shares, intervalMilliseconds: 1_000_000 });
    budget.check();
    expect(told).toEqual([]);
    const first = resource.allocate(bytes, stream);
    budget.check();
    budget.check();
    expect(told.map(({ share }) => share)).toEqual([shares[1]]);
    const second = resource.allocate(bytes, stream);
    budget.check();
    resource.deallocate(second, bytes, stream);
    resource.deallocate(first, bytes, stream);
    budget.check();
    const both = [resource.allocate(bytes, stream), resource.allocate(bytes, stream)];
    budget.check();
    expect(told.map(({ share }) => share)).toEqual([shares[1], shares[0], shares[0]]);
    const { freeBytes } = device.memoryInfo();
    expect(told.at(-1)).toEqual({ device, share: shares[0], usedBytes: totalBytes - freeBytes, freeBytes, totalBytes });
    for (const pointer of both) resource.deallocate(pointer, bytes, stream);
    budget.dispose();
    budget.dispose();
  });

  test('is looked at by itself, until it is disposed', async () => {
    let told = 0;
    const budget = observeBudget(() => told++, {
      shares: [usedShare() + bytes / 2 / device.memoryInfo().totalBytes],
      intervalMilliseconds: 1,
    });
    const pointer = resource.allocate(bytes, stream);
    await expect.poll(() => told).toBe(1);
    resource.deallocate(pointer, bytes, stream);
    budget.dispose();
    const again = resource.allocate(bytes, stream);
    await sleep(20);
    expect(told).toBe(1);
    resource.deallocate(again, bytes, stream);
  });

  test('needs a function, and shares above 0 and at most 1', () => {
    expect(() => observeBudget(undefined as never)).toThrow(/tell must be a function/);
    expect(() => observeBudget(() => {}, { shares: [0] })).toThrow(/shares must be above 0 and at most 1, got 0/);
    expect(() => observeBudget(() => {}, { shares: [1.1] })).toThrow(/got 1.1/);
    expect(() => observeBudget(() => {}, { shares: ['1' as never] })).toThrow(/shares must be numbers/);
    expect(() => observeBudget(() => {}, { shares: 1 as never })).toThrow(/shares must be an array/);
    expect(() => observeBudget(() => {}, { device: 0 as never })).toThrow(/device must be a Device/);
    expect(() => observeBudget(() => {}, { intervalMilliseconds: -1 })).toThrow(/intervalMilliseconds/);
  });
});
