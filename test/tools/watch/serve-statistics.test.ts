import { once } from 'node:events';
import { get, type IncomingHttpHeaders, request } from 'node:http';
import { connect } from 'node:net';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ArgumentRangeError, ArgumentTypeError, StatisticsResourceAdaptor } from '../../../src/index.js';
import {
  prometheusText,
  type ServeStatisticsOptions,
  type StatisticsSample,
  type StatisticsServer,
  sampleStatistics,
  serveStatistics,
} from '../../../src/tools/watch/index.js';
import { SpyResource } from '../../support/spy-resource.js';

let server: StatisticsServer;
beforeEach(async () => {
  server = await serveStatistics({ intervalMilliseconds: 20 });
});
afterEach(() => server.close());

interface Answer {
  readonly status: number | undefined;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

/** `fetch` sets the host header itself, so this does not use it. */
function ask(url: string | URL, options: { readonly method?: string; readonly host?: string } = {}): Promise<Answer> {
  const { method = 'GET', host = new URL(url).host } = options;
  return new Promise((resolve, reject) => {
    request(url, { method, headers: { host } }, (response) => {
      let body = '';
      response.on('data', (text) => {
        body += text;
      });
      response.on('end', () => resolve({ status: response.statusCode, headers: response.headers, body }));
    })
      .on('error', reject)
      .end();
  });
}

/** The events of an open page, as they come. */
async function openEvents(): Promise<{ readonly status: number | undefined; readonly text: () => string; readonly close: () => void }> {
  let received = '';
  return new Promise((resolve, reject) => {
    const page = get(`${server.url}events`, (response) => {
      response.on('data', (text) => {
        received += text;
      });
      response.on('error', () => {});
      resolve({ status: response.statusCode, text: () => received, close: () => page.destroy() });
    }).on('error', reject);
  });
}

describe('serveStatistics', () => {
  test('serves a page that loads nothing, Prometheus text and JSON below its address', async () => {
    using resource = new StatisticsResourceAdaptor(new SpyResource(), { name: 'served' });
    const page = await ask(server.url);
    expect([page.status, page.headers['content-type']]).toEqual([200, 'text/html; charset=utf-8']);
    expect(page.body).toContain('<title>cistern watch</title>');
    expect(page.body).not.toMatch(/<(script|link|img)[^>]+(src|href)="(?!data:)/);
    const metrics = await ask(`${server.url}metrics`);
    expect([metrics.status, metrics.headers['content-type']]).toEqual([200, 'text/plain; version=0.0.4; charset=utf-8']);
    expect(metrics.body).toContain('cistern_resource_live_bytes{resource="served"');
    expect(prometheusText(sampleStatistics()).split('\n')).toHaveLength(metrics.body.split('\n').length);
    const sample = await ask(`${server.url}sample`);
    expect(sample.headers['content-type']).toBe('application/json');
    expect((JSON.parse(sample.body) as StatisticsSample).resources).toMatchObject([{ name: resource.name }]);
  });

  test('tells browsers to keep the address and the content to themselves', async () => {
    const { headers } = await ask(server.url);
    expect(headers).toMatchObject({
      'cache-control': 'no-store',
      'content-security-policy': "frame-ancestors 'none'",
      'cross-origin-resource-policy': 'same-origin',
      'referrer-policy': 'no-referrer',
      'x-content-type-options': 'nosniff',
    });
    expect(headers['access-control-allow-origin']).toBeUndefined();
  });

  test('allows the page to run its own code and to connect to its server, and nothing else', async () => {
    const { body } = await ask(server.url);
    const policy = /<meta http-equiv="Content-Security-Policy" content="([^"]+)"/.exec(body)?.[1];
    expect(policy).toMatch(/^default-src 'none'; script-src 'sha256-\S+'; style-src 'sha256-\S+'; connect-src 'self';/);
  });

  test('listens on the loopback interface only', () => {
    expect(server.url).toMatch(/^http:\/\/127\.0\.0\.1:\d+\/[\w-]{22}\/$/);
  });

  test('makes a new token each time', async () => {
    await using other = await serveStatistics();
    expect(other.url.split('/')[3]).not.toBe(server.url.split('/')[3]);
  });

  test.each(['', 'x/', 'AAAAAAAAAAAAAAAAAAAAAA/', 'metrics', 'events', '%2e%2e/'])(
    'answers 404 to /%s, which lacks the token',
    async (path) => {
      expect((await ask(`${new URL(server.url).origin}/${path}`)).status).toBe(404);
    },
  );

  test('answers 404 to an unknown path below the token, and to a part of the token', async () => {
    expect((await ask(`${server.url}other`)).status).toBe(404);
    expect((await ask(`${server.url}metrics/more`)).status).toBe(404);
    expect((await ask(server.url.slice(0, -1))).status).toBe(404);
    expect((await ask(`${server.url.slice(0, -2)}/`)).status).toBe(404);
  });

  test('refuses requests for another host, as after DNS rebinding', async () => {
    const { port } = new URL(server.url);
    for (const host of [`example.com:${port}`, 'localhost', `127.0.0.1.example.com:${port}`, `127.0.0.1:${Number(port) + 1}`]) {
      expect((await ask(server.url, { host })).status, host).toBe(403);
      expect((await ask(`${server.url}metrics`, { host })).status, host).toBe(403);
    }
    expect((await ask(server.url, { host: `localhost:${port}` })).status).toBe(200);
  });

  test.each([
    ['its own first', (own: string) => [own, 'example.com']],
    ['its own last', (own: string) => ['example.com', own]],
    ['its own twice', (own: string) => [own, own]],
    ['none', () => []],
  ])('refuses a request with several hosts, or none: %s', async (_, hostsOf) => {
    const { hostname, port, pathname } = new URL(server.url);
    const socket = connect(Number(port), hostname);
    const hosts = hostsOf(`${hostname}:${port}`).map((host) => `Host: ${host}\r\n`);
    socket.end(`GET ${pathname}metrics HTTP/1.0\r\n${hosts.join('')}\r\n`);
    let answer = '';
    for await (const piece of socket) answer += piece;
    expect(answer).toMatch(/^HTTP\/1\.1 403 /);
  });

  test.each(['POST', 'PUT', 'DELETE', 'OPTIONS'])('refuses %s', async (method) => {
    const { status, headers } = await ask(server.url, { method });
    expect([status, headers.allow]).toEqual([405, 'GET, HEAD']);
  });

  test('goes on after a request that is not HTTP', async () => {
    await new Promise<void>((resolve) => {
      const socket = connect(Number(new URL(server.url).port), '127.0.0.1', () => socket.write('\0\0not http\r\n\r\n'));
      socket.resume().on('close', () => resolve());
    });
    expect((await ask(server.url)).status).toBe(200);
  });

  test('sends samples as they are taken, and earlier samples to pages opened later', async () => {
    using _resource = new StatisticsResourceAdaptor(new SpyResource(), { name: 'streamed' });
    const first = await openEvents();
    await expect.poll(() => first.text().match(/^data: \{.*"streamed".*\}\n$/gm)?.length ?? 0).toBeGreaterThan(3);
    const second = await openEvents();
    await expect.poll(() => second.text()).toContain(first.text().slice(0, 200));
    first.close();
    second.close();
  });

  test('keeps eight pages open and refuses the next, until one goes', async () => {
    const pages = [];
    for (let i = 0; i < 8; i++) pages.push(await openEvents());
    expect(pages.every(({ status }) => status === 200)).toBe(true);
    expect((await openEvents()).status).toBe(503);
    expect((await ask(`${server.url}metrics`)).status).toBe(200);
    pages[0]?.close();
    await expect.poll(async () => (await openEvents()).status).toBe(200);
    for (const page of pages) page.close();
  });

  test('drops a page that does not read', async () => {
    const upstream = new SpyResource();
    const many = Array.from({ length: 300 }, (_, i) => new StatisticsResourceAdaptor(upstream, { name: `${i} ${'x'.repeat(3000)}` }));
    const { hostname, port, pathname } = new URL(server.url);
    const sockets = Array.from({ length: 8 }, () => connect(Number(port), hostname).on('error', () => {}));
    const openings = sockets.map(async (socket, i) => {
      socket.write(`GET ${pathname}events HTTP/1.1\r\nHost: ${hostname}:${port}\r\n\r\n`);
      await once(socket, 'data');
      if (i === 0) socket.pause();
      else socket.resume();
    });
    await Promise.all(openings);
    expect((await openEvents()).status).toBe(503);
    await expect.poll(async () => (await openEvents()).status, { timeout: 100_000, interval: 200 }).toBe(200);
    expect(sockets.slice(1).every(({ readyState }) => readyState === 'open')).toBe(true);
    for (const socket of sockets) socket.destroy();
    for (const resource of many) resource.dispose();
  });

  test('notifies its pages when it is closed, and closes once', async () => {
    const page = await openEvents();
    await server.close();
    await expect.poll(() => page.text()).toContain('event: end\ndata: {"status":null}\n\n');
    await server.close();
    await expect(ask(server.url)).rejects.toThrow(/ECONNREFUSED/);
  });

  test('listens for the end of the process once for all servers, and not when all are closed', async () => {
    const listeners = () => process.listenerCount('exit');
    const withOne = listeners();
    const others = [await serveStatistics(), await serveStatistics()];
    expect(listeners()).toBe(withOne);
    await server.close();
    await others[0]?.close();
    expect(listeners()).toBe(withOne);
    await others[1]?.close();
    expect(listeners()).toBe(withOne - 1);
  });

  test('takes a port and a token, so that the address stays the same', async () => {
    const { port } = new URL(server.url);
    await server.close();
    const token = 'a-token_of_22-letters0';
    await using again = await serveStatistics({ port: Number(port), token });
    expect(again.url).toBe(`http://127.0.0.1:${port}/${token}/`);
    expect((await ask(again.url)).status).toBe(200);
  });

  test('rejects if the port is taken', async () => {
    await expect(serveStatistics({ port: Number(new URL(server.url).port) })).rejects.toMatchObject({ code: 'EADDRINUSE' });
  });

  test.each<[ServeStatisticsOptions, typeof ArgumentRangeError | typeof ArgumentTypeError]>([
    [{ port: -1 }, ArgumentRangeError],
    [{ port: 65_536 }, ArgumentRangeError],
    [{ port: 1.5 }, ArgumentRangeError],
    [{ port: '80' as never }, ArgumentTypeError],
    [{ token: 'short' }, ArgumentRangeError],
    [{ token: 'with/a/slash/and/more/than/22' }, ArgumentRangeError],
    [{ token: 5 as never }, ArgumentTypeError],
    [{ intervalMilliseconds: 1 }, ArgumentRangeError],
    [null as never, ArgumentTypeError],
  ])('refuses %j', async (options, error) => {
    await expect(serveStatistics(options)).rejects.toThrow(error);
  });
});
