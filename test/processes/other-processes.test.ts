import { spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { CudaAsyncMemoryResource, MiB, Stream } from '../../src/index.js';
import { settledFreeBytes } from '../support/device-memory.js';
import { isSoftwareDevice, isStrictDriver, needExportablePools, runProcesses } from '../support/processes.js';
import { printed, wholePackage } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';

describe('a buffer that another process opens', () => {
  test('has its contents there, in stream order, and those that the other process writes come back', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream({ nonBlocking: true });
        const buffer = openBuffer(await received(), { stream, label: 'theirs' });
        const contents = buffer.toHost();
        const isDone = await Promise.race([contents.then(() => true), sleep(50).then(() => false)]);
        await post([buffer.byteLength, buffer.capacityBytes, buffer.alignment, buffer.label, isDone].join());
        await post([...new Set(await contents)].join());
        const hold = stream.hold();
        buffer.fill(3);
        buffer.dispose();
        await post('disposed');
        await received();
        hold.release();
        await received();
        process.disconnect();
      \`);
      const stream = new Stream({ nonBlocking: true });
      const resource = new CudaMemoryResource();
      const buffer = new DeviceBuffer(64 * KiB, { resource, stream, capacityBytes: 65 * KiB, alignment: 256 });
      buffer.fill(1);
      stream.synchronizeSync();
      exportBuffer(buffer);
      const hold = stream.hold();
      buffer.fill(2);
      child.post(exportBuffer(buffer));
      show(await child.received());
      hold.release();
      show(await child.received());
      show(await child.received());
      const done = importersDone(buffer);
      show(await Promise.race([done.then(() => 'past'), sleep(50).then(() => 'in use')]));
      child.post('go on');
      await done;
      show(valuesOf(buffer));
      child.post('end');
      await child.ended;
      buffer.dispose();
      show(resource.reservedBytes);
    `);
    expect(end).toEqual(printed('65536,66560,256,theirs,false', '2', 'disposed', 'in use', '3', '0'));
  });

  test('keeps its memory after it was disposed until the other process is past its use', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream({ nonBlocking: true });
        const buffer = openBuffer(await received(), { stream });
        await post('open');
        await received();
        await post(valuesOf(buffer));
        const hold = stream.hold();
        buffer.fill(9);
        buffer.dispose();
        await post('disposed');
        await received();
        hold.release();
        await received();
        process.disconnect();
      \`);
      const stream = new Stream({ nonBlocking: true });
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 1 * MiB, maximumBytes: 1 * MiB });
      const first = new DeviceBuffer(300 * KiB, { resource: pool, stream });
      const buffer = new DeviceBuffer(400 * KiB, { resource: pool, stream });
      buffer.fill(5);
      const { ptr } = buffer;
      const handle = exportBuffer(buffer);
      child.post(handle);
      await child.received();
      buffer.dispose();
      show(pool.statistics().allocatedBytes === 700 * KiB);
      show(codeOf(() => new DeviceBuffer(400 * KiB, { resource: pool, stream })));
      child.post('read');
      show(await child.received(), await child.received());
      await sleep(100);
      show(pool.statistics().allocatedBytes === 700 * KiB);
      child.post('release');
      show(await until(() => pool.statistics().allocatedBytes === 300 * KiB));
      const next = new DeviceBuffer(400 * KiB, { resource: pool, stream });
      show(next.ptr === ptr, valuesOf(next));
      child.post('end');
      await child.ended;
    `);
    expect(end).toEqual(printed('true', 'ERR_CISTERN_OUT_OF_MEMORY', '5 disposed', 'true', 'true', 'true 9'));
  });

  test('keeps a pool from being disposed while the other process uses its memory', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream();
        const buffer = openBuffer(await received(), { stream });
        await post('open');
        await received();
        buffer.dispose();
        await post('disposed');
        await received();
        process.disconnect();
      \`);
      const stream = new Stream();
      const upstream = new CudaMemoryResource();
      const pool = new PoolMemoryResource(upstream, { initialBytes: 1 * MiB });
      const buffer = new DeviceBuffer(4096, { resource: pool, stream });
      child.post(exportBuffer(buffer));
      await child.received();
      show(errorOf(() => pool.dispose()).replace(/0x\\w+/, 'P'));
      buffer.dispose();
      show(codeOf(() => pool.dispose()));
      child.post('dispose');
      await child.received();
      // The memory is let go of in the order of the child's stream.
      let code;
      for (let i = 0; i < 1000 && code !== 'nothing'; i++) {
        code = codeOf(() => pool.dispose());
        await new Promise(setImmediate);
      }
      show(code, upstream.reservedBytes);
      child.post('end');
      await child.ended;
    `);
    const refused = 'ERR_CISTERN_INVALID_STATE: cannot take P back: another process uses these 4096 bytes';
    expect(end).toEqual(printed(refused, 'ERR_CISTERN_INVALID_STATE', 'nothing 0'));
  });

  test('is part of a block of a pool: the offset travels, and neighbours stay as they are', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream({ nonBlocking: true });
        const buffers = (await received()).map((handle) => openBuffer(handle, { stream }));
        await post(buffers.map(valuesOf).join());
        for (const buffer of buffers) buffer.fill(100 + buffers.indexOf(buffer));
        for (const buffer of buffers) buffer.dispose();
        await post('done');
        process.disconnect();
      \`);
      const stream = new Stream({ nonBlocking: true });
      const pool = new LimitingResourceAdaptor(new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 1 * MiB }), { limitBytes: 1 * MiB });
      const buffers = Array.from({ length: 8 }, (_, index) => {
        const buffer = new DeviceBuffer(1000 * (index + 1), { resource: pool, stream });
        buffer.fill(index);
        return buffer;
      });
      child.post([1, 4, 6].map((index) => exportBuffer(buffers[index])));
      show(await child.received());
      await child.received();
      for (const buffer of buffers) await importersDone(buffer);
      show(buffers.map(valuesOf).join());
      await child.ended;
    `);
    expect(end).toEqual(printed('1,4,6', '0,100,2,3,101,5,102,7'));
  });

  test('of an exportable pool of the driver stays with the pool, whatever is trimmed, until that is disposed', () => {
    if (!isSoftwareDevice && !isStrictDriver) skipTest('a later driver may trim such pools: the probe `processes` asks');
    using stream = new Stream();
    const before = settledFreeBytes();
    const pool = new CudaAsyncMemoryResource({ exportable: true, releaseThresholdBytes: 0 });
    pool.deallocate(pool.allocate(MiB, stream), MiB, stream);
    stream.synchronizeSync();
    const { reservedBytes } = pool;
    expect([reservedBytes >= MiB, pool.trim(stream), pool.reservedBytes]).toEqual([true, 0, reservedBytes]);
    pool.dispose();
    expect(settledFreeBytes()).toBe(before);
  });

  test('is memory of an exportable pool of the driver, alone or in a pool on top of it', () => {
    needExportablePools();
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream({ nonBlocking: true });
        const buffers = (await received()).map((handle) => openBuffer(handle, { stream }));
        await post(buffers.map(valuesOf).join());
        for (const buffer of buffers) buffer.fill(100 + buffers.indexOf(buffer));
        for (const buffer of buffers) buffer.dispose();
        await until(() => filesOf() === 0);
        await post([filesOf(), mappingsOf()].join());
        await received();
        process.disconnect();
      \`);
      const stream = new Stream({ nonBlocking: true });
      const upstream = new CudaAsyncMemoryResource({ exportable: true });
      const pool = new PoolMemoryResource(upstream, { initialBytes: 64 * KiB });
      const buffers = [upstream, pool, pool, pool].map((resource, index) => {
        const buffer = new DeviceBuffer(1000 * (index + 1), { resource, stream });
        buffer.fill(index);
        return buffer;
      });
      const files = filesOf();
      child.post([0, 1, 3].map((index) => exportBuffer(buffers[index])));
      show(await child.received());
      show(await child.received());
      for (const buffer of buffers) await importersDone(buffer);
      show(buffers.map(valuesOf).join());
      for (const buffer of buffers) buffer.dispose();
      stream.synchronizeSync();
      show(upstream.usage().usedBytes === 64 * KiB, filesOf() - files, codeOf(() => new CudaAsyncMemoryResource({ exportable: 1 })));
      pool.dispose();
      upstream.dispose();
      child.post('end');
      await child.ended;
    `);
    expect(end).toEqual(printed('0,1,3', '0,0', '100,101,2,102', 'true 1 ERR_INVALID_ARG_TYPE'));
  });

  test('is let go of without a wait, while the work of its owner has not run', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream({ nonBlocking: true });
        const buffer = openBuffer(await received(), { stream });
        buffer.fill(2);
        buffer.dispose();
        await post('disposed');
        await received();
        process.disconnect();
      \`);
      const stream = new Stream({ nonBlocking: true });
      const buffer = new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream });
      const hold = stream.hold();
      buffer.fill(1);
      child.post(exportBuffer(buffer));
      show(await child.received());
      const done = importersDone(buffer);
      show(await Promise.race([done.then(() => 'past'), sleep(50).then(() => 'in use')]));
      hold.release();
      await done;
      show(valuesOf(buffer));
      child.post('end');
      await child.ended;
    `);
    expect(end).toEqual(printed('disposed', 'in use', '2'));
  });

  test('can be opened twice, and by two processes', () => {
    const end = runProcesses(`
      const text = \`
        const stream = new Stream({ nonBlocking: true });
        const handle = await received();
        const [first, second] = [openBuffer(handle, { stream }), openBuffer(handle, { stream })];
        first.dispose();
        await post(valuesOf(second));
        await received();
        second.dispose();
        await received();
        process.disconnect();
      \`;
      const children = [start(text), start(text)];
      const stream = new Stream({ nonBlocking: true });
      const resource = new CudaMemoryResource();
      const buffer = new DeviceBuffer(4096, { resource, stream });
      buffer.fill(6);
      const handle = exportBuffer(buffer);
      show(Buffer.compare(handle, exportBuffer(buffer)), handle.byteLength);
      for (const child of children) child.post(handle);
      for (const child of children) show(await child.received());
      buffer.dispose();
      children[0].post('dispose');
      await sleep(100);
      show(resource.reservedBytes);
      children[1].post('dispose');
      show(await until(() => resource.reservedBytes === 0));
      for (const child of children) child.post('end');
      for (const child of children) await child.ended;
    `);
    expect(end).toEqual(printed('0 56', '6', '6', '4096', 'true'));
  });

  test('travels without memory, and with a capacity that is not used', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream();
        for (const handle of await received()) {
          const buffer = openBuffer(handle, { stream });
          await post([buffer.byteLength, buffer.capacityBytes, buffer.ptr === 0].join());
          buffer.dispose();
        }
        await received();
        process.disconnect();
      \`);
      const stream = new Stream();
      const resource = new CudaMemoryResource();
      const buffers = [new DeviceBuffer(0, { resource, stream }), new DeviceBuffer(0, { resource, stream, capacityBytes: 512 })];
      child.post(buffers.map((buffer) => exportBuffer(buffer)));
      show(await child.received(), await child.received());
      for (const buffer of buffers) await importersDone(buffer);
      for (const buffer of buffers) buffer.dispose();
      show(resource.reservedBytes);
      child.post('end');
      await child.ended;
    `);
    expect(end).toEqual(printed('0,0,true 0,512,false', '0'));
  });

  test('leaves no descriptor and no mapping behind', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream();
        for (;;) {
          const handle = await received();
          if (handle === 'end') break;
          const buffer = openBuffer(handle, { stream });
          buffer.fill(1);
          buffer.dispose();
          await until(() => filesOf() === 0);
          await post([filesOf(), mappingsOf()].join());
        }
        process.disconnect();
      \`);
      // Other programs may have files there.
      const inSharedMemory = () => readdirSync('/dev/shm').filter((name) => name.includes('cistern'));
      const before = inSharedMemory();
      const stream = new Stream();
      const resource = new CudaMemoryResource();
      const seen = new Set();
      for (let i = 0; i < 20; i++) {
        const buffer = new DeviceBuffer(100 * KiB, { resource, stream });
        child.post(exportBuffer(buffer));
        seen.add(await child.received());
        await importersDone(buffer);
        buffer.dispose();
        seen.add('here ' + [filesOf(), mappingsOf()].join());
      }
      show([...seen].join(' '));
      show(inSharedMemory().filter((name) => !before.includes(name)).length, resource.reservedBytes);
      child.post('end');
      await child.ended;
    `);
    // The records, and the memory of a software device.
    const files = isSoftwareDevice ? 2 : 1;
    expect(end).toEqual(printed(`0,0 here ${files},${files}`, '0 0'));
  });

  test('can be detached or released only while no other process uses it', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream();
        const buffer = openBuffer(await received(), { stream });
        await post([codeOf(() => detachBuffer(buffer)), codeOf(() => exportBuffer(buffer)), codeOf(() => buffer.resize(8192))].join());
        await received();
        buffer.recast(new CudaMemoryResource());
        await post(valuesOf(buffer));
        await received();
        process.disconnect();
      \`);
      const stream = new Stream();
      const resource = new CudaMemoryResource();
      const buffer = new DeviceBuffer(4096, { resource, stream });
      buffer.fill(4);
      child.post(exportBuffer(buffer));
      show(await child.received());
      show(codeOf(() => detachBuffer(buffer)), codeOf(() => buffer.release()), codeOf(() => shareBuffer(buffer)));
      child.post('recast');
      show(await child.received());
      await importersDone(buffer);
      show(discardBuffer(detachBuffer(buffer)), resource.reservedBytes);
      child.post('end');
      await child.ended;
    `);
    const unsupported = 'ERR_CISTERN_NOT_SUPPORTED';
    const invalid = 'ERR_CISTERN_INVALID_STATE';
    expect(end).toEqual(printed(`${unsupported},${unsupported},${unsupported}`, `${invalid} ${invalid} ${invalid}`, '4', 'true 0'));
  });
});

