import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { KiB } from '../../../src/index.js';
import { AdmittingResourceAdaptor } from '../../../src/serving/index.js';
import { caught } from '../../support/errors.js';
import { SpyResource } from '../../support/spy-resource.js';
import { stream } from '../../support/stream.js';
import { runWithWorkers } from '../../support/workers.js';

const shared = (name: string, limitBytes = 64 * KiB, maximumOvertakes = 16) =>
  new AdmittingResourceAdaptor(new SpyResource(), { limitBytes, maximumOvertakes, shared: name });

/** The lines that a program with workers prints. */
function run(body: string): string[] {
  const { stdout, ...end } = runWithWorkers(body, {
    everywhere: `
      const { AdmittingResourceAdaptor, PinnedHostMemoryResource, SpillableBuffer, SpillingResourceAdaptor } = cistern;
      const stream = new Stream();
      const device = new CudaMemoryResource();
      // Another one before it, which must not be the only one that is told.
      const other = new AdmittingResourceAdaptor(device, { limitBytes: 64 * KiB });
      const resource = new AdmittingResourceAdaptor(device, { limitBytes: 64 * KiB, shared: 'all' });
      const until = async (isSo) => { while (!isSo()) await new Promise((done) => globalThis.setTimeout(done, 5)); };`,
  });
  expect(end).toEqual({ status: 0, signal: null, stderr: '' });
  return stdout.trimEnd().split('\n');
}

describe('a queue that adaptors share', () => {
  test('has one limit, and serves in the order of the calls', async () => {
    const [first, second] = [shared('a'), shared('a')];
    const order: string[] = [];
    const grant = await first.reserve(48 * KiB);
    const waiting = [second, first].map((each, i) =>
      each.reserve(48 * KiB).then((admitted) => {
        order.push(`${i}`);
        admitted.dispose();
      }),
    );
    await nextTurn();
    expect([order, first.statistics().waiting]).toEqual([[], 2]);
    expect(second.statistics()).toEqual(first.statistics());
    grant.dispose();
    await Promise.all(waiting);
    expect([order, second.statistics().committedBytes]).toEqual([['0', '1'], 0]);
    for (const each of [first, second]) each.dispose();
  });

  test('has one limit for what is allocated outside of grants, too, down to the last byte', async () => {
    const [first, second] = [shared('e'), shared('e')];
    const refused = (bytes: number) =>
      expect(caught(() => second.allocate(bytes, stream))).toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY' });
    refused(64 * KiB + 1);
    second.deallocate(second.allocate(64 * KiB, stream), 64 * KiB, stream);
    const grant = await first.reserve(48 * KiB);
    refused(16 * KiB + 1);
    const pointer = second.allocate(16 * KiB, stream);
    refused(1);
    expect(first.statistics()).toMatchObject({ committedBytes: 64 * KiB, outsideBytes: 16 * KiB });
    grant.dispose();
    refused(48 * KiB + 1);
    second.deallocate(pointer, 16 * KiB, stream);
    expect(second.statistics()).toMatchObject({ committedBytes: 0, outsideBytes: 0 });
    for (const each of [first, second]) each.dispose();
  });

  test('has one limit for what is allocated outside of grants also after a wait', async () => {
    const [first, second] = [shared('f'), shared('f')];
    const grant = await first.reserve(64 * KiB);
    const waiting = second.reserve(16 * KiB);
    grant.dispose();
    const admitted = await waiting;
    const pointer = second.allocate(32 * KiB, stream);
    expect(first.statistics()).toMatchObject({ committedBytes: 48 * KiB, outsideBytes: 32 * KiB });
    expect(caught(() => first.allocate(16 * KiB + 1, stream))).toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY' });
    second.deallocate(pointer, 32 * KiB, stream);
    admitted.dispose();
    for (const each of [first, second]) each.validate();
    for (const each of [first, second]) each.dispose();
  });

  test('must be the same for all, until nobody has anything of it', () => {
    const first = shared('b');
    expect(caught(() => shared('b', 128 * KiB))).toMatchObject({
      code: 'ERR_INVALID_ARG_VALUE',
      message: 'limitBytes must be 65536, as in the other adaptors that share "b", got 131072',
    });
    expect(caught(() => shared('b', 64 * KiB, 1))).toMatchObject({ message: expect.stringContaining('maximumOvertakes must be 16') });
    expect(caught(() => shared(''))).toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    const pointer = first.allocate(256, stream);
    first.dispose();
    expect(caught(() => shared('b', 128 * KiB))).toBeInstanceOf(RangeError);
    first.deallocate(pointer, 256, stream);
    const ended = shared('c');
    for (const refused of [() => shared('c', 128 * KiB), () => shared('c', 64 * KiB, 1)])
      expect(caught(refused)).toBeInstanceOf(RangeError);
    ended.dispose();
    const other = shared('c', 128 * KiB);
    expect(other.statistics().limitBytes).toBe(128 * KiB);
    other.dispose();
  });

  test('ends only the waits of the adaptor that is disposed', async () => {
    const [first, second] = [shared('d'), shared('d')];
    const grant = await first.reserve(64 * KiB);
    const [ended, kept] = [second.reserve(256), first.reserve(256)];
    second.dispose();
    await expect(ended).rejects.toMatchObject({ code: 'ERR_CISTERN_DISPOSED' });
    grant.dispose();
    (await kept).dispose();
    first.dispose();
  });
});

