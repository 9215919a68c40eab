import { readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { describe, expect, test } from 'vitest';
import { CudaMemoryResource, Event, PoolMemoryResource, Stream } from '../../src/index.js';
import { Recording, RecordingResourceAdaptor } from '../../src/recording/index.js';
import { Account, AccountingResourceAdaptor, withQuota } from '../../src/serving/index.js';
import { readRecordedRun } from '../../src/tools/formats/read-recorded-run.js';
import { eventsOf, readRecording, rowsOf } from '../support/read-recording.js';
import { folder, newFile, recorded } from '../support/recordings.js';
import { runModule, wholePackage } from '../support/run-module.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

const initialExitListeners = process.listenerCount('exit');

const sizesOf = async (file: string) => [...(await readRecordedRun(file)).seconds];
const upTo = (count: number) => Array.from({ length: count }, (_, i) => i);

describe('the file of a recording', () => {
  test('replaces the one before, and can be read at once', async () => {
    const file = newFile();
    writeFileSync(file, 'what was here');
    const before = Date.now();
    using recording = new Recording({ file });
    const run = await readRecording(file);
    expect(run.eventCount).toBe(0);
    expect(run.startedAt).toBeGreaterThanOrEqual(before);
    expect(run.startedAt).toBeLessThanOrEqual(Date.now());
    expect(run.utcOffsetMinutes).toBe(0 - new Date().getTimezoneOffset());
    expect(recording.file).toBe(file);
    const header = JSON.parse(readFileSync(file, 'utf8').slice(24));
    expect(header).toMatchObject({ process: process.pid, writer: expect.stringMatching(/^cistern \d/), clock: expect.any(Number) });
  });

  test('is written at flush and dispose, and in between when enough has accumulated', async () => {
    const file = newFile();
    const recording = new Recording({ file });
    using resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
    resource.allocate(0, stream);
    expect(await sizesOf(file)).toEqual([]);
    resource.flush();
    expect(await sizesOf(file)).toEqual([0]);
    for (let i = 1; i < 10_000; i++) resource.allocate(i, stream);
    const sizes = await sizesOf(file);
    expect(sizes.length).toBeGreaterThan(5000);
    expect(sizes).toEqual(upTo(sizes.length));
    recording.dispose();
    recording.dispose();
    expect(await sizesOf(file)).toEqual(upTo(10_000));
    await readRecording(file);
    expect(() => recording.flush()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  });

  test('is written at the next record once a second has passed, with the right time', async () => {
    const file = newFile();
    using recording = new Recording({ file });
    using resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
    resource.allocate(0, stream);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1050);
    const begun = performance.now();
    resource.allocate(1, stream);
    expect(await sizesOf(file)).toEqual([0]);
    recording.flush();
    const [first, second] = eventsOf(await readRecording(file)).map(({ time }) => time) as [number, number];
    expect(second - first).toBeGreaterThan(1050e6);
    expect(second - first).toBeLessThan(1050e6 + (performance.now() - begun) * 1e6 + 1000e6);
  });

  test('is written at every record with autoFlush', async () => {
    const file = newFile();
    using recording = new Recording({ file, autoFlush: true });
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { deallocationEvents: 'off' });
    using resource = new RecordingResourceAdaptor(pool, { recording });
    using event = new Event();
    const kinds = async () => eventsOf(await readRecording(file)).map(({ kind }) => kind);
    const pointer = resource.allocate(1, stream);
    expect(await kinds()).toEqual(['growth', 'allocate']);
    resource.label(pointer, 'x');
    expect(await kinds()).toEqual(['growth', 'allocate', 'label']);
    resource.deallocate(pointer, 1, stream);
    event.record(stream);
    expect(await kinds()).toEqual(['growth', 'allocate', 'label', 'free', 'eventRecord']);
  });

  test('holds texts of any length, cut off if they are very long', async () => {
    const file = newFile();
    const recording = new Recording({ file });
    using resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
    const texts = [
      '',
      'x',
      'x'.repeat(24),
      'ü'.repeat(16_384),
      '€'.repeat(100_000),
      '\ud800',
      ...upTo(20).map((i) => '€'.repeat(5000 + i)),
    ];
    for (const [i, text] of texts.entries()) resource.label(i + 1, text);
    recording.dispose();
    const run = await readRecording(file);
    const read = eventsOf(run).map(({ second }) => run.labels[second]);
    const expected = texts.map((text) => (text.length > 16_384 ? `${'€'.repeat(16_383)}…` : text.replace('\ud800', '\ufffd')));
    expect(read).toEqual(expected);
  });

  test('pads texts with zeros', () => {
    const file = newFile();
    using recording = new Recording({ file });
    using resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
    for (let i = 0; i < 100; i++) resource.allocate(2 ** 52, stream);
    recording.flush();
    for (let i = 0; i < 50; i++) resource.allocate(1, stream);
    resource.label(1, 'in the place of sizes');
    recording.flush();
    const bytes = readFileSync(file);
    const end = bytes.indexOf('in the place of sizes') + 21;
    expect([...bytes.subarray(end, end + 3)]).toEqual([0, 0, 0]);
  });

  test('has at most 65,535 labels, the last of which stands for all further ones', async () => {
    const file = newFile();
    const recording = new Recording({ file });
    using resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
    for (let i = 1; i <= 65_600; i++) resource.label(i, `label ${i}`);
    resource.label(1, 'label 5');
    recording.dispose();
    const run = await readRecording(file);
    const read = eventsOf(run).map(({ second }) => run.labels[second]);
    expect(run.labels).toHaveLength(65_536);
    expect(read.slice(65_533)).toEqual(['label 65534', ...upTo(66).map(() => '(more labels)'), 'label 5']);
  });

  test('has the account in whose scope each event was made, across awaits, and its path once', async () => {
    const run = await recorded(async (recording) => {
      const resource = new AccountingResourceAdaptor(new RecordingResourceAdaptor(new SpyResource(), { recording }));
      const tenant = new Account({ name: 'tenant' });
      resource.allocate(1, stream);
      await tenant.run(async () => {
        const pointer = resource.allocate(2, stream);
        await withQuota({ name: 'request' }, async () => {
          resource.allocate(3, stream);
          await nextTurn();
          resource.allocate(4, stream);
        });
        await withQuota({ name: 'request' }, () => resource.allocate(5, stream));
        resource.deallocate(pointer, 2, stream);
      });
      resource.allocate(6, stream);
    });
    expect(run.accounts).toEqual(['', 'tenant', 'tenant/request']);
    expect(Array.from(run.accountOf, (account, i) => [run.seconds[i], run.accounts[account]])).toEqual([
      [1, ''],
      [2, 'tenant'],
      [3, 'tenant/request'],
      [4, 'tenant/request'],
      [5, 'tenant/request'],
      [2, 'tenant'],
      [6, ''],
    ]);
  });

  test('that cannot be opened is an error with a code and a cause', () => {
    const file = join(folder, 'no', 'such', 'folder.cistern');
    expect(() => new Recording({ file })).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_LOG_WRITE', message: expect.stringContaining(file) }),
    );
    expect(() => new Recording({} as never)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
    expect(() => new Recording(undefined as never)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
  });

  test('refuses a file that another recording writes to, unless it is a device', () => {
    const file = newFile();
    const first = new Recording({ file });
    expect(() => new Recording({ file })).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
    first.dispose();
    new Recording({ file }).dispose();
    using one = new Recording({ file: '/dev/null' });
    using other = new Recording({ file: '/dev/null' });
    expect(one.file).toBe(other.file);
  });

  test('fails allocations on a full disk before the upstream is asked, and fails no free', () => {
    const upstream = new SpyResource();
    const recording = new Recording({ file: '/dev/full' });
    using resource = new RecordingResourceAdaptor(upstream, { recording });
    const full = expect.objectContaining({ code: 'ERR_CISTERN_LOG_WRITE', cause: expect.objectContaining({ code: 'ENOSPC' }) });
    expect(() => resource.allocate(1, stream)).toThrow(full);
    expect(upstream.alignments).toHaveLength(0);
    for (let i = 0; i < 10_000; i++) resource.deallocate(4096, 1, stream);
    expect(upstream.fences).toHaveLength(10_000);
    expect(() => resource.allocate(1, stream)).toThrow(full);
    expect(() => resource.flush()).toThrow(full);
    expect(() => recording.dispose()).toThrow(full);
    recording.dispose();
    // Nothing is recorded any more, so nothing is in the way.
    resource.allocate(1, stream);
  });

  test('loses no record if the disk was full for a while and wrote only parts', async () => {
    const file = newFile();
    const { status, stderr } = runModule(`
      import fs from 'node:fs';
      import { syncBuiltinESMExports } from 'node:module';
      const { writeSync } = fs;
      let calls = 0;
      // Takes a hundred bytes, and fails every second time.
      fs.writeSync = (descriptor, bytes) => {
        if (calls++ % 2 === 1) throw Object.assign(new Error('full'), { code: 'ENOSPC' });
        return writeSync(descriptor, bytes.subarray(0, 100));
      };
      syncBuiltinESMExports();
      const { CudaMemoryResource, RecordingResourceAdaptor, Stream } = await import('${wholePackage}');
      const resource = new RecordingResourceAdaptor(new CudaMemoryResource(), { file: ${JSON.stringify(file)} });
      const stream = new Stream();
      for (let i = 0; i < 20; ) {
        try {
          resource.deallocate(resource.allocate(i, stream), i, stream);
          i++;
          resource.flush();
        } catch (error) {
          if (error.code !== 'ERR_CISTERN_LOG_WRITE') throw error;
        }
      }
      fs.writeSync = writeSync;
      syncBuiltinESMExports();
      const live = Array.from({ length: 10_000 }, (_, i) => resource.allocate(i, stream));
      fs.writeSync = () => { throw Object.assign(new Error('full'), { code: 'ENOSPC' }); };
      syncBuiltinESMExports();
      for (const [i, pointer] of live.entries()) resource.deallocate(pointer, i, stream);
      fs.writeSync = writeSync;
      syncBuiltinESMExports();
      resource.flush();
    `);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    await readRecording(file);
    expect(await sizesOf(file)).toEqual([...upTo(20).flatMap((i) => [i, i]), ...upTo(10_000), ...upTo(10_000)]);
  });

  test('is complete when the process exits without dispose, even by process.exit', async () => {
    const [file, other] = [newFile(), newFile()];
    const { status, stderr } = runModule(`
      import { CudaMemoryResource, Stream } from 'cistern';
      import { Recording, RecordingResourceAdaptor } from 'cistern/recording';
      const upstream = new CudaMemoryResource();
      const resource = new RecordingResourceAdaptor(upstream, { recording: new Recording({ file: ${JSON.stringify(file)} }) });
      const shared = new RecordingResourceAdaptor(resource, { file: ${JSON.stringify(other)} });
      const stream = new Stream();
      for (let i = 0; i < 3; i++) shared.allocate(i, stream);
      process.exit(5);
    `);
    expect({ status, stderr }).toEqual({ status: 5, stderr: '' });
    expect(await sizesOf(file)).toEqual([0, 1, 2]);
    expect(await sizesOf(other)).toEqual([0, 1, 2]);
  });

  test.each([false, true])('can be read up to the last record written if the process is killed (autoFlush: %s)', async (autoFlush) => {
    const file = newFile();
    const count = 10_000;
    const { signal } = runModule(`
      import { CudaMemoryResource, Stream } from 'cistern';
      import { Recording, RecordingResourceAdaptor } from 'cistern/recording';
      const recording = new Recording({ file: ${JSON.stringify(file)}, autoFlush: ${autoFlush} });
      const resource = new RecordingResourceAdaptor(new CudaMemoryResource(), { recording });
      const stream = new Stream();
      for (let i = 0; i < ${count}; i++) resource.allocate(i, stream);
      process.kill(process.pid, 'SIGKILL');
      setInterval(() => {}, 1000);
    `);
    expect(signal).toBe('SIGKILL');
    const sizes = await sizesOf(file);
    if (autoFlush) expect(sizes).toHaveLength(count);
    else expect(sizes.length).toBeGreaterThan(5000);
    expect(sizes).toEqual(upTo(sizes.length));
    // Only whole blocks were written.
    expect((await readRecordedRun(file)).damage).toBeUndefined();
  });

  test('leaves no listener behind', () => {
    const recordings = [0, 1, 2].map(() => new Recording({ file: newFile() }));
    expect(process.listenerCount('exit')).toBe(initialExitListeners + 1);
    for (const recording of recordings) recording.dispose();
    expect(process.listenerCount('exit')).toBe(initialExitListeners);
  });
});

describe('events', () => {
  test('and waits are recorded with their streams and numbers, in every recording, while there is one', async () => {
    const [file, other] = [newFile(), newFile()];
    using event = new Event();
    using never = new Event();
    using consumer = new Stream();
    event.record(stream);
    const recording = new Recording({ file });
    const second = new Recording({ file: other });
    stream.wait(event);
    event.record(stream);
    consumer.wait(event);
    consumer.wait(never);
    second.dispose();
    event.record(consumer);
    recording.dispose();
    event.record(consumer);
    const version = event.version - 1;
    const [handle, consumerHandle] = [stream, consumer].map(({ nativeHandle }) => `0x${nativeHandle.toString(16)}`);
    const rows = eventsOf(await readRecording(file)).map(({ kind, stream, first }) => [kind, stream, first]);
    expect(rows).toEqual([
      ['eventWait', handle, version - 2],
      ['eventRecord', handle, version - 1],
      ['eventWait', consumerHandle, version - 1],
      ['eventRecord', consumerHandle, version],
    ]);
    const others = eventsOf(await readRecording(other)).map(({ kind, stream, first }) => [kind, stream, first]);
    expect(others).toEqual(rows.slice(0, 3));
  });

  test('of a pool are recorded if it waits for another stream', async () => {
    const file = newFile();
    using recording = new Recording({ file });
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { growth: 'after-waits' });
    using resource = new RecordingResourceAdaptor(pool, { recording });
    using consumer = new Stream();
    const pointer = resource.allocate(1000, stream);
    resource.deallocate(pointer, 1000, stream);
    expect(resource.allocate(1000, consumer)).toBe(pointer);
    recording.flush();
    const events = eventsOf(await readRecording(file));
    expect(events.map(({ kind }) => kind)).toEqual(['growth', 'allocate', 'free', 'eventRecord', 'eventWait', 'allocate']);
    expect(events[4]?.first).toBe(events[3]?.first);
    expect(events[4]?.stream).toBe(events[5]?.stream);
    expect(events[3]?.stream).toBe(events[2]?.stream);
  });
});