test('a wait for the other processes lasts until they are done, wherever the buffer has moved meanwhile', () => {
  const end = runProcesses(`
    const child = start(\`
      const stream = new Stream();
      const buffers = (await received()).map((handle) => openBuffer(handle, { stream }));
      await post('open');
      await received();
      for (const buffer of buffers) buffer.dispose();
      await received();
      process.disconnect();
    \`);
    const stream = new Stream();
    const resource = new CudaMemoryResource();
    const buffers = Array.from({ length: 2 }, () => new DeviceBuffer(4096, { resource, stream }));
    child.post(buffers.map((buffer) => exportBuffer(buffer)));
    await child.received();
    const waits = buffers.map((buffer) => importersDone(buffer).then(() => 'done'));
    buffers[0].dispose();
    buffers[1].resize(8192);
    show(await Promise.race([...waits, sleep(40).then(() => 'in use')]), await Promise.race([importersDone(buffers[1]), sleep(40).then(() => 'in use')]));
    child.post('dispose');
    show(await Promise.all(waits), await until(() => resource.reservedBytes === 8192));
    child.post('end');
    await child.ended;
  `);
  expect(end).toEqual(printed('in use undefined', "[ 'done', 'done' ] true"));
});

test('a refused release leaves the handle open at any time, also for a process that is killed then', () => {
  const end = runProcesses(`
    const child = start(\`
      const stream = new Stream();
      const handle = await received();
      const buffer = openBuffer(handle, { stream });
      await post('open');
      const codes = new Set();
      for (const end = performance.now() + 200; performance.now() < end; ) codes.add(codeOf(() => openBuffer(handle, { stream }).dispose()));
      await post([...codes].join());
      await received();
    \`);
    const buffer = new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream: new Stream() });
    child.post(exportBuffer(buffer));
    await child.received();
    const answer = child.received();
    const codes = new Set();
    while ((await Promise.race([answer, new Promise((resolve) => setImmediate(resolve))])) === undefined) {
      for (let i = 0; i < 500; i++) codes.add(codeOf(() => buffer.release()));
    }
    show([...codes].join(), await answer);
    process.kill(child.pid, 'SIGKILL');
    await importersDone(buffer);
    show(codeOf(() => buffer.release()));
  `);
  expect(end).toEqual(printed('ERR_CISTERN_INVALID_STATE nothing', 'nothing'));
});

