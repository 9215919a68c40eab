import { StatisticsResourceAdaptor } from '../../adaptors/pass-through/statistics-resource-adaptor.js';
import { flagSetting, integerSetting } from '../../basics/checked-settings.js';
import { reasonOf } from '../../basics/errors.js';
import { observeProgramCalls } from '../../recording/program-calls.js';
import { removeSetting, setting } from '../../settings.js';
import { findBufferSites } from './buffer-sites.js';
import type { ServeStatisticsOptions, StatisticsServer } from './serve-statistics.js';

let watch: Promise<void> | undefined;

/**
 * Serves the statistics of the main thread if `CISTERN_WATCH` asks for it, and prints the address
 * on standard error. Does nothing the second time. A failure becomes a process warning: watching
 * must not change what a program does.
 */
export function watchFromEnvironment(): Promise<void> {
  watch ??= start();
  return watch;
}

async function start(): Promise<void> {
  const wanted = setting('CISTERN_WATCH') ?? '0';
  if (wanted === '0' || !process.getBuiltinModule('node:worker_threads').isMainThread) return;
  // Before the program constructs a resource.
  countEverything();
  try {
    const shouldOpen = flagSetting('CISTERN_WATCH_OPEN');
    const { url } = await serve(optionsFromEnvironment());
    process.stderr.write(`cistern: watch process ${process.pid} at ${url}\n`);
    if (shouldOpen === true) await open(url);
  } catch (error) {
    warn(`the process cannot be watched: ${reasonOf(error)}`);
  }
}

/** Counts every resource that is constructed from now on, and finds the call sites of buffers. */
function countEverything(): void {
  findBufferSites();
  observeProgramCalls<StatisticsResourceAdaptor>({
    isAdaptor: (resource) => resource instanceof StatisticsResourceAdaptor,
    isOwn: () => true,
    adaptorOf: (resource) => new StatisticsResourceAdaptor(resource, { name: String(resource) }),
    disposed: (adaptor) => adaptor[Symbol.dispose](),
  });
}

function optionsFromEnvironment(): ServeStatisticsOptions {
  const port = integerSetting('CISTERN_WATCH', 1, 65_535, '1, which takes any free port, to 65535') as number;
  const interval = integerSetting('CISTERN_WATCH_INTERVAL', 10, 2 ** 31 - 1, '10 to 2^31 - 1');
  const token = setting('CISTERN_WATCH_TOKEN');
  return {
    port: port === 1 ? 0 : port,
    ...(interval !== undefined ? { intervalMilliseconds: interval } : {}),
    ...(token !== undefined ? { token } : {}),
  };
}

/** The port may already be taken by the parent process, which has the same variables. */
async function serve(options: ServeStatisticsOptions): Promise<StatisticsServer> {
  // Load the server only in a process that is watched.
  const { assertToken, serveStatistics } = await import('./serve-statistics.js');
  if (options.token !== undefined) assertToken(options.token, 'CISTERN_WATCH_TOKEN');
  try {
    return await serveStatistics(options);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error;
    return serveStatistics({ ...options, port: 0 });
  }
}

/** Opens the page in the user's browser. */
async function open(url: string): Promise<void> {
  // Child processes must not open pages of their own.
  removeSetting('CISTERN_WATCH_OPEN');
  const { spawn } = await import('node:child_process');
  const browser = spawn('xdg-open', [url], { stdio: 'ignore', detached: true });
  browser.on('error', (error) => warn(`no browser could be opened: ${error.message}`));
  browser.unref();
}

function warn(message: string): void {
  process.emitWarning(message, { code: 'CISTERN_WATCH' });
}
