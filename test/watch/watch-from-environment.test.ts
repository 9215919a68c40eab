import { describe, expect, test } from 'vitest';
import { runModule } from '../support/run-module.js';

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
    [{ CISTERN_WATCH: 'yes' }, 'CISTERN_WATCH must be 1 or a port, got "yes"'],
    [{ CISTERN_WATCH: '70000' }, 'port must be an integer from 0 to 65535, got 70000'],
    [{ CISTERN_WATCH_INTERVAL: 'often' }, 'intervalMilliseconds must be an integer from 10 to 2^31 - 1, got NaN'],
    [{ CISTERN_WATCH_TOKEN: 'short' }, 'token must be 22 to 256 of the characters A-Z, a-z, 0-9, _ and -'],
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