test('a dispose, detach, share or move that the driver refuses leaves the handle as it was', () => {
  const end = runProcesses(`
    const child = start(\`
      const stream = new Stream();
      for (let handle = await received(); handle !== 'end'; handle = await received()) {
        await post(codeOf(() => { const buffer = openBuffer(handle, { stream }); const values = valuesOf(buffer); buffer.dispose(); throw { code: values }; }));
      }
      process.disconnect();
    \`);
    const stream = new Stream();
    const resource = new CudaMemoryResource();
    const buffer = new DeviceBuffer(4096, { resource, stream });
    buffer.fill(6);
    const handle = exportBuffer(buffer);
    const calls = [['cuMemFree', (each) => each.dispose()], ['cuMemFree', (each) => each.resize(8192)], ['cuEventRecord', (each) => detachBuffer(each)], ['cuEventRecord', (each) => shareBuffer(each)]];
    for (const [name, call] of calls) {
      cistern.failCall(name, 1, 999);
      const refused = codeOf(() => call(buffer));
      child.post(handle);
      show(refused, await child.received(), buffer.byteLength, Buffer.compare(handle, exportBuffer(buffer)));
      await importersDone(buffer);
    }
    const empty = new DeviceBuffer(0, { resource, stream });
    const handles = [handle, exportBuffer(empty)];
    for (const each of [buffer, empty]) each.dispose();
    for (const each of handles) {
      child.post(each);
      show(await child.received());
    }
    show(resource.reservedBytes);
    child.post('end');
    await child.ended;
  `);
  const refused = 'ERR_CISTERN_DRIVER 6 4096 0';
  const stale = 'ERR_CISTERN_STALE_HANDLE';
  expect(end).toEqual(printed(refused, refused, refused, refused, stale, stale, '0'));
});