describe('streams', () => {
  test('have one name each, whatever object is used, and a new one after they have ended', async () => {
    const file = newFile();
    const recording = new Recording({ file });
    using resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
    using first = new Stream();
    const again = Stream.fromHandle(first.nativeHandle);
    resource.allocate(1, first);
    resource.allocate(2, again);
    const handles = upTo(3).map((i) => {
      using short = new Stream();
      resource.allocate(3 + i, short);
      return `0x${short.nativeHandle.toString(16)}`;
    });
    resource.allocate(6, first);
    const handle = `0x${first.nativeHandle.toString(16)}`;
    recording.dispose();
    const run = await readRecording(file);
    expect(eventsOf(run).map(({ stream }) => stream)).toEqual([handle, handle, ...handles, handle]);
    expect(run.streams).toEqual([handle, ...handles]);
  });

  test('may outnumber the available numbers if they end', async () => {
    const file = newFile();
    const recording = new Recording({ file });
    using resource = new RecordingResourceAdaptor(new SpyResource(), { recording });
    for (let i = 0; i < 65_600; i++) {
      using short = new Stream();
      resource.allocate(i, short);
    }
    resource.allocate(1, stream);
    recording.dispose();
    const run = await readRecording(file);
    expect(run.eventCount).toBe(65_601);
    expect(run.streams).toHaveLength(65_535);
    expect([...run.streamOf.slice(65_533)]).toEqual([65_533, 65_534, ...upTo(66)]);
    expect(run.streams[65]).toBe(`0x${stream.nativeHandle.toString(16)}`);
  });
});