describe('a queue of several workers', () => {
  test('makes each wait for the others, and wakes it', () => {
    const lines = run(`
      const grant = await resource.reserve(48 * KiB);
      const [worker] = start(\`
        // Nothing else keeps this worker alive.
        resource.reserve(32 * KiB).then((grant) => { post(['worker', grant.bytes]); grant.dispose(); });
        post(['asked']);\`);
      const ended = once(worker, 'exit');
      show(await received(worker));
      await until(() => resource.statistics().waiting === 1);
      const later = resource.reserve(64 * KiB);
      const told = received(worker);
      grant.dispose();
      show(await told);
      show('main', (await later).bytes);
      (await later).dispose();
      await ended;
      show(resource.statistics().committedBytes);`);
    expect(lines).toEqual(["[ 'asked' ]", "[ 'worker', 32768 ]", 'main 65536', '0']);
  });

  test('goes on without one that is ended in its wait, or with a promise', () => {
    const lines = run(`
      const grant = await resource.reserve(32 * KiB);
      const [holder, waiter] = [...start(\`
        globalThis.kept = await resource.reserve(32 * KiB);
        kept.run(() => resource.allocate(8 * KiB, stream));
        post('has it'); setInterval(() => {}, 1000);\`), ...start(\`resource.reserve(64 * KiB); post('waits'); setInterval(() => {}, 1000);\`)];
      await Promise.all([received(holder), received(waiter)]);
      await until(() => resource.statistics().waiting === 1);
      const mine = resource.reserve(32 * KiB);
      await waiter.terminate();
      show(resource.statistics().waiting, resource.statistics().committedBytes / KiB);
      await holder.terminate();
      // What the worker had allocated counts until it is freed.
      show((await mine).bytes / KiB, resource.statistics().waiting);
      (await mine).dispose();
      grant.dispose();
      const all = await resource.reserve(64 * KiB);
      show(all.bytes / KiB, resource.statistics().committedBytes / KiB);`);
    expect(lines).toEqual(['1 64', '32 0', '64 64']);
  });

  test('refuses the youngest if all who hold something want more', () => {
    const lines = run(`
      const grant = await resource.reserve(32 * KiB);
      const [worker] = start(\`
        const grant = await resource.reserve(32 * KiB);
        post('has it');
        await grant.grow(16 * KiB).catch((error) => post([error.code, error.reason]));
        grant.dispose();\`);
      await received(worker);
      const told = received(worker);
      await grant.grow(16 * KiB);
      show(await told, grant.bytes / KiB);
      grant.dispose();`);
    expect(lines).toEqual(["[ 'ERR_CISTERN_NOT_ADMITTED', 'deadlock' ] 48"]);
  });

  test('keeps a promise that another worker made possible just before the wait was to end', () => {
    const lines = run(`
      const [worker] = start(\`
        const grant = await resource.reserve(64 * KiB);
        post('has it');
        await received();
        grant.dispose();
        Atomics.store(cells, 0, 1);
        Atomics.notify(cells, 0);\`);
      await received(worker);
      const abort = new AbortController();
      const waiting = resource.reserve(16 * KiB, { signal: abort.signal });
      await until(() => resource.statistics().waiting === 1);
      worker.postMessage('give back');
      // This thread is not told of it before the signal.
      Atomics.wait(cells, 0, 0);
      abort.abort(new Error('too late'));
      show((await waiting).bytes / KiB, resource.statistics().committedBytes / KiB);
      (await waiting).dispose();
      resource.validate();`);
    expect(lines).toEqual(['16 16']);
  });

  test('makes idle buffers of others leave', () => {
    const lines = run(`
      const [worker] = start(\`
        const above = new SpillingResourceAdaptor(resource, new PoolMemoryResource(new PinnedHostMemoryResource()));
        globalThis.buffer = new SpillableBuffer(48 * KiB, { stream, resource: above });
        post('has it');
        await received();
        post(buffer.isOnDevice);
        buffer.dispose();\`);
      await received(worker);
      const grant = await resource.reserve(32 * KiB);
      const told = received(worker);
      worker.postMessage('?');
      show(await told, grant.bytes / KiB);
      grant.dispose();`);
    expect(lines).toEqual(['false 32']);
  });

  test('lets a grant try again once another worker has freed memory, even if that keeps its own grant', () => {
    const lines = run(`
      const large = new AdmittingResourceAdaptor(device, { limitBytes: 300 * MiB, shared: 'large' });
      const grant = await large.reserve(192 * MiB);
      const [worker] = start(\`
        const large = new AdmittingResourceAdaptor(device, { limitBytes: 300 * MiB, shared: 'large' });
        const grant = await large.reserve(100 * MiB);
        const pointer = grant.run(() => large.allocate(100 * MiB, stream));
        post('has it');
        await received();
        large.deallocate(pointer, 100 * MiB, stream);
        post('freed');
        await received();
        grant.dispose();\`);
      await received(worker);
      const retried = grant.retry(() => large.allocate(192 * MiB, stream));
      await until(() => large.statistics().waiting === 1);
      worker.postMessage('free');
      await received(worker);
      const pointer = await retried;
      show(large.statistics().waiting, large.statistics().committedBytes / MiB, grant.usedBytes / MiB);
      large.deallocate(pointer, 192 * MiB, stream);
      grant.dispose();
      worker.postMessage('end');`);
    expect(lines).toEqual(['0 292 192']);
  });

  test('keeps promises within the limit, whatever workers do at once, and forgets nobody', () => {
    const lines = run(`
      const workers = start(\`
        let state = number + 1;
        const below = (n) => { state = (state * 1103515245 + 12345) % 2147483648; return Math.floor(state / 65536) % n; };
        const counts = { admitted: 0, deadlock: 0, timeout: 0, 'too-large': 0, aborted: 0, excess: 0 };
        const note = (bytes) => { if (Atomics.add(cells, 0, bytes) + bytes > 64 * KiB) counts.excess++; };
        const attempt = async (ask) => {
          try { const result = await ask(); counts.admitted++; return result; }
          catch (error) { counts[error.reason ?? 'aborted']++; return undefined; }
        };
        const task = async () => {
          for (let i = 0; i < 150; i++) {
            const signal = below(8) === 0 ? AbortSignal.timeout(below(3)) : undefined;
            const options = { priority: below(3), timeoutMilliseconds: 20_000, ...(signal && { signal }) };
            const grant = await attempt(() => resource.reserve(KiB * (1 + below(40)), options));
            if (grant === undefined) continue;
            note(grant.bytes);
            const pointer = grant.run(() => resource.allocate(KiB, stream));
            if (below(2) === 0) {
              const more = KiB * below(16);
              if (await attempt(() => grant.grow(more).then(() => true))) note(more);
            }
            if (below(2) === 0) await new Promise((done) => globalThis.setTimeout(done, below(2)));
            note(-grant.bytes);
            grant.dispose();
            resource.deallocate(pointer, KiB, stream);
          }
        };
        await Promise.all([task(), task(), task()]);
        post(counts);\`, 4);
      const all = await Promise.all(workers.map(received));
      const sum = (name) => all.reduce((total, counts) => total + counts[name], 0);
      show(sum('excess'), sum('timeout'), sum('too-large'), sum('admitted') > 900, Atomics.load(cells, 0), resource.statistics().committedBytes);`);
    expect(lines).toEqual(['0 0 0 true 0 0']);
  });
});