test('memory that is kept for another process cannot be opened after a refused free', () => {
  const end = runProcesses(`
    const child = start(\`
      const stream = new Stream();
      const handle = await received();
      const buffer = openBuffer(handle, { stream });
      await post('open');
      await received();
      buffer.dispose();
      await post(codeOf(() => openBuffer(handle, { stream })));
      await received();
      await post(codeOf(() => openBuffer(handle, { stream })));
      process.disconnect();
    \`);
    const stream = new Stream();
    const resource = new CudaMemoryResource();
    const buffer = new DeviceBuffer(4096, { resource, stream });
    child.post(exportBuffer(buffer));
    await child.received();
    buffer.dispose();
    cistern.failCall('cuMemFree', 1000, 999);
    child.post('dispose');
    show(await child.received());
    await sleep(100);
    child.post('again');
    show(await child.received());
    cistern.failCall('cuMemFree', 0, 999);
    show(await until(() => { codeOf(() => new DeviceBuffer(1024 * MiB, { resource, stream })); return resource.reservedBytes === 0; }));
    await child.ended;
  `);
  expect(end).toEqual(printed('ERR_CISTERN_STALE_HANDLE', 'ERR_CISTERN_STALE_HANDLE', 'true'));
});

test('a refused share leaves the handle of a buffer without memory as it is', () => {
  const end = runProcesses(`
    const child = start(\`
      await post(codeOf(() => openBuffer(handle, { stream: new Stream() })));
      process.disconnect();
    \`.replace('await post', 'const handle = await received(); await post'));
    const buffer = new DeviceBuffer(0, { resource: new CudaMemoryResource(), stream: new Stream() });
    const handle = exportBuffer(buffer);
    show(codeOf(() => shareBuffer(buffer)));
    child.post(handle);
    show(await child.received());
    await child.ended;
  `);
  expect(end).toEqual(printed('ERR_CISTERN_NOT_SUPPORTED', 'nothing'));
});

