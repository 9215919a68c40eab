/** What graphs of many batch sizes hold, and the times of their captures and launches. */
import { combined, formatNumber } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */
/** @typedef {{ upstream: string, order: string, reservedBytes: number, granularityBytes: number }} Captured */

export const name = 'graphs';
export const title = 'Bytes of the graphs of 51 batch sizes over the lower bound of the largest; times of captures and launches';

/** The share of each log that is one step. */
const shares = { 'torch-ddp-training': 0.2, 'torch-owlv2-inference': 1, 'torch-sglang-capture': 1 };
export const traces = Object.keys(shares);

const [planned, searching] = ['planned', 'searching'];
/** The same step without a capture, and without allocations: the time of a planned capture is compared with both. */
const [pooled, known] = ['not captured, from a pool', 'captured, the same addresses without a resource'];
const captureSubjects = [planned, searching, pooled, known];

/** Those that vLLM captures up to 512. */
const batches = [...[1, 2, 4], ...Array.from({ length: 31 }, (_, i) => 8 * (i + 1)), ...Array.from({ length: 17 }, (_, i) => 256 + 16 * i)];

/** A log of a small model: also as it is, for one graph; and enlarged, so that whole pages matter no more. */
const smallTrace = [
  { sizes: batches, factor: 1 },
  { sizes: [512], factor: 1 },
  { sizes: batches, factor: 16 },
];

/** @param {Context} context @returns {Promise<any[]>} */
export async function run(context) {
  const rows = [];
  for (const trace of context.traces.filter((each) => traces.includes(each.name))) {
    const share = shares[/** @type {keyof typeof shares} */ (trace.name)];
    for (const { sizes, factor } of trace.name === 'torch-sglang-capture' ? smallTrace : [{ sizes: batches, factor: 1 }]) {
      context.progress(`${trace.name}, ${sizes.length} graphs`);
      rows.push({
        trace: factor === 1 ? trace.name : `${trace.name} x ${factor}`,
        ...(await runSubject('graphs', { trace: trace.path, share, batches: sizes, factor, repeat: context.repeat })),
      });
    }
  }
  const parameters = { share: 1, batches: [1], factor: 1, repeat: context.repeat };
  /** @type {Map<string, Figures[]>} */
  const figures = new Map(captureSubjects.map((subject) => [subject, []]));
  for (let round = 0; round < context.rounds; round++) {
    context.progress(`captures, round ${round + 1}`);
    for (const [subject, all] of figures) all.push((await runSubject('graphs', { ...parameters, subject })).milliseconds);
  }
  const captures = [...figures].map(([subject, all]) => ({ subject, allocations: 10_000, milliseconds: combined(all) }));
  context.progress('launches');
  const { launches } = await runSubject('graphs', { ...parameters, subject: 'launches' });
  rows.push({ trace: undefined, captures, launches });
  return rows;
}

/** @param {any[]} rows @param {Context} context */
export function format(rows, context) {
  const limit = context.baseline.graphs;
  const bytes = rows.filter(({ trace }) => trace !== undefined);
  const figures = bytes.flatMap((row) => {
    const ratio = (/** @type {number} */ value) => formatNumber(value / row.lowerBoundBytes, 3);
    /** With the bytes in steps of which memory comes, it is compared with the limit. @param {string} what @param {number} value @param {number} [step] */
    const line = (what, value, step) => {
      const overSteps = step === undefined ? undefined : value / (Math.ceil(row.lowerBoundBytes / step) * step);
      return [
        `${row.trace}, ${row.graphs}`,
        what,
        formatNumber(value / 2 ** 20, 1),
        ratio(value),
        overSteps === undefined ? '-' : formatNumber(overSteps, 3),
        overSteps === undefined ? '-' : overSteps <= limit.overLowerBound ? 'yes' : 'no',
      ];
    };
    return [
      line('a pool for each', row.poolsBytes),
      line('one pool, largest first', row.sharedPoolDescendingBytes),
      line('one pool, smallest first', row.sharedPoolAscendingBytes),
      line('planned apart', row.plannedApartBytes),
      line('planned and shared', row.plannedBytes, 1),
      ...row.captured.map((/** @type {Captured} */ { upstream, order, reservedBytes, granularityBytes }) =>
        line(`captured over ${upstream}, ${order}`, reservedBytes, granularityBytes),
      ),
    ];
  });
  const timed = rows.find(({ trace }) => trace === undefined);
  /** @param {string} subject @returns {Figures} */
  const timeOf = (subject) => timed.captures.find((/** @type {{ subject: string }} */ each) => each.subject === subject).milliseconds;
  const bare = timed.launches[0].microseconds;
  const captures = timed.captures.map((/** @type {{ subject: string, milliseconds: Figures }} */ { subject, milliseconds }) => [
    subject,
    formatNumber(milliseconds.median, 1),
    formatNumber(milliseconds.minimum, 1),
    formatNumber(milliseconds.minimum / timeOf(pooled).minimum, 2),
    formatNumber(milliseconds.minimum / timeOf(known).minimum, 2),
  ]);
  const launched = timed.launches.map((/** @type {{ subject: string, microseconds: Figures }} */ { subject, microseconds }) => [
    subject,
    formatNumber(microseconds.median, 2),
    formatNumber(microseconds.minimum, 2),
    formatNumber(microseconds.median - bare.median, 2),
    formatNumber(microseconds.minimum - bare.minimum, 2),
  ]);
  return [
    formatTable(
      ['trace, graphs', 'memory', 'MiB', 'over the\nlower bound', 'over it in\nwhole pages', `within\n${limit.overLowerBound}`],
      figures,
      2,
    ),
    formatTable(
      [
        '10,000 allocations, ms',
        'median',
        'minimum',
        `over not\ncaptured (${limit.captureRatio})`,
        `over without\nthem (${limit.captureRatio})`,
      ],
      captures,
    ),
    formatTable(['launch, us', 'median', 'minimum', `over bare\n(${limit.launchMicroseconds})`, 'minimum'], launched),
  ].join('\n');
}
