import { describe, expect, test } from 'vitest';
import type { StatisticsSample } from '../../../src/tools/watch/index.js';
import { eventsOf, readRecording } from '../../support/read-recording.js';
import { newFile } from '../../support/recordings.js';
import { runModule } from '../../support/run-module.js';

const environment = {
  CISTERN_WATCH: '1',
  CISTERN_WATCH_INTERVAL: undefined,
  CISTERN_WATCH_TOKEN: undefined,
  CISTERN_WATCH_OPEN: undefined,
};
const address = /^cistern: watch process \d+ at (http:\/\/127\.0\.0\.1:(\d+)\/([\w-]+)\/)\n$/;

describe('CISTERN_WATCH', () => {
  test('makes a program that imports cistern watchable, and does not keep it running', () => {
    const { status, stderr } = runModule("import 'cistern'; setTimeout(() => {}, 300);", environment);
    expect(status).toBe(0);
    expect(stderr).toMatch(address);
  });

  test.each([[''], ['0'], [undefined]])('is off if it is %j', (CISTERN_WATCH) => {
    const { status, stderr } = runModule("import 'cistern'; setTimeout(() => {}, 300);", { ...environment, CISTERN_WATCH });
    expect([status, stderr]).toEqual([0, '']);
  });

  test('counts every resource of a program that nobody prepared, each call once, and names where buffers come from', () => {
    const program = `
      import { CudaMemoryResource, DeviceBuffer, LimitingResourceAdaptor, PoolMemoryResource, StatisticsResourceAdaptor, Stream } from 'cistern';
      import { sampleStatistics } from 'cistern/watch';
      import { setFlagsFromString } from 'node:v8';
      import { runInNewContext } from 'node:vm';

      const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 1 << 20 });
      const resource = new LimitingResourceAdaptor(pool, { limitBytes: 1 << 20 });
      const own = new StatisticsResourceAdaptor(pool, { name: 'own' });
      const stream = new Stream();
      const kept = [1, 2].map(function keep() { return new DeviceBuffer(3000, { resource, stream }); });
      own.allocate(500, stream);
      pool.deallocate(pool.allocate(700, stream), 700, stream);
      const gone = new LimitingResourceAdaptor(pool, { limitBytes: 1000 });
      gone.deallocate(gone.allocate(10, stream), 10, stream);
      gone[Symbol.dispose]();
      (function drop() { for (let i = 0; i < 3; i++) new DeviceBuffer(100, { resource, stream }); })();
      await new Promise((resolve) => setTimeout(resolve, 50));
      setFlagsFromString('--expose-gc');
      runInNewContext('gc')();
      await new Promise((resolve) => setTimeout(resolve, 50));
      const { resources, bufferSites, leakSites, streams } = sampleStatistics();
      console.log(JSON.stringify({ resources, bufferSites, leakSites, streams, kept: kept.length }));
    `;
    const { status, stdout } = runModule(program, environment);
    expect(status).toBe(0);
    const { resources, bufferSites, leakSites, streams } = JSON.parse(stdout) as StatisticsSample;
    expect(resources.map(({ name, liveBytes, allocations, frees }) => [name, liveBytes, allocations, frees])).toEqual([
      ['own', 500, 1, 0],
      ['limiting(pool(cuda))', 6000, 5, 3],
      ['pool(cuda)', 0, 1, 1],
    ]);
    expect(bufferSites).toEqual([{ site: expect.stringMatching(/^(Array\.)?keep \(.*:\d+:\d+\)$/), buffers: 2, bytes: 6000 }]);
    expect(leakSites).toEqual([{ site: expect.stringMatching(/^drop \(.*:\d+:\d+\)$/), buffers: 3, bytes: 300 }]);
    expect(streams).toBeGreaterThan(0);
  });

  test('records and counts at once', async () => {
    const file = newFile();
    const program = `
      import { CudaMemoryResource, PoolMemoryResource, Stream } from 'cistern';
      import { sampleStatistics } from 'cistern/watch';

      const pool = new PoolMemoryResource(new CudaMemoryResource());
      const stream = new Stream();
      pool.deallocate(pool.allocate(700, stream), 700, stream);
      console.log(JSON.stringify(sampleStatistics().resources.map(({ name, allocations, frees }) => [name, allocations, frees])));
    `;
    const { status, stdout } = runModule(program, { ...environment, CISTERN_LOG_FILE: file });
    expect([status, stdout]).toEqual([0, '[["pool(cuda)",1,1]]\n']);
    const events = eventsOf(await readRecording(file)).filter(({ kind }) => kind === 'allocate' || kind === 'free');
    expect(events.map(({ kind, layer, second }) => `${kind} ${layer} ${second}`)).toEqual(['allocate pool 700', 'free pool 700']);
  });

  test('does not keep the process alive while a page is open', () => {
    const program = `
      import 'cistern';
      import { get } from 'node:http';
      import { setTimeout } from 'node:timers/promises';

      const url = await new Promise((resolve) => {
        const { write } = process.stderr;
        process.stderr.write = (text) => {
          process.stderr.write = write;
          resolve(/http:\\S+/.exec(text)[0]);
        };
      });
      let text = '';
      const response = await new Promise((resolve) => get(url + 'events', resolve));
      response.socket.unref();
      response.on('data', (data) => { text += data; });
      await setTimeout(300);
      console.log(text.includes('data: {'));
    `;
    const { status, stdout } = runModule(program, { ...environment, CISTERN_WATCH_INTERVAL: '20' });
    expect([status, stdout]).toEqual([0, 'true\n']);
  });

  test('takes the port and the token from the environment', () => {
    const token = 'one-token-of-a-scraper-22';
    const first = runModule("import 'cistern'; setTimeout(() => {}, 200);", { ...environment, CISTERN_WATCH_TOKEN: token });
    const [, , port, shown] = address.exec(first.stderr) ?? [];
    expect(shown).toBe(token);
    const second = runModule("import 'cistern'; setTimeout(() => {}, 200);", { ...environment, CISTERN_WATCH: port });
    expect(address.exec(second.stderr)?.[2]).toBe(port);
  });

  test('takes another port if that one is taken', () => {
    const program = `
      import { createServer } from 'node:http';

      const server = createServer().listen(0, '127.0.0.1', async () => {
        process.env.CISTERN_WATCH = String(server.address().port);
        await import('cistern');
        setTimeout(() => server.close(), 300);
      });
    `;
    const { status, stderr } = runModule(program, { ...environment, CISTERN_WATCH: '' });
    expect(status).toBe(0);
    expect(stderr).toMatch(address);
  });

  test.each([
    [{ CISTERN_WATCH: 'yes' }, 'CISTERN_WATCH must be an integer from 1, which takes any free port, to 65535, got "yes"'],
    [{ CISTERN_WATCH: '70000' }, 'CISTERN_WATCH must be an integer from 1, which takes any free port, to 65535, got "70000"'],
    [{ CISTERN_WATCH_INTERVAL: 'often' }, 'CISTERN_WATCH_INTERVAL must be an integer from 10 to 2^31 - 1, got "often"'],
    [{ CISTERN_WATCH_INTERVAL: '1e3' }, 'CISTERN_WATCH_INTERVAL must be an integer from 10 to 2^31 - 1, got "1e3"'],
    [{ CISTERN_WATCH_OPEN: 'yes' }, 'CISTERN_WATCH_OPEN must be 0 or 1, got "yes"'],
    [{ CISTERN_WATCH_TOKEN: 'short' }, 'CISTERN_WATCH_TOKEN must be 22 to 256 of the characters A-Z, a-z, 0-9, _ and -'],
  ])('warns about %j, and the program runs', (wrong, message) => {
    const { status, stdout, stderr } = runModule("import 'cistern'; console.log('ran');", { ...environment, ...wrong });
    expect([status, stdout]).toEqual([0, 'ran\n']);
    expect(stderr).toContain(`[CISTERN_WATCH] Warning: the process cannot be watched: ${message}`);
  });

  test('leaves worker threads alone', () => {
    const program = `
      import 'cistern';
      import { Worker } from 'node:worker_threads';

      new Worker("import('cistern').then(() => setTimeout(() => {}, 300))", { eval: true });
    `;
    const { status, stderr } = runModule(program, environment);
    expect(status).toBe(0);
    expect(stderr).toMatch(address);
  });
});