describe('a process that ends', () => {
  const endings = {
    'exits without disposing the buffer': 'process.exit(0);',
    crashes: 'process.abort();',
    'is killed': "process.kill(process.pid, 'SIGKILL');",
    'is killed behind a hold': "stream.hold(); buffer.fill(7); buffer.dispose(); process.kill(process.pid, 'SIGKILL');",
  };
  test.for(Object.entries(endings))('and %s gives the memory back', ([, ending]) => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream({ nonBlocking: true });
        const buffer = openBuffer(await received(), { stream });
        await post('open');
        await received();
        ${ending}
      \`);
      const stream = new Stream();
      const resource = new CudaMemoryResource();
      const buffer = new DeviceBuffer(4096, { resource, stream });
      child.post(exportBuffer(buffer));
      await child.received();
      buffer.dispose();
      await sleep(20);
      show(resource.reservedBytes);
      child.post('end');
      await child.ended;
      show(await until(() => resource.reservedBytes === 0));
    `);
    expect((end as { stdout: string }).stdout).toBe('4096\ntrue\n');
  });

  test('leaves its contents to those that have opened its buffers, and ends their waits', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream({ nonBlocking: true });
        const resource = new CudaMemoryResource();
        const buffers = [new DeviceBuffer(4096, { resource, stream }), new DeviceBuffer(4096, { resource, stream })];
        for (const buffer of buffers) buffer.fill(1);
        stream.synchronizeSync();
        const first = exportBuffer(buffers[0]);
        stream.hold();
        buffers[1].fill(2);
        await post([first, exportBuffer(buffers[1])]);
        await received();
        process.kill(process.pid, 'SIGKILL');
      \`);
      const stream = new Stream({ nonBlocking: true });
      const handles = await child.received();
      const buffers = handles.map((handle) => openBuffer(handle, { stream }));
      const contents = buffers[1].toHost();
      child.post('end');
      await child.ended;
      show([...new Set(await contents)].join(), valuesOf(buffers[0]));
      for (const handle of handles) show(errorOf(() => openBuffer(handle, { stream })).replaceAll(child.pid, 'N'));
      buffers[0].fill(5);
      show(valuesOf(buffers[0]));
      for (const buffer of buffers) buffer.dispose();
      show(await until(() => filesOf() === 0), mappingsOf());
    `);
    const stale = 'ERR_CISTERN_STALE_HANDLE: cannot open a buffer: process N, which exported it, has ended';
    expect(end).toEqual(printed('1 1', stale, stale, '5', 'true 0'));
  });

  test('as a worker leaves what it exported, and what it opened, to the rest of its process', () => {
    const end = runProcesses(`
      import { Worker } from 'node:worker_threads';
      const child = start(\`
        const { Worker } = await import('node:worker_threads');
        const handle = await received();
        const worker = new Worker(\\\`
          const { parentPort, workerData } = require('node:worker_threads');
          import('${wholePackage}').then(({ openBuffer, Stream }) => {
            globalThis.buffer = openBuffer(workerData, { stream: new Stream() });
            setInterval(() => {}, 1000);
            parentPort.postMessage('open');
          });
        \\\`, { eval: true, execArgv: [], workerData: handle });
        await once(worker, 'message');
        await post('open');
        await received();
        await worker.terminate();
        await until(() => { new Stream().dispose(); return filesOf() === 0; });
        await post([filesOf(), mappingsOf()].join());
        await received();
        process.disconnect();
      \`);
      const before = Device.get().memoryInfo().freeBytes;
      const worker = new Worker(\`
        const { parentPort } = require('node:worker_threads');
        import('${wholePackage}').then(({ CudaMemoryResource, DeviceBuffer, exportBuffer, Stream }) => {
          const stream = new Stream();
          globalThis.buffer = new DeviceBuffer(1 << 20, { resource: new CudaMemoryResource(), stream });
          parentPort.postMessage(exportBuffer(globalThis.buffer));
          setInterval(() => {}, 1000);
        });
      \`, { eval: true, execArgv: [] });
      const [handle] = await once(worker, 'message');
      child.post(handle);
      await child.received();
      await worker.terminate();
      const free = () => { new Stream().dispose(); return before - Device.get().memoryInfo().freeBytes; };
      show(free() >= 1 * MiB);
      child.post('end the worker');
      show(await child.received());
      show(await until(() => free() === 0));
      child.post('end');
      await child.ended;
    `);
    expect(end).toEqual(printed('true', '0,0', 'true'));
  });
});

