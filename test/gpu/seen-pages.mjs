/** Writes what seen.json says into docs/gpu.md and README.md, so that no page says more, or less, than another one. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { markdownTable } from 'markdown-table';
import { claims } from './claims.mjs';
import { hashOfDriverCode, isCurrent, readSeen } from './seen.mjs';
import { filesOf, gpuSuites, visitOrder } from './suites.mjs';

/** Machines on which cistern ran before seen.json was kept; docs/gpu.md tells what was seen there. */
const before = ['NVIDIA H200'];

const pages = { 'docs/gpu.md': gpuPage, 'docs/guides/decoder.md': decoderPage, 'README.md': readme };

/** Each page's text as it has to be. */
export function pagesWithSeen(seen = readSeen()) {
  const driverCode = hashOfDriverCode();
  const facts = { seen, stateOf: (name) => stateOf(name, seen[name], driverCode) };
  return Object.fromEntries(Object.entries(pages).map(([path, write]) => [path, write(readFileSync(inRoot(path), 'utf8'), facts)]));
}

export function writePages() {
  for (const [path, text] of Object.entries(pagesWithSeen())) writeFileSync(inRoot(path), text);
}

/** The files and probes that settle a claim. */
export function settling({ by }) {
  return by.flatMap((path) => (path.startsWith('probe ') ? path : filesOf({ paths: [path], exclude: [] })));
}

/** @returns {'unseen' | 'changed' | 'failed' | 'right'} */
function stateOf(name, row, driverCode) {
  if (row === undefined || typeof row.answer?.skipped === 'string') return 'unseen';
  if (!isCurrent(name, row, driverCode)) return 'changed';
  return (row.failed ?? 0) > 0 || row.answer?.failed !== undefined ? 'failed' : 'right';
}

function readme(text, { seen, stateOf }) {
  const gpus = [...new Set([...before, ...Object.values(seen).map(({ gpu }) => gpu)])];
  const files = visitOrder.flatMap((name) => filesOf(gpuSuites[name]));
  const right = files.filter((file) => stateOf(file) === 'right').length;
  const many = gpus.length === 1 ? 'one GPU' : `${gpus.length} GPUs`;
  const named = `${gpus.map((gpu) => `an ${gpu}`).join(', ')}, for a few minutes`;
  const share =
    right === 0
      ? "no test has passed there with today's code"
      : `${right} of ${files.length} files of tests passed there with today's code`;
  return replaceLines(text, [
    [/^!\[has run on [^\]]*\]\(.*$/m, `![has run on ${many}](https://img.shields.io/badge/has_run_on-${many.replace(' ', '_')}-orange)`],
    [
      /^\*\*It has run on [^\n]*$/m,
      `**It has run on ${many} so far**, ${named}; ${share}: [what was seen, and how to run the tests on yours](docs/gpu.md).`,
    ],
    [
      /^\| has run on GPUs \|[^|]*\|/m,
      `| has run on GPUs | on [${gpus.length === 1 ? 'one' : gpus.length}](docs/gpu.md), for a few minutes |`,
    ],
  ]);
}

function gpuPage(text, { seen, stateOf }) {
  const suites = visitOrder.map((name) => {
    const files = filesOf(gpuSuites[name]);
    const count = (state) => files.filter((file) => stateOf(file) === state).length;
    const unseen = count('unseen');
    // Not the number, which each new file would change.
    const share = ['some', 'all', 'none'][unseen === 0 ? 2 : Number(unseen === files.length)];
    return [`\`${name}\``, ...['right', 'failed', 'changed'].map((state) => String(count(state))), share];
  });
  const failures = Object.entries(seen).flatMap(([name, { failures = [], gpu, commit }]) =>
    failures.map((failure) => `- \`${name}\`, ${gpu}, ${commit}: ${failure}`),
  );
  const tables = {
    suites: table(['suite', 'files that were right', 'that failed', 'seen with older code only', 'never seen'], suites),
    failures: failures.length === 0 ? 'None is recorded.' : failures.join('\n'),
    comparison: comparison(seen['figures comparison'], stateOf('figures comparison')),
    claims: table(
      ['what cistern promises', 'page', 'settled by', 'seen on a GPU'],
      claims.map((claim) => [
        claim.claim,
        link(claim.page),
        claim.by.map((path) => `\`${path}\``).join(', '),
        seenOf(claim, seen, stateOf),
      ]),
    ),
  };
  return filled(text, tables);
}

function decoderPage(text, { seen, stateOf }) {
  return filled(text, { decoder: decoderNumbers(seen, stateOf) });
}

