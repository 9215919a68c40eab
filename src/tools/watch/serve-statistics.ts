import { ArgumentTypeError, formatValue, invalidValue } from '../../basics/errors.js';
import { assertInteger, assertOptions, optionNames } from '../../basics/validation.js';
import { type PublishStatisticsOptions, publishStatistics } from './publish-statistics.js';

/** Options of {@link serveStatistics}. */
export interface ServeStatisticsOptions extends PublishStatisticsOptions {
  /**
   * The port on the loopback interface, from 0 to 65535; 0 takes a free one.
   * @defaultValue 0
   */
  readonly port?: number | undefined;
  /**
   * The secret part of the address: 22 to 256 of the characters A-Z, a-z, 0-9, _ and -. Set it if
   * the address must stay the same, as for Prometheus.
   * @defaultValue 128 random bits, different each time
   */
  readonly token?: string | undefined;
}

const knownOptions = optionNames<ServeStatisticsOptions>({ intervalMilliseconds: true, port: true, token: true });

/** A server started by {@link serveStatistics}. */
export interface StatisticsServer extends AsyncDisposable {
  /**
   * The address of the page, including the token. Below it, the Prometheus text is at `metrics` and
   * one sample as JSON at `sample`.
   */
  readonly url: string;
  /** Ends every connection and stops listening. Does nothing the second time. */
  close(): Promise<void>;
}

/**
 * Serves the statistics of this environment to this machine: a live page, Prometheus' text and
 * JSON. The server listens on the loopback interface only, and answers only under an address with a
 * token that cannot be guessed. While it runs, samples are published ({@link publishStatistics}).
 *
 * Neither the server nor its connections keep the process alive. While your code blocks the event
 * loop, the page says that nothing new has arrived.
 * @throws ArgumentTypeError, ArgumentRangeError if the port, token or interval is invalid. Rejects
 * with Node's error if the port is taken.
 * @example
 * ```ts
 * const server = await serveStatistics();
 * console.log(`live statistics: ${server.url}`);
 * await server.close(); // or keep it for as long as the process runs
 * ```
 */
export async function serveStatistics(options: ServeStatisticsOptions = {}): Promise<StatisticsServer> {
  assertOptions(options, knownOptions);
  const { port = 0, token, ...publishOptions } = options;
  assertInteger(port, 'port', 0, 65_535);
  if (token !== undefined) assertToken(token);
  const publisher = publishStatistics(publishOptions);
  try {
    // Loaded here, so that programs that only count do not load Node's HTTP server.
    const { listen } = await import('./http-server.js');
    const { url, close: closeServer } = await listen(port, token);
    const close = () => {
      publisher[Symbol.dispose]();
      return closeServer();
    };
    return { url, close, [Symbol.asyncDispose]: close };
  } catch (error) {
    publisher[Symbol.dispose]();
    throw error;
  }
}

/** @internal */
export function assertToken(token: unknown, name = 'token'): void {
  if (typeof token !== 'string') throw new ArgumentTypeError(`${name} must be a string, got ${formatValue(token)}`);
  if (!/^[\w-]{22,256}$/.test(token)) {
    throw invalidValue(`${name} must be 22 to 256 of the characters A-Z, a-z, 0-9, _ and -`);
  }
}
