import { readFile } from 'node:fs/promises';
import { pipeline, Readable } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { createGzip } from 'node:zlib';
import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { assertOptions, optionNames } from '../../basics/validation.js';
import { packageFile } from '../../package/file.js';
import { type FileSink, writeWhole } from '../files/write-whole.js';
import { assertRecordedRun } from '../formats/assert-recorded-run.js';
import type { RecordedRun } from '../formats/recorded-run.js';
import { runElement } from '../formats/report/read-report.js';
import { PackedReportRun, packReportRun } from './pack-report-run.js';
import type { ReportContents, ReportFit, ReportGraphs, RunOverview } from './report-contents.js';
import { shownName } from './shorten-paths.js';

/** Options of {@link writeReport}. */
export interface WriteReportOptions {
  /**
   * The page's title.
   * @defaultValue the names of the logs
   */
  readonly title?: string | undefined;
  /**
   * The index of the run that the page shows next to the first when it is opened.
   * @defaultValue none
   */
  readonly comparedRun?: number | undefined;
  /**
   * For each run, the memory that stacks of resources need to complete it: results of `fitLog`. The
   * page shows them next to the reserved memory.
   * @defaultValue none
   */
  readonly fits?: readonly (readonly ReportFit[])[] | undefined;
  /**
   * For each run, the memory of its CUDA graphs: results of `planGraphs`, with the names of the graphs. The
   * page shows them in a table.
   * @defaultValue none
   */
  readonly graphs?: readonly (ReportGraphs | undefined)[] | undefined;
  /** Called with the finished share of the work, from 0 to 1, and the current log. */
  readonly onProgress?: ((done: number, source: string) => void) | undefined;
}

const knownOptions = optionNames<WriteReportOptions>({ comparedRun: true, fits: true, graphs: true, onProgress: 'function', title: true });

/**
 * Writes a report: one self-contained HTML file, which needs no network and shows where the memory
 * of one or several runs went. It has curves of live and reserved bytes, a map of the addresses
 * over time, fragmentation, tables of allocations and layers, and a flame chart of call sites.
 * Texts from the logs, such as labels, are always shown as plain text.
 *
 * A file is written completely or not at all.
 * @param runs at least one result of {@link readReportRun}, which takes less memory, or of
 * `readRecordedRun`
 * @param target a path, a `file:` URL, or a sink that takes the text in pieces
 * @throws ArgumentTypeError, ArgumentRangeError
 * @throws a system error of Node (`ENOENT`, `EACCES`, `ENOSPC`, …) if the file cannot be written.
 * @example
 * ```ts
 * const pool = await readReportRun('pool.cistern');
 * const arena = await readReportRun('arena.cistern');
 * await writeReport([pool, arena], 'report.html', { title: 'Pool or arena?' });
 * ```
 */
export async function writeReport(
  runs: readonly (RecordedRun | PackedReportRun)[],
  target: string | URL | FileSink,
  options: WriteReportOptions = {},
): Promise<void> {
  if (!Array.isArray(runs)) throw new ArgumentTypeError(`runs must be an array, got ${formatValue(runs)}`);
  if (runs.length === 0) throw new ArgumentRangeError('runs must hold at least one run, got none');
  for (const run of runs) if (!(run instanceof PackedReportRun)) assertRecordedRun(run, 'each of the runs');
  assertOptions(options, knownOptions);
  const { comparedRun } = options;
  if (comparedRun !== undefined && !(Number.isInteger(comparedRun) && comparedRun > 0 && comparedRun < runs.length)) {
    throw new ArgumentRangeError(`comparedRun must be the index of a run other than the first, got ${formatValue(comparedRun)}`);
  }
  if (options.fits !== undefined && !(Array.isArray(options.fits) && options.fits.every(Array.isArray))) {
    throw new ArgumentTypeError(`fits must be an array of arrays, got ${formatValue(options.fits)}`);
  }
  if (options.graphs !== undefined && !(Array.isArray(options.graphs) && options.graphs.every(isReportGraphs))) {
    throw new ArgumentTypeError(`graphs must be an array of figures of graphs, got ${formatValue(options.graphs)}`);
  }
  if (options.title !== undefined && typeof options.title !== 'string') {
    throw new ArgumentTypeError(`title must be a string, got ${formatValue(options.title)}`);
  }
  if (typeof target === 'string' || target instanceof URL) {
    const path = typeof target === 'string' ? target : fileURLToPath(target);
    await writeWhole(path, (sink) => writePage(runs, sink, options), { gzip: false });
  } else await writePage(runs, target, options);
}