describe('a handle that cannot be opened', () => {
  test('is refused: forged, cut, changed, of another version, or of another type', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream();
        const handle = await received();
        const open = (bytes) => codeOf(() => openBuffer(bytes, { stream }));
        const codes = new Set();
        for (let i = 0; i < 8; i++) codes.add(open(Buffer.from(handle.map((byte, at) => (at === i ? byte ^ 1 : byte)))));
        await post([...codes].join());
        codes.clear();
        for (let i = 12; i < 56; i++) codes.add(open(Buffer.from(handle.map((byte, at) => (at === i ? byte ^ 1 : byte)))));
        await post([...codes].join());
        codes.clear();
        for (let i = 0; i < 64; i++) codes.add(open(crypto.getRandomValues(new Uint8Array(i))));
        codes.add(open(handle.subarray(0, 55)));
        codes.add(open(Buffer.concat([handle, handle])));
        await post([...codes].join());
        await post(errorOf(() => openBuffer(Buffer.from(handle.map((byte, at) => (at === 8 ? 2 : byte))), { stream })));
        codes.clear();
        const transferred = new Uint8Array(56);
        structuredClone(transferred, { transfer: [transferred.buffer] });
        for (const value of [undefined, null, 'handle', 1, {}, [], { type: 'Buffer' }, { type: 'Buffer', data: [1n] }, transferred]) codes.add(open(value));
        await post([...codes].join());
        const buffer = openBuffer(JSON.parse(JSON.stringify(Buffer.from(handle))), { stream });
        await post(valuesOf(buffer));
        buffer.dispose();
        await post([filesOf(), mappingsOf()].join());
        process.disconnect();
      \`);
      const stream = new Stream();
      const buffer = new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream });
      buffer.fill(8);
      child.post(exportBuffer(buffer));
      for (let i = 0; i < 7; i++) show(await child.received());
      await child.ended;
    `);
    const foreign = 'ERR_CISTERN_FOREIGN_HANDLE';
    const version =
      'ERR_CISTERN_NOT_SUPPORTED: cannot open a buffer: its handle has version 2, but this version of cistern reads only version 1';
    expect(end).toEqual(printed(foreign, foreign, foreign, version, 'ERR_INVALID_ARG_TYPE', '8', '0,0'));
  });

  test('is refused in the process that exported it, and once its buffer has given the memory up', () => {
    const end = runProcesses(`
      const child = start(\`
        const stream = new Stream();
        for (let i = 0; i < 3; i++) await post(errorOf(() => openBuffer(handle = globalThis.handle ?? (globalThis.handle = null), { stream })));
      \`.replace(/for .*/, \`
        for (let i = 0; i < 2; i++) {
          const handle = await received();
          await post(errorOf(() => openBuffer(handle, { stream })));
        }
        process.disconnect();
      \`));
      const stream = new Stream();
      const resource = new CudaMemoryResource();
      const buffer = new DeviceBuffer(4096, { resource, stream });
      const handle = exportBuffer(buffer);
      const name = (text) => text.replaceAll(process.pid, 'N');
      show(name(errorOf(() => openBuffer(handle, { stream }))));
      buffer.resize(8192);
      child.post(handle);
      show(name(await child.received()));
      const second = exportBuffer(buffer);
      buffer.dispose();
      child.post(second);
      show(name(await child.received()));
      show(errorOf(() => exportBuffer(buffer)));
      show(resource.reservedBytes);
      await child.ended;
    `);
    const stale = 'ERR_CISTERN_STALE_HANDLE: cannot open a buffer: process N, which exported it, has released it';
    expect(end).toEqual(
      printed(
        'ERR_CISTERN_INVALID_STATE: cannot open a buffer: this process, N, exported it; use the buffer itself, or share it with other workers',
        stale,
        stale,
        'ERR_CISTERN_DISPOSED: cannot export a buffer: the buffer is already disposed',
        '0',
      ),
    );
  });

  test('is refused for a device that this process does not have, and a stream of another device', () => {
    if (!isSoftwareDevice && !isStrictDriver) skipTest('a GPU has all its devices in every process');
    const end = runProcesses(
      `
      process.env.CISTERN_SOFTWARE_DEVICES = process.env.STRICT_DRIVER_DEVICES = '1';
      const child = start(\`
        const stream = new Stream();
        await post(errorOf(() => openBuffer(handle, { stream })));
        process.disconnect();
      \`.replace('await post', 'const handle = await received(); await post'));
      process.env.CISTERN_SOFTWARE_DEVICES = process.env.STRICT_DRIVER_DEVICES = '2';
      const other = start(\`
        const stream = new Stream();
        const handle = await received();
        await post(codeOf(() => openBuffer(handle, { stream })));
        process.disconnect();
      \`);
      const device = Device.get(1);
      const stream = new Stream({ device });
      const buffer = new DeviceBuffer(4096, { resource: new CudaMemoryResource({ device }), stream });
      child.post(exportBuffer(buffer));
      show((await child.received()).replaceAll(process.pid, 'N'));
      other.post(exportBuffer(buffer));
      show(await other.received());
      await child.ended;
      await other.ended;
      await importersDone(buffer);
    `,
      { CISTERN_SOFTWARE_DEVICES: '2', STRICT_DRIVER_DEVICES: '2' },
    );
    expect(end).toEqual(
      printed(
        'ERR_CISTERN_DEVICE_UNAVAILABLE: cannot open a buffer: process N exported it on a device with a UUID that no device of this process has',
        'ERR_INVALID_ARG_VALUE',
      ),
    );
  });
});