function filled(text, tables) {
  return text.replaceAll(/(<!-- seen: (\w+) -->\n).*?(<!-- end -->)/gs, (_all, begin, name, end) => `${begin}\n${tables[name]}\n\n${end}`);
}

const notYetMeasured = 'Not yet measured on a GPU.';

/** Where figures were measured, or that they were not. */
function measuredOn(row, state) {
  if (row === undefined || state === 'failed' || state === 'unseen') return notYetMeasured;
  return `Measured on ${row.gpu}, driver ${row.driver}, ${row.day}, commit ${row.commit}${state === 'changed' ? ', with older code' : ''}.`;
}

/** The same logs through several allocators. */
function comparison(row, state) {
  const heading = measuredOn(row, state);
  if (heading === notYetMeasured) return heading;
  const { rows, skipped } = row.answer;
  const head = [
    'log',
    'allocator',
    'ns an operation',
    'first round',
    'the loop itself',
    'driver calls',
    'reserved over the peak',
    'capacity',
  ];
  const cells = rows.map((each) => [
    each.log,
    each.subject,
    ...[each.nanoseconds, each.firstNanoseconds, each.loopNanoseconds, each.driverCalls].map((figure) => String(figure ?? '-')),
    each.reservedBytes === undefined ? '-' : (each.reservedBytes / each.peakBytes).toFixed(2),
    typeof each.capacity === 'number' ? each.capacity.toFixed(3) : each.capacity,
  ]);
  return [heading, table(head, cells), ...skipped.map((reason) => `- not measured: ${reason}`)].join('\n\n');
}

/** The numbers of the decoder, and of PyTorch's. */
function decoderNumbers(seen, stateOf) {
  const [own, torch] = ['figures decoder', 'figures decoderInPyTorch'].map((name) =>
    measuredOn(seen[name], stateOf(name)) === notYetMeasured ? undefined : seen[name].answer,
  );
  const cell = (answer, key, format) => (answer?.[key] === undefined ? 'not yet seen on a GPU' : format(answer[key]));
  const rows = [
    ['tokens a second', 'tokensASecond', (each) => each.toFixed(0)],
    ['memory of the graphs', 'bytesOfGraphs', mebibytes],
    ['requests finished with half of the memory', 'finished', String],
    ['seconds to sleep', 'sleepSeconds', (each) => each.toFixed(2)],
    ['seconds to wake', 'wakeSeconds', (each) => each.toFixed(2)],
  ].map(([what, key, format]) => [what, cell(own, key, format), cell(torch, key, format)]);
  const shared = torch?.bytesOfGraphsInOnePool;
  if (shared !== undefined) rows[1][2] += `, and ${mebibytes(shared)} in one pool, captured from the largest on`;
  const heading =
    own === undefined
      ? notYetMeasured
      : `${measuredOn(seen['figures decoder'], stateOf('figures decoder'))} Kernels: ${own.compiledBy}; products: ${own.multipliedBy}.`;
  return `${heading}\n\n${table(['', 'cistern', 'PyTorch'], rows)}`;
}

function mebibytes(bytes) {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

/** Where all that settles a claim was seen; nothing is said of what was not. */
function seenOf(claim, seen, stateOf) {
  const names = settling(claim);
  const states = names.map(stateOf);
  const right = states.filter((state) => state === 'right').length;
  const places = [...new Set(names.filter((_name, i) => states[i] === 'right').map((name) => `${seen[name].gpu}, ${seen[name].day}`))];
  if (right === names.length) return places.join('; ');
  const parts = [];
  if (right > 0) parts.push(`${right} of ${names.length}: ${places.join('; ')}`);
  if (states.includes('failed')) parts.push('**failed**');
  if (states.includes('changed')) parts.push('in part with older code');
  if (claim.before !== undefined) parts.push(`with older code: ${claim.before}`);
  return parts.length === 0 ? 'no' : parts.join('; ');
}

function replaceLines(text, replacements) {
  return replacements.reduce((all, [pattern, line]) => {
    if (!pattern.test(all)) throw new Error(`README.md has no line ${pattern}`);
    return all.replace(pattern, () => line);
  }, text);
}

function table(head, rows) {
  return markdownTable([head, ...rows], { alignDelimiters: false });
}

/** A link from docs/gpu.md. */
function link(page) {
  const path = page.startsWith('docs/') ? page.slice('docs/'.length) : `../${page}`;
  return `[${page.split('/').at(-1)}](${path})`;
}

function inRoot(path) {
  const absolute = fileURLToPath(new URL(`../../${path}`, import.meta.url));
  if (!existsSync(absolute)) throw new Error(`there is no ${path}`);
  return absolute;
}