describe('CISTERN_LOG_FILE', () => {
  const program = `
    import { currentResource, DeviceBuffer, resetCurrentResource, setCurrentResource, CudaMemoryResource, Stream } from 'cistern';
    import { annotate } from 'cistern/recording';
    const stream = new Stream();
  `;

  test('records every resource of a program', async () => {
    const file = newFile();
    const { status, stderr } = runModule(
      `${program}
      import { PoolMemoryResource, StatisticsResourceAdaptor } from 'cistern';
      const first = new DeviceBuffer(1000, { stream, label: 'first' });
      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 2 ** 20 });
      const resource = new StatisticsResourceAdaptor(pool);
      const initial = setCurrentResource(resource);
      new DeviceBuffer(2000, { stream, label: 'second' }).dispose();
      pool.deallocate(pool.allocate(2500, stream), 2500, stream);
      resetCurrentResource();
      if (currentResource() !== initial) throw new Error('another resource');
      new DeviceBuffer(3000, { stream }).dispose();
      first.dispose();
      pool.dispose();`,
      { CISTERN_LOG_FILE: file },
    );
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const run = await readRecording(file);
    const events = eventsOf(run).filter(({ kind }) => !kind.startsWith('event'));
    expect(events.map(({ kind, layer, second }) => `${kind} ${layer} ${second}`)).toEqual([
      'allocate cuda 1000',
      'label cuda 1',
      'growth pool 1048576',
      'allocate statistics 2000',
      'label statistics 2',
      'free statistics 2000',
      'allocate pool 2500',
      'free pool 2500',
      'allocate cuda 3000',
      'free cuda 3000',
      'free cuda 1000',
      'release pool 1048576',
    ]);
    expect(run.labels).toEqual(['', 'first', 'second']);
  });

  test('records memory that is taken back, and what a resource does on its own, once', async () => {
    const file = newFile();
    const { status, stderr } = runModule(
      `${program}
      import { CachingMemoryResource, LimitingResourceAdaptor, MonotonicMemoryResource, PoolMemoryResource } from 'cistern';
      const pool = new PoolMemoryResource(new CudaMemoryResource());
      const cache = new CachingMemoryResource(pool);
      const limited = new LimitingResourceAdaptor(cache, { limitBytes: 1e6 });
      for (let pass = 0; pass < 2; pass++) {
        cache.run(() => { new DeviceBuffer(1000, { resource: limited, stream }); cache.allocate(500, stream); });
      }
      if (limited.allocatedBytes !== 0) throw new Error(limited.allocatedBytes);
      const scratch = new MonotonicMemoryResource(pool);
      const mark = scratch.mark();
      scratch.allocate(300, stream);
      scratch.rewind(mark);
      scratch.dispose();
      cache.dispose();
      pool.trim(stream);
      pool.dispose();`,
      { CISTERN_LOG_FILE: file },
    );
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const events = eventsOf(await readRecording(file)).filter(({ kind }) => kind === 'allocate' || kind === 'free');
    const live = new Set<string>();
    for (const { kind, layer, first, second } of events) {
      const place = `${layer} ${first} ${second}`;
      expect(kind === 'allocate' ? live.size === live.add(place).size : !live.delete(place), `${kind} ${place}`).toBe(false);
    }
    expect([...live]).toEqual([]);
    expect(events.filter(({ kind }) => kind === 'allocate').map(({ layer, second }) => `${layer} ${second}`)).toEqual([
      'limiting 1000',
      'caching 500',
      'limiting 1000',
      'caching 500',
      'monotonic 300',
    ]);
  });

  test('takes stacks as CISTERN_LOG_STACKS says', async () => {
    const file = newFile();
    const text = `${program}
      const resource = new CudaMemoryResource();
      for (const bytes of [1000, 2000]) resource.deallocate(resource.allocate(bytes, stream), bytes, stream);`;
    for (const [stacks, count] of [
      ['', 0],
      ['0', 2],
      ['all', 2],
      ['2KiB', 1],
    ] as const) {
      const { status, stderr } = runModule(text, { CISTERN_LOG_FILE: file, CISTERN_LOG_STACKS: stacks });
      expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
      const run = await readRecording(file);
      expect([...run.stackOf].filter((stack) => stack !== 0)).toHaveLength(count);
    }
    const { stderr } = runModule(text, { CISTERN_LOG_FILE: file, CISTERN_LOG_STACKS: 'every' });
    expect(stderr).toContain('CISTERN_LOG_STACKS must be all, or a size such as 16MiB');
  });

  test('takes the records of adaptors without a file, and stays open when they end', async () => {
    const file = newFile();
    const { status, stderr } = runModule(
      `${program}
      import { createResourceStack } from 'cistern';
      for (let i = 0; i < 3; i++) {
        const stack = createResourceStack('recording(pool(cuda))');
        stack.resource.deallocate(stack.resource.allocate(1000, stream), 1000, stream);
        stack.dispose();
      }
      new DeviceBuffer(5000, { stream }).dispose();`,
      { CISTERN_LOG_FILE: file },
    );
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const run = await readRecording(file);
    expect(run.layers.map(({ name }) => name).sort()).toEqual(['cuda', 'pool']);
    expect(eventsOf(run).filter(({ kind, layer }) => kind === 'allocate' && layer === 'pool')).toHaveLength(3);
    expect(eventsOf(run).filter(({ kind, layer }) => kind === 'free' && layer === 'cuda')).toHaveLength(1);
  });

  test('begins with the first phase', async () => {
    const file = newFile();
    const { status, stderr } = runModule(
      `${program}
      globalThis.kept = annotate('load', () => new DeviceBuffer(1000, { stream }));`,
      { CISTERN_LOG_FILE: file },
    );
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(eventsOf(await readRecording(file)).map(({ kind, phase }) => [kind, phase])).toEqual([
      ['phaseBegin', ''],
      ['allocate', 'load'],
      ['phaseEnd', ''],
    ]);
  });

  test('gives each worker thread and, by %p, each process a file of its own', async () => {
    const worker = join(folder, 'worker.mjs');
    const index = pathToFileURL(join(process.cwd(), 'dist', 'index.js')).href;
    writeFileSync(
      worker,
      `import { threadId } from 'node:worker_threads';
      import { DeviceBuffer, Stream } from ${JSON.stringify(index)};
      const stream = new Stream();
      globalThis.kept = new DeviceBuffer(threadId * 1000, { stream });
      if (threadId === 2) process.exit();`,
    );
    const { status, stderr, stdout } = runModule(
      `${program}
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      globalThis.kept = new DeviceBuffer(7, { stream });
      for (let i = 0; i < 2; i++) await once(new Worker(${JSON.stringify(worker)}, { execArgv: [] }), 'exit');
      console.log(process.pid);`,
      { CISTERN_LOG_FILE: join(folder, 'run-%p.cistern') },
    );
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const path = join(folder, `run-${stdout.trim()}.cistern`);
    const runs = await Promise.all([path, `${path}.1`, `${path}.2`].map(readRecording));
    expect(runs.map(({ seconds }) => [...seconds])).toEqual([[7], [1000], [2000]]);
    expect(new Set(runs.map(({ threads }) => threads[0])).size).toBe(3);
  });

  test('makes no file if nothing is recorded', () => {
    const file = newFile();
    const { status } = runModule(`${program} new CudaMemoryResource();`, { CISTERN_LOG_FILE: file });
    expect(status).toBe(0);
    expect(() => statSync(file)).toThrow('ENOENT');
  });

  test.each(['currentResource()', 'new CudaMemoryResource().allocate(5, stream)', "annotate('x', () => {})"])(
    'that cannot be opened is an error at the first use: %s',
    (use) => {
      const { status, stderr } = runModule(`${program} ${use};`, { CISTERN_LOG_FILE: '/no/such/file' });
      expect(status).toBe(1);
      expect(stderr).toContain('ERR_CISTERN_LOG_WRITE');
      expect(stderr).toContain('CISTERN_LOG_FILE: cannot write the log to the file /no/such/file: ENOENT');
    },
  );
});

test('a recording of a resource that is already recorded has no trace of the other recording', async () => {
  const [file, other] = [newFile(), newFile()];
  const recordings = [new Recording({ file }), new Recording({ file: other })] as const;
  using upstream = new CudaMemoryResource();
  using inner = new RecordingResourceAdaptor(upstream, { recording: recordings[0] });
  using outer = new RecordingResourceAdaptor(inner, { recording: recordings[1] });
  const pointer = outer.allocate(5, stream);
  outer.deallocate(pointer, 5, stream);
  for (const recording of recordings) recording.dispose();
  expect(rowsOf(await readRecording(file))).toEqual([`allocate cuda ${pointer} 5`, `free cuda ${pointer} 5`]);
  expect(rowsOf(await readRecording(other))).toEqual([`allocate recording ${pointer} 5`, `free recording ${pointer} 5`]);
});
