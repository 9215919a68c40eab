import { describe, expect, test } from 'vitest';
import { CudaMemoryResource, LimitingResourceAdaptor, MiB, StatisticsResourceAdaptor } from '../../src/index.js';
import { caught } from '../support/errors.js';
import { type ProcessEnd, printed } from '../support/run-module.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';
import { runWithWorkers } from '../support/workers.js';

function limited(limitBytes: number, shared: string): LimitingResourceAdaptor {
  return new LimitingResourceAdaptor(new SpyResource(), { limitBytes, shared });
}

function run(body: string): ProcessEnd {
  return runWithWorkers(body, { everywhere: 'const stream = new Stream();' });
}

describe('a limit that adaptors share', () => {
  test('is one limit for all of them', () => {
    const first = limited(1024, 'a');
    const second = limited(1024, 'a');
    const pointer = first.allocate(768, stream);
    expect(second.allocatedBytes).toBe(768);
    expect(caught(() => second.allocate(512, stream))).toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      message: 'the limit of 1 KiB that workers share as "a" is reached: 512 B (512 bytes) were asked for, 256 B are left',
      requestedBytes: 512,
      availableBytes: 256,
      limitBytes: 1024,
    });
    first.deallocate(pointer, 768, stream);
    const other = second.allocate(1024, stream);
    expect(first.allocatedBytes).toBe(1024);
    first.dispose();
    second.dispose();
    expect(second.allocatedBytes).toBe(1024);
    second.deallocate(other, 1024, stream);
    expect(second.allocatedBytes).toBe(0);
  });

  test('is not that of another name, nor that of counters with the same name', () => {
    const first = limited(1024, 'a');
    const second = limited(1024, 'b');
    const statistics = new StatisticsResourceAdaptor(new SpyResource(), { shared: 'a' });
    first.allocate(1024, stream);
    expect([second.allocatedBytes, statistics.sharedStatistics().bytes.current]).toEqual([0, 0]);
    for (const each of [first, second, statistics]) each.dispose();
  });

  test('must be the same for all of them, until the last has ended', () => {
    const first = limited(1024, 'c');
    expect(caught(() => limited(2048, 'c'))).toMatchObject({
      code: 'ERR_INVALID_ARG_VALUE',
      message: 'limitBytes must be 1024, as in the other adaptors that share "c", got 2048',
    });
    const pointer = first.allocate(1, stream);
    first.dispose();
    expect(caught(() => limited(2048, 'c'))).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
    first.deallocate(pointer, 1, stream);
    const other = limited(2048, 'c');
    expect(other.limitBytes).toBe(2048);
    other.dispose();
  });

  test('counts nothing that the upstream refuses, and nothing for zero bytes', () => {
    const resource = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 2 ** 50, shared: 'd' });
    expect(() => resource.allocate(2 ** 49, stream)).toThrow('out of memory');
    expect(resource.allocate(0, stream)).toBe(0);
    expect(resource.allocatedBytes).toBe(0);
    resource.dispose();
  });

  test('refuses a request that rounding up brings beyond 2^53 - 1', () => {
    const resource = limited(1024, 'e');
    expect(caught(() => resource.allocate(2 ** 53 - 1, stream))).toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      requestedBytes: 2 ** 53 - 1,
      availableBytes: 1024,
    });
    resource.dispose();
  });

  test.each(['', 1, null])('cannot be called %j', (shared) => {
    expect(() => new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 1, shared: shared as string })).toThrow(
      'shared must be a non-empty string',
    );
    expect(() => new StatisticsResourceAdaptor(new SpyResource(), { shared: shared as string })).toThrow(
      'shared must be a non-empty string',
    );
  });

  test('is never exceeded while workers compete, and counts nothing at the end', () => {
    const end = run(`
      const workers = start(\`
        const limitBytes = 64 * 256;
        // Counts, beside the adaptor, what is allocated at this moment.
        const below = new CallbackMemoryResource(
          (bytes) => {
            const live = Atomics.add(cells, 0, bytes) + bytes;
            if (live > limitBytes) Atomics.store(cells, 1, live);
            return 256 * (1 + Atomics.add(cells, 2, 1));
          },
          (_, bytes) => { Atomics.sub(cells, 0, bytes); },
        );
        const resource = new LimitingResourceAdaptor(below, { limitBytes, shared: 'budget' });
        let refused = 0;
        const live = [];
        Atomics.add(cells, 3, 1);
        while (Atomics.load(cells, 3) < 4);
        for (let i = 0; i < 40_000; i++) {
          const bytes = 256 * (1 + (i * 7 + number) % 13);
          try { live.push([resource.allocate(bytes, stream), bytes]); } catch { refused++; }
          if (live.length > 3 || refused % 2 === 1) { const each = live.shift(); if (each) resource.deallocate(...each, stream); }
        }
        for (const each of live) resource.deallocate(...each, stream);
        post(refused > 0);
        await received();
        post(resource.allocatedBytes);
      \`, 4);
      // On a busy machine one may run while no other does.
      show((await Promise.all(workers.map(received))).includes(true));
      for (const worker of workers) worker.postMessage('go on');
      show((await Promise.all(workers.map(received))).join(), Atomics.load(cells, 0), Atomics.load(cells, 1));
      for (const worker of workers) await worker.terminate();
    `);
    expect(end).toEqual(printed('true', '0,0,0,0 0 0'));
  });

  test('counts what a terminated worker held until that is free, and frees it if the limit is reached', () => {
    const end = run(`
      const resource = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 10 * MiB, shared: 'budget' });
      for (const ask of [false, true]) {
        const [worker] = start(\`
          const resource = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 10 * MiB, shared: 'budget' });
          resource.allocate(8 * MiB, stream);
          post('allocated');
          await received();
        \`, 1);
        await received(worker);
        const live = resource.allocatedBytes / MiB;
        await worker.terminate();
        const ended = resource.allocatedBytes / MiB;
        let pointer = 0;
        if (ask) pointer = resource.allocate(10 * MiB, stream);
        else new Stream().dispose();
        show(live, ended, resource.allocatedBytes / MiB);
        resource.deallocate(pointer, 10 * MiB, stream);
      }
    `);
    expect(end).toEqual(printed('8 8 0', '8 8 10'));
  });

  test('counts a buffer whose giver has ended as long as another worker has it', () => {
    const end = run(`
      const options = { limitBytes: 10 * MiB, shared: 'budget' };
      const resource = new LimitingResourceAdaptor(new CudaAsyncMemoryResource(), options);
      const [worker] = start(\`
        const resource = new LimitingResourceAdaptor(new CudaAsyncMemoryResource(), { limitBytes: 10 * MiB, shared: 'budget' });
        post(detachBuffer(new DeviceBuffer(8 * MiB, { resource, stream })));
        await received();
      \`, 1);
      const buffer = attachBuffer(await received(worker), { stream });
      await worker.terminate();
      let code;
      try { resource.allocate(4 * MiB, stream); } catch (error) { code = error.code; }
      show(code, resource.allocatedBytes / MiB);
      buffer.dispose();
      resource.deallocate(resource.allocate(4 * MiB, stream), 4 * MiB, stream);
      show(resource.allocatedBytes);
    `);
    expect(end).toEqual(printed('ERR_CISTERN_OUT_OF_MEMORY 8', '0'));
  });

  test('counts at most what an ended worker has left', () => {
    const end = run(`
      const resource = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 10 * MiB, shared: 'budget' });
      const [worker] = start(\`
        const unlimited = new CudaMemoryResource();
        const resource = new LimitingResourceAdaptor(unlimited, { limitBytes: 10 * MiB, shared: 'budget' });
        resource.allocate(8 * MiB, stream);
        post(detachBuffer(new DeviceBuffer(256, { resource: unlimited, stream })));
        await received();
      \`, 1);
      const buffer = attachBuffer(await received(worker), { stream });
      await worker.terminate();
      resource.deallocate(resource.allocate(4 * MiB, stream), 4 * MiB, stream);
      show(resource.allocatedBytes);
      buffer.dispose();
      new Stream().dispose();
      show(resource.allocatedBytes);
    `);
    expect(end).toEqual(printed('256', '0'));
  });

  test('waits for another worker that is freeing what an ended worker left', () => {
    const end = run(`
      const resource = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 10 * MiB, shared: 'budget' });
      const text = \`
        const resource = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 10 * MiB, shared: 'budget' });
        if (number === 0) resource.allocate(10 * MiB, stream);
        post('ready');
        await received();
        post('asking');
        const pointer = resource.allocate(4 * MiB, stream);
        post('allocated');
        await received();
      \`;
      const [holder, other] = start(text, 2);
      await Promise.all([received(holder), received(other)]);
      const busy = new CudaMemoryResource().allocate(64 * MiB, stream);
      for (let i = 0; i < 12; i++) cistern.set(busy, i, 1, 64 * MiB, stream);
      await holder.terminate();
      other.postMessage('ask');
      await received(other);
      const allocated = received(other);
      await setTimeout(100);
      resource.allocate(4 * MiB, stream);
      await allocated;
      show(resource.allocatedBytes / MiB);
      await other.terminate();
    `);
    expect(end).toEqual(printed('8'));
  });

  test('ends with its last worker, once the memory that the worker left is free', () => {
    const end = run(`
      const [worker] = start(\`
        const limited = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 10 * MiB, shared: 'budget' });
        const counted = new StatisticsResourceAdaptor(limited, { shared: 'budget' });
        counted.allocate(8 * MiB, stream);
        post('allocated');
        await received();
      \`, 1);
      await received(worker);
      await worker.terminate();
      new Stream().dispose();
      const limited = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 20 * MiB, shared: 'budget' });
      const counted = new StatisticsResourceAdaptor(limited, { shared: 'budget' });
      show(limited.limitBytes / MiB, counted.sharedStatistics().bytes.total);
    `);
    expect(end).toEqual(printed('20 0'));
  });

  test('is right however workers are terminated', () => {
    const end = run(`
      const options = { limitBytes: 64 * MiB, shared: 'budget' };
      const resource = new StatisticsResourceAdaptor(new LimitingResourceAdaptor(new CudaMemoryResource(), options), { shared: 'budget' });
      for (let round = 0; round < 12; round++) {
        const workers = start(\`
          const limited = new LimitingResourceAdaptor(new CudaAsyncMemoryResource(), { limitBytes: 64 * MiB, shared: 'budget' });
          const resource = new StatisticsResourceAdaptor(limited, { shared: 'budget' });
          const live = [];
          post('running');
          for (let i = 0; ; i++) {
            live.push(resource.allocate(1000 + i % 5000, stream));
            if (live.length > 100) resource.deallocate(live.shift(), 1000 + (i - 100) % 5000, stream);
            // Otherwise it queues what the device takes minutes to run.
            if (i % 500 === 499) stream.synchronizeSync();
          }
        \`, 2);
        for (const worker of workers) worker.on('error', (error) => show(error.message));
        await Promise.all(workers.map(received));
        await setTimeout(round);
        await Promise.all(workers.map((worker) => worker.terminate()));
      }
      new Stream().dispose();
      const { bytes, allocations } = resource.sharedStatistics();
      show(resource.upstream.allocatedBytes, bytes.current, allocations.current, bytes.peak > 0, bytes.total > 1e6);
    `);
    expect(end).toEqual(printed('0 0 0 true true'));
  });
});

