import { spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { needMemoryPools } from '../support/device-memory.js';
import { type ProcessEnd, printed } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';
import { runWithWorkers } from '../support/workers.js';

/** `returned(pool)` waits until everything has come home, `held(before)` until all memory is free that was before. */
function run(body: string): ProcessEnd {
  return runWithWorkers(
    `
    const codeOf = (action) => { try { action(); return 'nothing'; } catch (error) { return error.code; } };
    const valuesOf = (buffer) => [...new Set(buffer.toHostSync())].join();
    const returned = async (pool) => {
      for (let i = 0; i < 2000 && pool.statistics().allocatedBytes > 0; i++) await setTimeout(1);
      return pool.statistics().allocatedBytes;
    };
    const held = async (before) => {
      for (let i = 0; i < 400 && before > free(); i++) await setTimeout(5);
      return before - free();
    };
    ${body}
  `,
  );
}

/**
 * Declares `isLive(address)`, whether the driver still has a stream. A driver need not notice a
 * stream that is gone, so the strict driver is asked otherwise, and a GPU's driver is not asked.
 */
function declareIsLive(): string {
  const control = process.env['STRICT_DRIVER_CONTROL'];
  if (process.env['CISTERN_DEVICE'] === 'cuda' && control === undefined) skipTest('a GPU cannot be asked for a stream that is gone');
  const ask =
    control === undefined
      ? 'try { Stream.fromHandle(address).dispose(); return true; } catch { return false; }'
      : `return process.getBuiltinModule('node:module').createRequire('/')(${JSON.stringify(control)}).hasStream(address);`;
  return `const isLive = (address) => { new Stream().dispose(); ${ask} };`;
}

describe('a buffer that a worker gives to another', () => {
  test('has its contents there, in stream order, and comes home when it is disposed', () => {
    const end = run(`
      const [worker] = start(\`
        const stream = new Stream({ nonBlocking: true });
        const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
        const buffer = new DeviceBuffer(64 * KiB, { resource: pool, stream });
        buffer.fill(1);
        stream.synchronizeSync();
        const hold = stream.hold();
        buffer.fill(2);
        post(detachBuffer(buffer));
        await received();
        hold.release();
        while (pool.statistics().allocatedBytes > 0) await new Promise(setImmediate);
        pool.dispose();
        post('home');
      \`);
      const stream = new Stream({ nonBlocking: true });
      const buffer = attachBuffer(await received(worker), { stream });
      const contents = buffer.toHost();
      await setTimeout(20);
      show(stream.query());
      worker.postMessage('go on');
      show([...new Set(await contents)].join());
      const ended = received(worker);
      buffer.dispose();
      show(await ended);
    `);
    expect(end).toEqual(printed('false', '2', 'home'));
  });

  test.each(['new CudaMemoryResource()', 'new CudaAsyncMemoryResource()', 'new cistern.VirtualMemoryResource()'])(
    'outlives its giver, in a pool on %s',
    (upstream) => {
      const end = run(`
      const before = free();
      for (const ending of ['exit', 'terminate', 'throw']) {
        const [worker] = start(\`
          const stream = new Stream({ nonBlocking: true });
          const pool = new PoolMemoryResource(${upstream}, { initialBytes: 8 * MiB });
          const buffer = new DeviceBuffer(64 * KiB, { resource: pool, stream });
          buffer.fill(7);
          post(detachBuffer(buffer));
          const ending = await received();
          if (ending === 'exit') process.exit(0);
          if (ending === 'throw') setImmediate(() => { throw new Error('meant'); });
          parentPort.on('message', () => {});
        \`);
        worker.on('error', () => {});
        const ended = once(worker, 'exit').catch(() => {});
        const stream = new Stream({ nonBlocking: true });
        const buffer = attachBuffer(await received(worker), { stream });
        if (ending === 'terminate') await worker.terminate();
        else worker.postMessage(ending);
        await ended;
        show(ending, before - free() >= 8 * MiB, valuesOf(buffer));
        buffer.dispose();
        show(await held(before));
      }
    `);
      expect(end).toEqual(printed('exit true 7', '0', 'terminate true 7', '0', 'throw true 7', '0'));
    },
  );

  test('comes home if its taker ends, after the work that the taker had queued', () => {
    const end = run(`
      // What has run by chance does not count.
      const checker = cistern.checkOrder({ stacks: false });
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB, maximumBytes: MiB });
      const stream = new Stream({ nonBlocking: true });
      for (const ending of ['exit', 'terminate', 'collected']) {
        const [worker] = start(\`
          const message = await received();
          const stream = new Stream({ nonBlocking: true });
          let buffer = attachBuffer(message, { stream });
          for (let i = 0; i < 50; i++) buffer.fill(8);
          post('attached');
          const ending = await received();
          if (ending === 'exit') process.exit(0);
          buffer = undefined;
          if (ending === 'collected') cistern.reclaimUnreachableBuffers('major');
          parentPort.on('message', () => {});
        \`);
        const buffer = new DeviceBuffer(MiB, { resource: pool, stream });
        worker.postMessage(detachBuffer(buffer));
        await received(worker);
        show(ending, codeOf(() => pool.allocate(MiB, stream)), codeOf(() => pool.dispose()));
        if (ending === 'terminate') await worker.terminate();
        else worker.postMessage(ending);
        show(await returned(pool));
        const next = new DeviceBuffer(MiB, { resource: pool, stream });
        next.fill(3);
        show(valuesOf(next), checker.violations.length);
        next.dispose();
        await worker.terminate();
      }
      pool.dispose();
    `);
    const refused = 'ERR_CISTERN_OUT_OF_MEMORY ERR_CISTERN_INVALID_STATE';
    expect(end).toEqual(printed(`exit ${refused}`, '0', '3 0', `terminate ${refused}`, '0', '3 0', `collected ${refused}`, '0', '3 0'));
  });

  test('is lost with its message if nobody discards it, until its giver ends', () => {
    const end = run(`
      const before = free();
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
      const stream = new Stream();
      const lost = detachBuffer(new DeviceBuffer(MiB, { resource: pool, stream }));
      const [dead] = start('');
      const ended = once(dead, 'exit');
      dead.postMessage(lost);
      await ended;
      show(pool.statistics().allocatedBytes === MiB, discardBuffer(lost), discardBuffer(lost), await returned(pool));
      pool.dispose();
      const [worker] = start(\`
        const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 8 * MiB });
        post(detachBuffer(new DeviceBuffer(MiB, { resource: pool, stream: new Stream() })));
      \`);
      const exit = once(worker, 'exit');
      const message = await received(worker);
      await exit;
      show(codeOf(() => attachBuffer(message, { stream })), discardBuffer(message), before - free());
    `);
    expect(end).toEqual(printed('true true false 0', 'ERR_CISTERN_STALE_MESSAGE false 0'));
  });

  test('passes through a worker that ends, and comes home from the last one', () => {
    const end = run(`
      const pool = new PoolMemoryResource(new CudaAsyncMemoryResource(), { initialBytes: MiB });
      const stream = new Stream({ nonBlocking: true });
      const [worker] = start(\`
        const stream = new Stream({ nonBlocking: true });
        for (;;) {
          const buffer = attachBuffer(await received(), { stream });
          buffer.fill(4);
          post(detachBuffer(buffer));
        }
      \`);
      const buffer = new DeviceBuffer(KiB, { resource: pool, stream });
      worker.postMessage(detachBuffer(buffer));
      const back = attachBuffer(await received(worker), { stream });
      worker.postMessage(detachBuffer(new DeviceBuffer(KiB, { resource: pool, stream })));
      const lost = await received(worker);
      await worker.terminate();
      show(valuesOf(back), codeOf(() => attachBuffer(lost, { stream })));
      back.dispose();
      show(await returned(pool));
    `);
    expect(end).toEqual(printed('4 ERR_CISTERN_STALE_MESSAGE', '0'));
  });

  test('comes home although a worker that handed it on is busy', () => {
    const end = run(`
      const pool = new PoolMemoryResource(new CudaAsyncMemoryResource(), { initialBytes: MiB });
      const stream = new Stream({ nonBlocking: true });
      const [worker] = start(\`
        const stream = new Stream({ nonBlocking: true });
        post(detachBuffer(attachBuffer(await received(), { stream })));
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
      \`);
      worker.postMessage(detachBuffer(new DeviceBuffer(KiB, { resource: pool, stream })));
      attachBuffer(await received(worker), { stream }).dispose();
      show(await returned(pool));
      await worker.terminate();
    `);
    expect(end).toEqual(printed('0'));
  });

  test('comes home if its taker has dropped it, as soon as its giver is short of memory', () => {
    const end = run(`
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 4 * MiB, maximumBytes: 4 * MiB });
      const stream = new Stream();
      const [taker] = start(\`
        const stream = new cistern.Stream();
        parentPort.on('message', (messages) => {
          for (const message of messages) attachBuffer(message, { stream }).fill(1);
          post('dropped');
        });
      \`);
      // A taker has 20 ms to answer, which may be too few on a busy machine, and is not asked again for 100 ms. It never collects unasked.
      const allocated = async (bytes) => {
        for (let tries = 0; ; tries++) {
          try { return new DeviceBuffer(bytes, { resource: pool, stream }); } catch (error) { if (tries === 200) throw error; }
          await setTimeout(110);
        }
      };
      for (let round = 0; round < 2; round++) {
        const messages = [];
        for (let i = 0; i < 4; i++) messages.push(detachBuffer(await allocated(1 * MiB)));
        taker.postMessage(messages);
        await received(taker);
      }
      const buffer = await allocated(4 * MiB);
      show(buffer.byteLength / MiB);
      buffer.dispose();
      show(await taker.terminate());
    `);
    expect(end).toEqual(printed('4', '1'));
  });

  test('comes home to both, if two that have dropped a buffer of each other are short of memory at the same time', () => {
    const end = run(`
      const everywhere = \`
        const stream = new cistern.Stream();
        const pool = new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), { initialBytes: MiB });
        const give = () => detachBuffer(new DeviceBuffer(KiB, { resource: pool, stream }));
        let kept;
        const keep = (message) => {
          kept = attachBuffer(message, { stream });
          // From now on it is old, and no minor collection finds it.
          cistern.reclaimUnreachableBuffers('major');
        };
        const isHome = () => {
          kept = undefined;
          cistern.reclaimUnreachableBuffers('major');
          return pool.statistics().allocatedBytes === 0;
        };
      \`;
      const { give, keep, isHome, pool } = eval(everywhere + '({ give, keep, isHome, pool })');
      const [worker] = start(everywhere + \`
        for (;;) {
          keep(await received());
          post(give());
          await received();
          Atomics.store(cells, 0, 1);
          while (Atomics.load(cells, 1) === 0);
          post(isHome());
        }
      \`);
      let times = 0;
      // On a busy machine, one of them may be at rest in the 20 ms that the other waits.
      for (let round = 0; round < 40 && times < 5; round++) {
        Atomics.store(cells, 0, 0);
        Atomics.store(cells, 1, 0);
        worker.postMessage(give());
        keep(await received(worker));
        // Nobody is asked twice in 100 ms.
        await setTimeout(110);
        worker.postMessage('go on');
        while (Atomics.load(cells, 0) === 0);
        Atomics.store(cells, 1, 1);
        const isHomeHere = isHome();
        if ((await received(worker)) && isHomeHere) times++;
        await returned(pool);
      }
      show(times);
      await worker.terminate();
    `);
    expect(end).toEqual(printed('5'));
  });

  test('is not waited for if its taker does not collect garbage', () => {
    const end = run(`
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 1 * MiB, maximumBytes: 1 * MiB });
      const stream = new Stream();
      const [taker] = start(\`
        const stream = new cistern.Stream();
        const buffer = attachBuffer(await received(), { stream });
        post('attached');
        for (;;);
      \`);
      taker.postMessage(detachBuffer(new DeviceBuffer(1 * MiB, { resource: pool, stream })));
      await received(taker);
      for (let round = 0; round < 3; round++) show(codeOf(() => new DeviceBuffer(1 * MiB, { resource: pool, stream })));
      await taker.terminate();
      show(await returned(pool));
    `);
    expect(end).toEqual(printed(...Array(3).fill('ERR_CISTERN_OUT_OF_MEMORY'), '0'));
  });

  test('may be shared by several, and is freed after the last, whoever ends first', () => {
    const end = run(`
      const reader = \`
        const stream = new Stream({ nonBlocking: true });
        const buffer = attachBuffer(await received(), { stream });
        post([...new Set(buffer.toHostSync())].join());
        await received();
        buffer.dispose();
        post('disposed');
      \`;
      const before = free();
      const [giver] = start(\`
        const stream = new Stream({ nonBlocking: true });
        const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 8 * MiB });
        const buffer = new DeviceBuffer(MiB, { resource: pool, stream });
        buffer.fill(6);
        post(shareBuffer(buffer));
        globalThis.kept = buffer;
        parentPort.on('message', () => {});
      \`);
      const message = await received(giver);
      const readers = start(reader, 3);
      for (const each of readers) {
        each.postMessage(message);
        show(await received(each));
      }
      await giver.terminate();
      const stream = new Stream();
      show(codeOf(() => attachBuffer(message, { stream })), before - free() >= 8 * MiB);
      await readers[0].terminate();
      for (const each of readers.slice(1)) {
        show(before - free() >= 8 * MiB);
        each.postMessage('end');
        await received(each);
      }
      for (const each of readers) await each.terminate();
      show(before - free());
    `);
    expect(end).toEqual(printed('6', '6', '6', 'ERR_CISTERN_STALE_MESSAGE true', 'true', 'true', '0'));
  });

  test('is followed by the order checker, which reports memory that was sent as a bare pointer', () => {
    const end = run(`
      const checker = cistern.checkOrder({ stacks: false });
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
      const stream = new Stream({ nonBlocking: true });
      const [worker] = start(\`
        cistern.checkOrder({ stacks: false });
        const stream = new Stream({ nonBlocking: true });
        const buffer = attachBuffer(await received(), { stream });
        buffer.fill(1);
        buffer.dispose();
        const { ptr, bytes } = await received();
        cistern.set(ptr, 1, 1, bytes, stream);
        post('done');
        parentPort.on('message', () => {});
      \`);
      const first = new DeviceBuffer(MiB, { resource: pool, stream });
      first.fill(2);
      worker.postMessage(detachBuffer(first));
      show(await returned(pool));
      const second = new DeviceBuffer(MiB, { resource: pool, stream });
      second.fill(3);
      show(checker.violations.length);
      worker.postMessage({ ptr: second.ptr, bytes: MiB });
      await received(worker);
      second.fill(4);
      show(checker.violations.map(({ kind }) => kind).join());
      await worker.terminate();
    `);
    expect(end).toEqual(printed('0', '0', 'unordered'));
  });
});

describe('four workers that hand buffers on', () => {
  test.each([
    ['', 300, 0],
    [', although workers are terminated at random', 150, 25],
  ])('get every byte right, and leave nothing behind%s', { timeout: 90_000 }, (_, buffers, terminateEvery) => {
    needMemoryPools();
    const program = [
      'test/stress/hand-over-pipeline.mjs',
      '--buffers',
      `${buffers}`,
      '--terminate-every',
      `${terminateEvery}`,
      '--check-order',
    ];
    const { status, stdout, stderr } = spawnSync(process.execPath, program, { encoding: 'utf8', timeout: 80_000 });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const result: unknown = JSON.parse(stdout);
    expect(result).toMatchObject({ wrong: 0, reports: 0, leakedBytes: 0 });
    expect((result as { buffers: number }).buffers).toBeGreaterThanOrEqual(buffers);
  });
});

describe('the message of something that a worker shares', () => {
  test('cannot be discarded by a taker', () => {
    const end = run(`
      const stream = new Stream({ nonBlocking: true });
      const buffer = new DeviceBuffer(64 * KiB, { resource: new CudaMemoryResource(), stream });
      const messages = [shareBuffer(buffer), cistern.shareStream(stream), cistern.shareEvent(new cistern.Event())];
      const [worker] = start(\`
        const [buffer, stream, event] = await received();
        post([discardBuffer(buffer), cistern.discardStream(stream), cistern.discardEvent(event)]);
      \`);
      worker.postMessage(messages);
      show(...await received(worker));
      show(discardBuffer(messages[0]), cistern.discardStream(messages[1]), cistern.discardEvent(messages[2]));
      await worker.terminate();
    `);
    expect(end).toEqual(printed('false false false', 'true true true'));
  });
});

describe('an event that a worker gives to another', () => {
  test('orders what both queue, and nothing else does', () => {
    const end = run(`
      const checker = cistern.checkOrder({ stacks: false });
      const stream = new Stream({ nonBlocking: true });
      for (const form of ['detach', 'share', 'nothing']) {
        const [worker] = start(\`
          const stream = new Stream({ nonBlocking: true });
          const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: MiB });
          const buffer = new DeviceBuffer(64 * KiB, { resource: pool, stream });
          buffer.fill(1);
          stream.synchronizeSync();
          const hold = stream.hold();
          buffer.fill(2);
          const event = new cistern.Event();
          event.record(stream);
          post({ ptr: buffer.ptr, message: cistern[(await received()) + "Event"](event) });
          post(await received());
          hold.release();
          await received();
          buffer.dispose();
          stream.synchronizeSync();
          pool.dispose();
          event.dispose();
          process.exit(0);
        \`);
        worker.postMessage(form === 'nothing' ? 'detach' : form);
        const { ptr, message } = await received(worker);
        const event = cistern.attachEvent(message);
        if (form !== 'nothing') stream.wait(event);
        const copy = new DeviceBuffer({ ptr, byteLength: 64 * KiB }, { stream, resource: new CudaMemoryResource() });
        const contents = copy.toHost();
        worker.postMessage('go on');
        await received(worker);
        const isFilled = [...new Set(await contents)].join() === '2';
        await event.synchronize();
        worker.postMessage('end');
        await once(worker, 'exit');
        event.dispose();
        copy.dispose();
        show(form, isFilled || form === 'nothing', checker.violations.length > 0);
        checker.clear();
      }
      stream.synchronizeSync();
    `);
    expect(end).toEqual(printed('detach true false', 'share true false', 'nothing true true'));
  });
});

describe('a stream that workers share', () => {
  test('runs what each of them queues in that order', () => {
    const end = run(`
      const checker = cistern.checkOrder({ stacks: false });
      const resource = new CudaMemoryResource();
      const stream = new Stream({ nonBlocking: true });
      const buffer = new DeviceBuffer(64 * KiB, { resource, stream });
      const [worker] = start(\`
        const { stream: message, ptr } = await received();
        const stream = cistern.attachStream(message);
        const ones = new DeviceBuffer(64 * KiB, { resource: new CudaMemoryResource(), stream });
        ones.fill(2);
        cistern.wrapMemory({ ptr, byteLength: 64 * KiB, stream }).copyFrom(ones);
        post('queued');
        await received();
        ones.dispose();
        stream.dispose();
        post('disposed');
      \`);
      const hold = stream.hold();
      buffer.fill(1);
      worker.postMessage({ stream: cistern.shareStream(stream), ptr: buffer.ptr });
      show(await received(worker));
      const copy = new DeviceBuffer(buffer, { resource, stream });
      show(stream.query());
      hold.release();
      show([...new Set(await copy.toHost())].join());
      worker.postMessage('dispose');
      show(await received(worker), stream.query(), checker.violations.length);
      await worker.terminate();
    `);
    expect(end).toEqual(printed('queued', 'false', '2', 'disposed true 0'));
  });

  test('is given back when the last of them has disposed it, or has ended', () => {
    const end = run(`
      ${declareIsLive()}
      for (const ending of ['exit', 'terminate', 'dispose']) {
        for (const first of ['giver', 'taker']) {
          const [giver] = start(\`
            const stream = new Stream();
            post({ message: cistern.shareStream(stream), address: stream.nativeHandle });
            while (true) {
              const ending = await received();
              if (ending === 'exit') process.exit(0);
              stream.dispose();
              post('disposed');
            }
          \`);
          const [taker] = start(\`
            const stream = cistern.attachStream(await received());
            stream.launchHostFunction(() => {});
            post('attached');
            while (true) {
              const ending = await received();
              if (ending === 'exit') process.exit(0);
              stream.dispose();
              post('disposed');
            }
          \`);
          const { message, address } = await received(giver);
          taker.postMessage(message);
          await received(taker);
          const end = async (worker) => {
            if (ending === 'terminate') return worker.terminate();
            const ended = ending === 'exit' ? once(worker, 'exit') : received(worker);
            worker.postMessage(ending);
            await ended;
          };
          await end(first === 'giver' ? giver : taker);
          const after = [isLive(address)];
          await end(first === 'giver' ? taker : giver);
          // The driver may not have run its last work yet.
          for (let i = 0; i < 400 && isLive(address); i++) await setTimeout(5);
          show(ending, first, ...after, isLive(address), codeOf(() => cistern.attachStream(message)));
          await giver.terminate();
          await taker.terminate();
        }
      }
    `);
    const lines = ['exit', 'terminate', 'dispose'].flatMap((ending) => ['giver', 'taker'].map((first) => `${ending} ${first}`));
    expect(end).toEqual(printed(...lines.map((line) => `${line} true false ERR_CISTERN_STALE_MESSAGE`)));
  });

  test('is given back if a message is lost with its giver, or its taker ends', () => {
    const end = run(`
      ${declareIsLive()}
      for (const isAttached of [false, true]) {
        const [giver] = start(\`
          const stream = new Stream();
          const address = stream.nativeHandle;
          post({ address, stream: cistern.detachStream(stream), event: cistern.detachEvent(new cistern.Event()) });
          parentPort.on('message', () => {});
        \`);
        const message = await received(giver);
        const [taker] = start(\`
          const { stream, event } = await received();
          const kept = [cistern.attachStream(stream), cistern.attachEvent(event)];
          kept[1].record(kept[0]);
          post('attached');
          parentPort.on('message', () => kept);
        \`);
        if (isAttached) {
          taker.postMessage(message);
          await received(taker);
        }
        const before = isLive(message.address);
        await giver.terminate();
        const after = isLive(message.address);
        await taker.terminate();
        show(before, after, isLive(message.address));
        show(codeOf(() => cistern.attachStream(message.stream)), codeOf(() => cistern.attachEvent(message.event)));
      }
    `);
    const stale = 'ERR_CISTERN_STALE_MESSAGE ERR_CISTERN_STALE_MESSAGE';
    expect(end).toEqual(printed('true false false', stale, 'true true false', stale));
  });
});