async function writePage(runs: readonly (RecordedRun | PackedReportRun)[], sink: FileSink, options: WriteReportOptions): Promise<void> {
  // `npm run build` makes this file from src/tools/pages/report.
  const page = await readFile(packageFile('dist/tools/pages/report.html'), 'utf8');
  const title = options.title ?? runs.map(({ source }) => shownName(source)).join(', ');
  const end = page.lastIndexOf('</body>');
  await sink.write(page.slice(0, end).replace(/<title>[^<]*<\/title>/, () => `<title>${escapeHtml(title)}</title>`));
  const overviews: RunOverview[] = [];
  for (const [index, run] of runs.entries()) {
    const report = async (share: number) => {
      options.onProgress?.((index + share) / runs.length, run.source);
      // Yields between pieces of work, so that signals are handled.
      await setImmediate();
    };
    await report(0);
    const packed = run instanceof PackedReportRun ? run : packReportRun(run);
    overviews.push({ ...packed.overview, fits: (options.fits?.[index] ?? []).map(fitOf), graphs: graphsOf(options.graphs?.[index]) });
    await sink.write(runElement.begin);
    await writeData(packed, sink, report);
    await sink.write(`${runElement.end}\n`);
    await report(1);
  }
  const contents: ReportContents = { title, runs: overviews, comparedRun: options.comparedRun ?? null };
  // A script element ends at the first `</script`, even inside a string.
  await sink.write(`<script type="application/json" id="contents">${JSON.stringify(contents).replaceAll('<', '\\u003c')}</script>\n`);
  await sink.write(page.slice(end));
}

function isReportGraphs(graphs: ReportGraphs | null | undefined): boolean {
  return graphs === undefined || Array.isArray(graphs?.graphs);
}

/** The fields that the page shows. */
function fitOf({ resource, fitted, smallestMaximumBytes, overheadRatio, isComplete }: ReportFit): ReportFit {
  return { resource, fitted, smallestMaximumBytes, overheadRatio, isComplete };
}

/** The fields that the page shows: a plan has an entry for each allocation. */
function graphsOf(graphs: ReportGraphs | undefined): ReportGraphs | null {
  if (graphs === undefined) return null;
  const { lowerBoundBytes, poolsBytes, sharedPoolBytes, plannedApartBytes, plannedBytes } = graphs;
  return {
    graphs: graphs.graphs.map(({ name, allocationCount, peakLiveBytes, ...bytes }) => ({
      name,
      allocationCount,
      peakLiveBytes,
      lowerBoundBytes: bytes.lowerBoundBytes,
      poolBytes: bytes.poolBytes,
      plannedBytes: bytes.plannedBytes,
    })),
    lowerBoundBytes,
    poolsBytes,
    sharedPoolBytes,
    plannedApartBytes,
    plannedBytes,
  };
}

/** Writes the data of a run: gzip in base64, piece by piece. */
async function writeData(run: PackedReportRun, sink: FileSink, report: (share: number) => Promise<void>): Promise<void> {
  const pieces = [...run.pieces()];
  async function* told(): AsyncGenerator<Uint8Array> {
    for (const [index, piece] of pieces.entries()) {
      if (index % 64 === 0) await report(0.5 + index / pieces.length / 2);
      if (piece.length > 0) yield piece;
    }
  }
  const gzip = createGzip();
  // An error on either side destroys the other and reaches the loop.
  pipeline(Readable.from(told(), { objectMode: false }), gzip, () => {});
  let rest: Buffer = Buffer.alloc(0);
  for await (const piece of gzip as AsyncIterable<Buffer>) {
    // Three bytes make four base64 digits.
    const bytes = Buffer.concat([rest, piece]);
    const whole = bytes.length - (bytes.length % 3);
    rest = bytes.subarray(whole);
    await sink.write(bytes.toString('base64', 0, whole));
  }
  await sink.write(rest.toString('base64'));
}

function escapeHtml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