describe('counters that adaptors share', () => {
  test('count what all of them allocate, and their own counts remain', () => {
    const first = new StatisticsResourceAdaptor(new SpyResource(), { shared: 'a' });
    const second = new StatisticsResourceAdaptor(new SpyResource(), { shared: 'a' });
    const pointer = first.allocate(100, stream);
    second.pushCounters();
    const other = second.allocate(50, stream);
    first.deallocate(pointer, 100, stream);
    expect(second.sharedStatistics()).toEqual({
      bytes: { current: 50, peak: 150, total: 150 },
      allocations: { current: 1, peak: 2, total: 2 },
      failedAllocations: 0,
    });
    expect(first.statistics().bytes).toEqual({ current: 0, peak: 100, total: 100 });
    second.deallocate(other, 50, stream);
    expect(first.sharedStatistics().bytes.current).toBe(0);
    expect(Object.isFrozen(first.sharedStatistics().bytes)).toBe(true);
    first.dispose();
    expect(() => first.sharedStatistics()).toThrow('disposed');
    second.dispose();
    const third = new StatisticsResourceAdaptor(new SpyResource(), { shared: 'a' });
    expect(third.sharedStatistics().bytes.total).toBe(0);
    third.dispose();
  });

  test('count failures', () => {
    const limiting = new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 1 * MiB });
    const resource = new StatisticsResourceAdaptor(limiting, { shared: 'a' });
    expect(() => resource.allocate(2 * MiB, stream)).toThrow();
    expect(resource.sharedStatistics().failedAllocations).toBe(1);
    resource.dispose();
  });

  test('free what the upstream has allocated if they cannot count it', () => {
    const upstream = new SpyResource();
    const resource = new StatisticsResourceAdaptor(upstream, { shared: 'b' });
    expect(caught(() => resource.allocate(Number.NaN, stream))).toMatchObject({ code: 'ERR_OUT_OF_RANGE' });
    expect(upstream.alignments).toEqual([]);
    upstream.meanwhile = () => resource.dispose();
    expect(caught(() => resource.allocate(256, stream))).toMatchObject({ code: 'ERR_CISTERN_DISPOSED' });
    expect(upstream.fences.length).toBe(1);
    expect(resource.statistics().bytes.total).toBe(0);
  });

  test('leave the error of an upstream as it is if the adaptor is disposed during the call', () => {
    const upstream = new SpyResource();
    const limiting = new LimitingResourceAdaptor(upstream, { limitBytes: 1 * MiB });
    const resource = new StatisticsResourceAdaptor(limiting, { shared: 'c' });
    upstream.meanwhile = () => {
      resource.dispose();
      limiting.allocate(2 * MiB, stream);
    };
    expect(caught(() => resource.allocate(256, stream))).toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY' });
  });

  test('forget the memory of an ended worker that no driver knows', () => {
    const end = run(`
      const resource = new StatisticsResourceAdaptor(new CudaMemoryResource(), { shared: 'training' });
      const [worker] = start(\`
        const made = new CallbackMemoryResource(() => 256, () => {});
        new StatisticsResourceAdaptor(made, { shared: 'training' }).allocate(8 * MiB, stream);
        post('allocated');
        await received();
      \`, 1);
      await received(worker);
      await worker.terminate();
      resource.allocate(8 * MiB, stream);
      show(resource.sharedStatistics().bytes.peak / MiB);
    `);
    expect(end).toEqual(printed('8'));
  });

  test('have no peak of memory that an ended worker no longer has', () => {
    const end = run(`
      const resource = new StatisticsResourceAdaptor(new CudaMemoryResource(), { shared: 'training' });
      const [worker] = start(\`
        new StatisticsResourceAdaptor(new CudaMemoryResource(), { shared: 'training' }).allocate(8 * MiB, stream);
        post('allocated');
        await received();
      \`, 1);
      await received(worker);
      await worker.terminate();
      new Stream().dispose();
      resource.allocate(8 * MiB, stream);
      const { bytes } = resource.sharedStatistics();
      show(bytes.current / MiB, bytes.peak / MiB);
    `);
    expect(end).toEqual(printed('8 8'));
  });

  test('are refused if they are not there', () => {
    const resource = new StatisticsResourceAdaptor(new SpyResource());
    expect(caught(() => resource.sharedStatistics())).toMatchObject({
      code: 'ERR_CISTERN_INVALID_STATE',
      message: 'cannot read shared statistics: the option shared is not set',
    });
  });

  test('know the exact peak of workers that count at the same time', () => {
    const end = run(`
      const resource = new StatisticsResourceAdaptor(new CudaAsyncMemoryResource(), { shared: 'training' });
      const workers = start(\`
        const resource = new StatisticsResourceAdaptor(new CudaAsyncMemoryResource(), { shared: 'training' });
        post('ready');
        for (let round = 1; round <= 20; round++) {
          await received();
          const pointers = Array.from({ length: 50 }, () => resource.allocate(round * 256, stream));
          post('allocated');
          await received();
          for (const pointer of pointers) resource.deallocate(pointer, round * 256, stream);
          post('freed');
        }
      \`, 4);
      await Promise.all(workers.map(received));
      const step = async () => {
        const answers = workers.map(received);
        for (const worker of workers) worker.postMessage('go on');
        await Promise.all(answers);
      };
      let wrong = 0;
      for (let round = 1; round <= 20; round++) {
        await step();
        const { bytes, allocations } = resource.sharedStatistics();
        if (bytes.current !== 200 * round * 256 || bytes.peak !== bytes.current || allocations.current !== 200) wrong++;
        await step();
        if (resource.sharedStatistics().bytes.current !== 0) wrong++;
      }
      const { bytes, allocations } = resource.sharedStatistics();
      show(wrong, bytes.peak / 256, bytes.total / 256, allocations.peak, allocations.total);
    `);
    expect(end).toEqual(printed('0 4000 42000 200 4000'));
  });
});