test('a driver that refuses a call of an export or an open leaves everything as it was', () => {
  const end = runProcesses(`
    const child = start(\`
      const stream = new Stream();
      const handle = await received();
      for (const name of ['cuIpcOpenMemHandle', 'cuIpcOpenEventHandle', 'cuStreamWaitEvent']) {
        cistern.failCall(name, 1, 999);
        await post([name, codeOf(() => openBuffer(handle, { stream })), filesOf(), mappingsOf()].join(' '));
      }
      const buffer = openBuffer(handle, { stream });
      cistern.failCall('cuIpcCloseMemHandle', 1, 999);
      await post(valuesOf(buffer));
      buffer.dispose();
      await until(() => filesOf() === 0);
      await post([filesOf(), mappingsOf()].join());
      await received();
      process.disconnect();
    \`);
    const stream = new Stream();
    const resource = new CudaMemoryResource();
    const buffer = new DeviceBuffer(4096, { resource, stream });
    buffer.fill(3);
    for (const name of ['cuIpcGetMemHandle', 'cuEventCreate', 'cuEventRecord', 'cuIpcGetEventHandle']) {
      cistern.failCall(name, 1, 999);
      show(name, codeOf(() => exportBuffer(buffer)));
    }
    child.post(exportBuffer(buffer));
    for (let i = 0; i < 5; i++) show(await child.received());
    await importersDone(buffer);
    buffer.dispose();
    show(resource.reservedBytes);
    child.post('end');
    await child.ended;
  `);
  const refused = ['cuIpcGetMemHandle', 'cuEventCreate', 'cuEventRecord', 'cuIpcGetEventHandle'].map(
    (name) => `${name} ERR_CISTERN_DRIVER`,
  );
  const notOpened = ['cuIpcOpenMemHandle', 'cuIpcOpenEventHandle', 'cuStreamWaitEvent'].map((name) => `${name} ERR_CISTERN_DRIVER 0 0`);
  expect(end).toEqual(printed(...refused, ...notOpened, '3', '0,0', '0'));
});

