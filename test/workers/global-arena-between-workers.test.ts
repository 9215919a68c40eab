import { describe, expect, test } from 'vitest';
import { type ProcessEnd, printed } from '../support/run-module.js';
import { runWithWorkers } from '../support/workers.js';

/** In all of them, `open()` opens the same arena of 8 MiB. */
function run(body: string, timeoutMilliseconds?: number): ProcessEnd {
  const everywhere = `
    const open = (options) => new GlobalArenaMemoryResource({ name: 'test', arenaBytes: 8 * MiB, superblockBytes: 256 * KiB, ...options });
    const stream = new Stream({ nonBlocking: true });
    const messageOf = (action) => { try { action(); return 'nothing'; } catch (error) { return error.message; } };
  `;
  return runWithWorkers(body, { everywhere, deviceMebibytes: 64, timeoutMilliseconds });
}

/** A worker whose pool has 6 MiB free, and then runs a text. */
function withFreeMemory(text: string): string {
  return `
    const pool = new PoolMemoryResource(open(), { deallocationEvents: 'deferred' });
    pool.deallocate(pool.allocate(6 * MiB, stream), 6 * MiB, stream);
    post(pool.reservedBytes);
    ${text}`;
}

describe('one arena for all workers', () => {
  test('gives one worker what another has free, without a call of either', () => {
    const end = run(`
      const [worker] = start(\`${withFreeMemory(`
        await received();
        post(pool.reservedBytes);
      `)}\`);
      show((await received(worker)) / 2 ** 20);
      const arena = open({ waitMilliseconds: 5000 });
      const pool = new PoolMemoryResource(arena);
      const pointer = pool.allocate(8 * MiB, stream);
      show(arena.statistics().usedBytes / MiB, arena.statistics().workers);
      worker.postMessage('go on');
      show(await received(worker));
      await worker.terminate();
    `);
    expect(end).toEqual(printed('6', '8 2', '0'));
  });

  test('makes the taker wait for the stream that freed the memory, in another worker', () => {
    const end = run(`
      const checker = checkOrder();
      const [worker] = start(\`
        const checker = checkOrder();
        const pool = new PoolMemoryResource(open(), { deallocationEvents: 'deferred' });
        const buffer = new DeviceBuffer(8 * MiB, { resource: pool, stream });
        const hold = stream.hold();
        buffer.fill(1);
        buffer.dispose();
        post('freed');
        await received();
        hold.release();
        post(checker.violations.length);
      \`);
      await received(worker);
      const pool = new PoolMemoryResource(open({ waitMilliseconds: 5000 }));
      const buffer = new DeviceBuffer(8 * MiB, { resource: pool, stream });
      buffer.fill(2);
      await setTimeout(20);
      show(stream.query());
      const contents = buffer.toHost();
      worker.postMessage('go on');
      show(await received(worker), [...new Set(await contents)].join(), checker.violations.length);
      await worker.terminate();
    `);
    expect(end).toEqual(printed('false', '0 2 0'));
  });

  test('waits for a worker that does not answer only once, and says so', () => {
    const end = run(`
      const [worker] = start(\`${withFreeMemory(`
        Atomics.wait(cells, 0, 0);
        await received();
      `)}\`);
      await received(worker);
      const arena = open({ waitMilliseconds: 200 });
      const times = [];
      let message;
      for (let i = 0; i < 2; i++) {
        const before = performance.now();
        message = messageOf(() => arena.allocate(4 * MiB, stream));
        times.push(performance.now() - before);
      }
      show(message);
      show(times[0] > 190, times[1] < 150);
      Atomics.store(cells, 0, 1);
      Atomics.notify(cells, 0);
      while (arena.statistics().usedBytes > 0) await setTimeout(1);
      arena.deallocate(arena.allocate(8 * MiB, stream), 8 * MiB, stream);
      await worker.terminate();
    `);
    expect(end).toEqual(
      printed(
        'global arena "test" is out of memory: 4 MiB (4194304 bytes) were asked for; of its 8 MiB, 6 MiB are in use by 2 workers, 0 B by this one, and the largest free range has 2 MiB; 1 other worker was asked to return free memory, 0 answered within 200 ms (not: worker 1), and 0 B were returned',
        'true true',
      ),
    );
  });

  test('is answered by a worker that never returns to its event loop, when it needs more', () => {
    const end = run(`
      const [worker] = start(\`${withFreeMemory(`
        const arena = open();
        // Serves itself from its pool until it has been asked.
        while (Atomics.load(cells, 0) === 0) pool.deallocate(pool.allocate(MiB, stream), MiB, stream);
        Atomics.wait(cells, 1, 0, 100);
        pool.deallocate(pool.allocate(MiB, new Stream({ nonBlocking: true })), MiB, stream);
        // Longer than the one that asks waits.
        Atomics.wait(cells, 1, 0, 15_000);
      `)}\`);
      await received(worker);
      const arena = open({ waitMilliseconds: 5000 });
      Atomics.store(cells, 0, 1);
      const pointer = arena.allocate(7 * MiB, stream);
      show(pointer > 0);
      Atomics.store(cells, 1, 1);
      Atomics.notify(cells, 1);
      arena.deallocate(pointer, 7 * MiB, stream);
      await worker.terminate();
    `);
    expect(end).toEqual(printed('true'));
  });

  test('is answered by a worker that can return nothing', () => {
    const end = run(`
      const [worker] = start(\`
        open().allocate(2 * MiB, stream);
        post('allocated');
        await received();
      \`);
      await received(worker);
      show(messageOf(() => open({ waitMilliseconds: 10_000 }).allocate(8 * MiB, stream)).match(/[0-9]+ other .*/)[0]);
      await worker.terminate();
    `);
    expect(end).toEqual(printed('1 other worker was asked to return free memory, 1 answered within 10000 ms, and 0 B were returned'));
  });

  test('does not lock up if all workers ask each other', () => {
    const end = run(`
      const before = free();
      const workers = start(\`
        const pool = new PoolMemoryResource(open({ waitMilliseconds: 50 }), { deallocationEvents: 'deferred' });
        let served = 0;
        let refused = 0;
        for (let i = 0; i < 60; i++) {
          const bytes = (1 + (i + number) % 5) * MiB;
          try {
            const pointer = pool.allocate(bytes, stream);
            set(pointer, number, 1, bytes, stream);
            await new Promise(setImmediate);
            pool.deallocate(pointer, bytes, stream);
            served++;
          } catch (error) {
            if (error.code !== 'ERR_CISTERN_OUT_OF_MEMORY') throw error;
            refused++;
          }
        }
        pool.validate();
        post([served, refused]);
        await received();
      \`, 3);
      const results = await Promise.all(workers.map(received));
      show(results.every(([served, refused]) => served > 0 && served + refused === 60));
      for (const worker of workers) await worker.terminate();
      show(before - free());
    `);
    expect(end).toEqual(printed('true', '0'));
  });

  test('is opened once by workers that open it at the same time', () => {
    const end = run(`
      const before = free();
      // Two of these do not fit.
      const workers = start(\`
        post(new GlobalArenaMemoryResource({ name: 'large', arenaBytes: 40 * MiB }).arenaBytes);
        await received();
      \`, 4);
      show((await Promise.all(workers.map(received))).map((bytes) => bytes / MiB).join());
      show((before - free()) / MiB);
      for (const worker of workers) await worker.terminate();
      show(before - free());
    `);
    expect(end).toEqual(printed('40,40,40,40', '40', '0'));
  });

  test.each(['exit', 'terminate', 'throw'])('takes back what a worker had that ends by %s', (ending) => {
    const end = run(`
      const before = free();
      const arena = open();
      const [worker] = start(\`
        const pool = new PoolMemoryResource(open());
        const buffer = new DeviceBuffer(6 * MiB, { resource: pool, stream });
        buffer.fill(1);
        post('allocated');
        const ending = await received();
        if (ending === 'exit') process.exit(0);
        if (ending === 'throw') setImmediate(() => { throw new Error('meant'); });
        parentPort.on('message', () => {});
      \`);
      worker.on('error', () => {});
      const ended = new Promise((resolve) => worker.once('exit', resolve));
      await received(worker);
      show(arena.statistics().usedBytes / MiB);
      if ('${ending}' === 'terminate') await worker.terminate();
      else worker.postMessage('${ending}');
      await ended;
      show(arena.statistics().usedBytes / MiB, arena.statistics().workers);
      const pointer = arena.allocate(8 * MiB, stream);
      arena.deallocate(pointer, 8 * MiB, stream);
      arena.dispose();
      show(before - free());
    `);
    expect(end).toEqual(printed('6', '6 1', '0'));
  });

  /** A worker that has the whole arena, uses it on a stream that it did not make, and leaves nothing else. */
  const busyWorker = `
    const [worker] = start(\`
      stream.dispose();
      const legacy = Stream.legacyDefault();
      const pointer = open().allocate(8 * MiB, legacy);
      for (let i = 0; i < 200; i++) set(pointer, i, 1, 8 * MiB, legacy);
      const event = new cistern.Event();
      event.record(legacy);
      post(cistern.detachEvent(event));
      await received();
    \`);
    const event = cistern.attachEvent(await received(worker));
    await worker.terminate();
  `;

  test('gives what an ended worker had once its work has run', () => {
    const end = run(`
      const arena = open({ waitMilliseconds: 0 });
      ${busyWorker}
      const pointer = arena.allocate(8 * MiB, stream);
      show(event.query());
      arena.deallocate(pointer, 8 * MiB, stream);
    `);
    expect(end).toEqual(printed('true'));
  });

  test('frees what an ended worker had once, if several workers find it', () => {
    const end = run(`
      const arena = open({ waitMilliseconds: 0 });
      const [other] = start(\`
        const arena = open({ waitMilliseconds: 0 });
        post('open');
        await received();
        Atomics.store(cells, 0, 1);
        post(arena.allocate(4 * MiB, stream));
        await received();
      \`);
      await received(other);
      ${busyWorker}
      // Each has found the superblocks before the first that waits for the device frees them.
      cistern.setCallLatency('cuCtxSynchronize', 500e6);
      other.postMessage('go on');
      while (Atomics.load(cells, 0) === 0);
      const pointer = arena.allocate(4 * MiB, stream);
      show(Math.abs((await received(other)) - pointer) / MiB, arena.statistics().usedBytes / MiB);
      await other.terminate();
    `);
    expect(end).toEqual(printed('4 8'));
  });

  test('refuses a free that goes on into what another worker has', () => {
    const end = run(`
      const arena = open();
      const pointer = arena.allocate(256 * KiB, stream);
      const [worker] = start(\`
        post(open().allocate(256 * KiB, stream));
        await received();
      \`);
      const next = await received(worker);
      show((next - pointer) / KiB);
      for (const [address, bytes] of [[pointer, 512 * KiB], [next, 256 * KiB]]) {
        try { arena.deallocate(address, bytes, stream); } catch (error) { show(error.code); }
      }
      arena.deallocate(pointer, 256 * KiB, stream);
      await worker.terminate();
    `);
    expect(end).toEqual(printed('256', 'ERR_CISTERN_WRONG_SIZE', 'ERR_CISTERN_FOREIGN_POINTER'));
  });

  test('takes a request of a worker for its answer: it gave back before what it could', () => {
    const end = run(`
      const [worker] = start(\`
        const arena = open({ waitMilliseconds: 10_000 });
        arena.allocate(2 * MiB, stream);
        post('allocated');
        await received();
        Atomics.store(cells, 0, 1);
        const message = messageOf(() => arena.allocate(8 * MiB, stream));
        Atomics.store(cells, 1, 1);
        Atomics.notify(cells, 1);
        post(message);
        await received();
      \`);
      await received(worker);
      const arena = open({ waitMilliseconds: 10_000 });
      arena.allocate(2 * MiB, stream);
      const message = received(worker);
      worker.postMessage('ask');
      while (Atomics.load(cells, 0) === 0);
      const own = messageOf(() => arena.allocate(8 * MiB, stream));
      // Answers by nothing else.
      Atomics.wait(cells, 1, 0, 15_000);
      for (const each of [own, await message]) show(each.match(/[0-9]+ other .* ms[^,]*/)[0]);
      await worker.terminate();
    `);
    const answer = '1 other worker was asked to return free memory, 1 answered within 10000 ms';
    expect(end).toEqual(printed(answer, answer));
  });

  test('keeps superblocks of an ended worker while another has a buffer in them', () => {
    const end = run(`
      const arena = open({ waitMilliseconds: 0 });
      const [worker] = start(\`
        const pool = new PoolMemoryResource(open());
        const first = new DeviceBuffer(3 * MiB, { resource: pool, stream });
        const buffer = new DeviceBuffer(100 * KiB, { resource: pool, stream });
        buffer.fill(7);
        post(detachBuffer(buffer));
        await received();
      \`);
      const buffer = attachBuffer(await received(worker), { stream });
      await worker.terminate();
      const message = messageOf(() => arena.allocate(8 * MiB, stream));
      show(message.includes('out of memory'), arena.statistics().usedBytes <= 512 * KiB);
      show([...new Set(buffer.toHostSync())].join());
      buffer.dispose();
      const pointer = arena.allocate(8 * MiB, stream);
      show(pointer > 0);
      arena.deallocate(pointer, 8 * MiB, stream);
    `);
    expect(end).toEqual(printed('true true', '7', 'true'));
  });

  test('waits for no device on account of a buffer that an ended worker handed over', () => {
    const end = run(`
      const arena = open();
      const [worker] = start(\`
        post(detachBuffer(new DeviceBuffer(100 * KiB, { resource: open(), stream })));
        await received();
      \`);
      const buffer = attachBuffer(await received(worker), { stream });
      await worker.terminate();
      new Stream().dispose();
      const cuda = new cistern.CudaMemoryResource();
      const pointer = cuda.allocate(32 * MiB, stream);
      for (let i = 0; i < 20; i++) set(pointer, 1, 1, 32 * MiB, stream);
      new Stream().dispose();
      show(stream.query(), arena.statistics().usedBytes / KiB);
      buffer.dispose();
    `);
    expect(end).toEqual(printed('false 256'));
  });

  test('can be opened by name while the device has no free memory', () => {
    const end = run(`
      const first = new GlobalArenaMemoryResource({ name: 'all', arenaBytes: Device.get().memoryInfo().freeBytes });
      show(Device.get().memoryInfo().freeBytes);
      show(new GlobalArenaMemoryResource({ name: 'all' }).isEqual(first));
      show(messageOf(() => new GlobalArenaMemoryResource({ name: 'other' })).startsWith('global arena "other" is out of memory'));
    `);
    expect(end).toEqual(printed('0', 'true', 'true'));
  });

  test('waits for a worker that another request had no time for', () => {
    const end = run(`
      const [worker] = start(\`${withFreeMemory(`
        await received();
        Atomics.store(cells, 0, 1);
        Atomics.wait(cells, 1, 0, 300);
      `)}\`);
      await received(worker);
      const hasty = open({ waitMilliseconds: 0 });
      const patient = open({ waitMilliseconds: 10_000 });
      worker.postMessage('compute');
      while (Atomics.load(cells, 0) === 0) await setTimeout(1);
      show(messageOf(() => hasty.allocate(4 * MiB, stream)).includes('0 answered within 0 ms'));
      const pointer = patient.allocate(4 * MiB, stream);
      patient.deallocate(pointer, 4 * MiB, stream);
      await worker.terminate();
    `);
    expect(end).toEqual(printed('true'));
  });

  test('can be asked by a worker that is terminated meanwhile', () => {
    const end = run(`
      const arena = open();
      const [holder] = start(\`
        open().allocate(8 * MiB, stream);
        post('holding');
        await received();
        Atomics.wait(cells, 1, 0, 15_000);
      \`);
      await received(holder);
      holder.postMessage('do not answer');
      const [worker] = start(\`
        const arena = open({ waitMilliseconds: 10_000 });
        Atomics.store(cells, 0, 1);
        arena.allocate(8 * MiB, stream);
      \`);
      while (Atomics.load(cells, 0) === 0) await setTimeout(1);
      await setTimeout(300);
      const before = performance.now();
      await worker.terminate();
      show(performance.now() - before < 5000);
      Atomics.store(cells, 1, 1);
      Atomics.notify(cells, 1);
      await holder.terminate();
    `);
    expect(end).toEqual(printed('true'));
  });

  test('loses nothing if workers are terminated at any moment', () => {
    const end = run(
      `
      const before = free();
      const arena = open({ waitMilliseconds: 1000 });
      const checker = checkOrder({ stacks: false });
      for (let round = 0; round < 15; round++) {
        const workers = start(\`
          const pool = new PoolMemoryResource(open(), { deallocationEvents: ['eager', 'deferred', 'off'][number] });
          const streams = [stream, new Stream({ nonBlocking: true })];
          const live = [];
          post('running');
          for (let i = 0; ; i++) {
            try {
              const bytes = 1000 + (i * 7919) % 700_000;
              const on = streams[i % 2];
              const pointer = pool.allocate(bytes, on);
              set(pointer, number, 1, bytes, on);
              live.push([pointer, bytes, on]);
            } catch (error) {
              if (error.code !== 'ERR_CISTERN_OUT_OF_MEMORY') throw error;
            }
            if (live.length > 2) pool.deallocate(...live.shift());
            if (i % 8 === 0) await new Promise(setImmediate);
            // A driver that waits for the device in each call would have more to wait for in every round.
            if (i % 32 === 0) for (const each of streams) each.synchronizeSync();
          }
        \`, 3);
        for (const worker of workers) worker.on('error', (error) => show(error.message));
        await Promise.all(workers.map(received));
        await setTimeout((round * 7) % 30);
        await Promise.all(workers.map((worker) => worker.terminate()));
        const pointer = arena.allocate(8 * MiB, stream);
        set(pointer, 9, 1, 8 * MiB, stream);
        arena.deallocate(pointer, 8 * MiB, stream);
      }
      show(arena.statistics().usedBytes, arena.statistics().workers, checker.violations.length);
      arena.dispose();
      show(before - free());
    `,
      60_000,
    );
    expect(end).toEqual(printed('0 1 0', '0'));
  });

  test('counts in a shared limit what an ended worker had, until it is free', () => {
    const end = run(`
      const arena = open();
      const limited = new cistern.LimitingResourceAdaptor(arena, { limitBytes: 8 * MiB, shared: 'budget' });
      const [worker] = start(\`
        const limited = new cistern.LimitingResourceAdaptor(open(), { limitBytes: 8 * MiB, shared: 'budget' });
        limited.allocate(6 * MiB, stream);
        post('allocated');
        await received();
      \`);
      await received(worker);
      await worker.terminate();
      show(limited.allocatedBytes / MiB);
      limited.deallocate(limited.allocate(8 * MiB, stream), 8 * MiB, stream);
      show(limited.allocatedBytes);
    `);
    expect(end).toEqual(printed('6', '0'));
  });
});
