import { readFile } from 'node:fs/promises';
import { setImmediate } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../errors.js';
import { type FileSink, writeWhole } from '../recording/write-whole.js';
import type { RecordedRun } from '../replay/recorded-run.js';
import { assertFunction, assertOptions } from '../validation.js';
import { createReportRun } from './create-report-run.js';
import type { ReportContents, RunOverview } from './report-contents.js';
import { packReportRun } from './report-data.js';
import { outermostLayer } from './report-run.js';
import { summarizeLayers } from './summary.js';

/** Options of {@link writeReport}. */
export interface WriteReportOptions {
  /**
   * What the page is called.
   * @defaultValue the names of the logs
   */
  readonly title?: string;
  /** Called with what is done, from 0 to 1, and the log that is worked on. */
  readonly onProgress?: (done: number, source: string) => void;
}

/**
 * Writes a report: one HTML file that needs nothing else, no network either, and shows where the memory of one or several runs went. It has curves
 * of what was live and reserved, a map of the addresses over time, fragmentation, tables of allocations and layers, and a flame chart of
 * call sites. Texts of the logs, such as labels, are shown as text whatever they hold.
 *
 * A file is written as a whole or not at all.
 * @param runs what {@link readRecordedRun} read, at least one
 * @param target a path, a `file:` URL, or what takes the text in pieces
 * @throws ArgumentTypeError, ArgumentRangeError
 * @throws a system error of Node (`ENOENT`, `EACCES`, `ENOSPC`, …) where the file cannot be written.
 * @example
 * ```ts
 * const pool = await readRecordedRun('pool.cistern');
 * const arena = await readRecordedRun('arena.cistern');
 * await writeReport([pool, arena], 'report.html', { title: 'Pool or arena?' });
 * ```
 */
export async function writeReport(
  runs: readonly RecordedRun[],
  target: string | URL | FileSink,
  options: WriteReportOptions = {},
): Promise<void> {
  if (!Array.isArray(runs)) throw new ArgumentTypeError(`runs must be an array, got ${formatValue(runs)}`);
  if (runs.length === 0) throw new ArgumentRangeError('runs must hold at least one run, got none');
  assertOptions(options);
  if (options.onProgress !== undefined) assertFunction(options.onProgress, 'onProgress');
  if (typeof target === 'string' || target instanceof URL) {
    const path = typeof target === 'string' ? target : fileURLToPath(target);
    await writeWhole(path, (sink) => writePage(runs, sink, options), { gzip: false });
  } else await writePage(runs, target, options);
}

async function writePage(runs: readonly RecordedRun[], sink: FileSink, options: WriteReportOptions): Promise<void> {
  // What `npm run build` made of src/pages/report.
  const page = await readFile(new URL('../../dist/pages/report.html', import.meta.url), 'utf8');
  const overviews: RunOverview[] = [];
  const data: string[] = [];
  for (const [index, recorded] of runs.entries()) {
    const report = async (share: number) => {
      options.onProgress?.((index + share) / runs.length, recorded.source);
      // Long work in steps, so that a signal is heard in between.
      await setImmediate();
    };
    await report(0);
    const run = createReportRun(recorded);
    await report(0.25);
    const { source, startedAt, durationNanoseconds, eventCount, damage } = run;
    overviews.push({
      source,
      startedAt: startedAt ?? null,
      durationNanoseconds,
      eventCount,
      isDamaged: damage !== undefined,
      threadCount: run.threads.length,
      streamCount: run.streams.length,
      layer: outermostLayer(run),
      layers: summarizeLayers(run).map((summary, layer) => ({ ...summary, name: run.layers[layer]?.name ?? '' })),
    });
    await report(0.5);
    const packed = Buffer.concat(packReportRun(run));
    await report(0.65);
    data.push((await promisify(gzip)(packed)).toString('base64'));
    await report(1);
  }
  const title = options.title ?? runs.map(({ source }) => source).join(', ');
  const contents: ReportContents = { title, runs: overviews };
  const end = page.lastIndexOf('</body>');
  await sink.write(page.slice(0, end).replace(/<title>[^<]*<\/title>/, () => `<title>${escapeHtml(title)}</title>`));
  // A script element ends at the first `</script`, whatever is around it.
  await sink.write(`<script type="application/json" id="contents">${JSON.stringify(contents).replaceAll('<', '\\u003c')}</script>\n`);
  for (const text of data) {
    await sink.write('<script type="application/octet-stream" class="run">');
    await sink.write(text);
    await sink.write('</script>\n');
  }
  await sink.write(page.slice(end));
}

function escapeHtml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
