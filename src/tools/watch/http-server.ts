import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { readFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { packageFile } from '../../package/file.js';
import { prometheusContentType, prometheusText } from './prometheus-text.js';
import { sampleStatistics } from './sample-statistics.js';

/** Maximum number of pages open at once. */
const maximumClients = 8;
/**
 * A page that is this many bytes behind is dropped, so that the process does not keep data that
 * nobody reads.
 */
const maximumUnsentBytes = 4 * 1024 * 1024;
/** How much history a newly opened page gets. */
const maximumHistorySamples = 600;
const maximumHistoryBytes = 2 * 1024 * 1024;

const headers = {
  'Cache-Control': 'no-store',
  // The page's own policy restricts what it may load and run.
  'Content-Security-Policy': "frame-ancestors 'none'",
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
  // The address contains the token.
  'Referrer-Policy': 'no-referrer',
  'X-Content-Type-Options': 'nosniff',
} as const;

/**
 * Listens on the loopback interface, and sends the messages of `cistern:statistics`.
 * `serveStatistics` does the rest.
 */
export async function listen(
  port: number,
  token = randomBytes(16).toString('base64url'),
): Promise<{ readonly url: string; readonly close: () => Promise<void> }> {
  const page = await readPage();
  const feed = new Feed();
  const server = createServer((request, response) => answer(request, response, token, page, feed));
  server.on('connection', (socket) => socket.unref());
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', resolve);
  });
  server.unref();
  if (feeds.size === 0) process.on('exit', endFeeds);
  feeds.add(feed);
  subscribe('cistern:statistics', feed.publish);
  const close = async () => {
    unsubscribe('cistern:statistics', feed.publish);
    feeds.delete(feed);
    if (feeds.size === 0) process.off('exit', endFeeds);
    feed.end(null);
    await new Promise<void>((resolve) => {
      server.close(() => resolve());
      server.closeAllConnections();
    });
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/${token}/`, close };
}

/** Those of the servers that are open. One listener is for all of them: Node warns of more than ten. */
const feeds = new Set<Feed>();

function endFeeds(status: number): void {
  for (const feed of feeds) feed.end(status);
}

/** The open pages, and the history that a new page receives first. */
class Feed {
  readonly #clients = new Set<ServerResponse>();
  readonly #history: string[] = [];
  #historyBytes = 0;

  readonly publish = (sample: unknown): void => {
    const text = `data: ${JSON.stringify(sample)}\n\n`;
    this.#history.push(text);
    this.#historyBytes += text.length;
    while (this.#history.length > maximumHistorySamples || this.#historyBytes > maximumHistoryBytes) {
      this.#historyBytes -= (this.#history.shift() as string).length;
    }
    for (const client of this.#clients) {
      if (client.writableLength > maximumUnsentBytes) client.destroy();
      else client.write(text);
    }
  };

  open(response: ServerResponse): void {
    if (this.#clients.size >= maximumClients) {
      refuse(response, 503, `${maximumClients} pages are open already`);
      return;
    }
    this.#clients.add(response);
    response.on('close', () => this.#clients.delete(response));
    response.writeHead(200, { ...headers, 'Content-Type': 'text/event-stream' });
    response.write(`retry: 1000\n\n${this.#history.join('')}`);
  }

  /** @param status the exit status of the process, or null if the process goes on */
  end(status: number | null): void {
    for (const client of this.#clients) client.end(`event: end\ndata: ${JSON.stringify({ status })}\n\n`);
  }
}

function answer(request: IncomingMessage, response: ServerResponse, token: string, page: string, feed: Feed): void {
  // A page of another site whose host name was made to resolve to this machine sends that host
  // name.
  const port = request.socket.localPort;
  // Of several, `headers` has the first only, and what is between may have looked at another.
  const [host, ...others] = request.headersDistinct['host'] ?? [];
  if (others.length > 0 || (host !== `127.0.0.1:${port}` && host !== `localhost:${port}`)) {
    refuse(response, 403, 'this server answers only to its own address');
    return;
  }
  const [, given = '', path, ...rest] = (request.url ?? '').split('?')[0]?.split('/') ?? [];
  if (!isSame(given, token) || path === undefined || rest.length > 0) {
    refuse(response, 404, 'nothing is here; is the address complete?');
    return;
  }
  if (request.method !== 'GET' && request.method !== 'HEAD') {
    response.setHeader('Allow', 'GET, HEAD');
    refuse(response, 405, 'only GET and HEAD are allowed');
    return;
  }
  if (path === '') send(response, 'text/html; charset=utf-8', page);
  else if (path === 'metrics') send(response, prometheusContentType, prometheusText(sampleStatistics()));
  else if (path === 'sample') send(response, 'application/json', JSON.stringify(sampleStatistics()));
  else if (path === 'events' && request.method === 'GET') feed.open(response);
  else refuse(response, 404, 'nothing is here');
}

function send(response: ServerResponse, type: string, body: string): void {
  response.writeHead(200, { ...headers, 'Content-Type': type }).end(body);
}

function refuse(response: ServerResponse, status: number, reason: string): void {
  response.writeHead(status, { ...headers, 'Content-Type': 'text/plain; charset=utf-8' }).end(`${reason}\n`);
}

/** Takes the same time for any input. */
function isSame(given: string, token: string): boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(given), digest(token));
}

/** `npm run build` makes this page from `src/tools/pages/watch`. */
function readPage(): Promise<string> {
  return readFile(packageFile('dist/tools/pages/watch.html'), 'utf8');
}