test('memory that cannot be exported is refused with a sentence that names its resource', () => {
  const end = runProcesses(`
    const stream = new Stream();
    const resources = [
      new ManagedMemoryResource(), new HostMemoryResource(), new PinnedHostMemoryResource(), new CudaAsyncMemoryResource(),
      new PoolMemoryResource(new VirtualMemoryResource({ reservationBytes: 4 * MiB }), { initialBytes: 2 * MiB }),
    ];
    for (const resource of resources) {
      const buffer = new DeviceBuffer(4096, { resource, stream });
      show(errorOf(() => exportBuffer(buffer)).replace(/0x\\w+/, 'P'));
      buffer.dispose();
    }
    const owner = new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream });
    const wrapped = wrapMemory({ ptr: owner.ptr, byteLength: 4096, stream });
    show(errorOf(() => exportBuffer(wrapped)));
    show(errorOf(() => exportBuffer(attachBuffer(detachBuffer(new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream })), { stream }))));
    shareBuffer(owner);
    show(codeOf(() => exportBuffer(owner)));
    show(filesOf());
  `);
  const host = (kind: string, name: string) =>
    `ERR_CISTERN_NOT_SUPPORTED: cannot export a buffer: the ${kind} memory of a ${name} cannot be shared with other processes; recast it to a CudaMemoryResource`;
  const device = (name: string) =>
    `ERR_CISTERN_NOT_SUPPORTED: cannot export a buffer: the driver cannot share P, memory of a ${name}, with other processes; recast it to a CudaMemoryResource, or to a CudaAsyncMemoryResource with exportable: true`;
  expect(end).toEqual(
    printed(
      host('managed', 'ManagedMemoryResource'),
      host('host', 'HostMemoryResource'),
      host('pinned-host', 'PinnedHostMemoryResource'),
      device('CudaAsyncMemoryResource'),
      device('VirtualMemoryResource'),
      'ERR_CISTERN_NOT_SUPPORTED: cannot export a buffer: its memory was wrapped, so its owner may take it back while others use it',
      'ERR_CISTERN_NOT_SUPPORTED: cannot export a buffer: its memory belongs to another worker, which frees it when this one ends; first recast it to a CudaMemoryResource',
      'ERR_CISTERN_INVALID_STATE',
      '0',
    ),
  );
});

test('two processes exchange buffers, either is killed at random, and nothing is left', { timeout: 90_000 }, () => {
  const program = ['test/stress/exchange-between-processes.mjs', '--buffers', '120', '--kills', '5'];
  const { status, stdout, stderr } = spawnSync(process.execPath, program, { encoding: 'utf8', timeout: 80_000 });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  expect(JSON.parse(stdout)).toMatchObject({ wrong: 0, kills: 5, leaks: 0 });
});
