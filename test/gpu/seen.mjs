/**
 * What was seen on a GPU: `seen.json` has a row for each test file and probe that has run on one. A row speaks for the present
 * tree as long as neither the test file nor the code that calls the driver has changed since; otherwise the file counts as
 * never seen.
 */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { figures } from './figures.mjs';
import { fileItself } from './run-suite.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const path = fileURLToPath(new URL('seen.json', import.meta.url));

/** What stands between cistern and a driver. */
const driverCode = ['native/addon', 'native/cuda', 'native/arenas', 'src/driver'];

/** The value of the code that calls the driver; a row with another one is of another tree. */
export function hashOfDriverCode() {
  const hash = createHash('sha256');
  for (const folder of driverCode)
    for (const name of readdirSync(join(root, folder), { recursive: true }).sort())
      if (/\.(cc|h|ts)$/.test(name)) hash.update(`${folder}/${name}\n`).update(readFileSync(join(root, folder, name)));
  return hash.digest('hex').slice(0, 12);
}

/** @param {string} file in the tree, or absolute */
export function hashOfFile(file) {
  const absolute = file.startsWith('/') ? file : join(root, file);
  return existsSync(absolute) ? hashOfText(readFileSync(absolute)) : undefined;
}

function hashOfText(text) {
  return createHash('sha256').update(text).digest('hex').slice(0, 12);
}

/** @returns {Record<string, object>} rows by test file, `probe NAME` or `figures NAME` */
export function readSeen(from = path) {
  return existsSync(from) ? JSON.parse(readFileSync(from, 'utf8')) : {};
}

/** The value of the files in which the code of a row is: the test file, that of all probes, or what measures. */
export function hashOfRow(name) {
  const files = filesOfRow(name).map(hashOfFile);
  return files.length === 1 ? files[0] : hashOfText(files.join(' '));
}

function filesOfRow(name) {
  if (name.startsWith('figures ')) return figures[name.slice('figures '.length)]?.files ?? [];
  return [name.startsWith('probe ') ? 'test/gpu/probes.mjs' : name];
}

/** Whether a row speaks for the present tree. */
export function isCurrent(name, row, driver = hashOfDriverCode()) {
  return row !== undefined && row.driverCode === driver && row.file === hashOfRow(name);
}

/**
 * The rows of test files and probes that have ended in what a visit wrote.
 * @param {readonly object[]} lines
 * @returns {Record<string, object>}
 */
export function rowsOf(lines) {
  const rows = {};
  let visit = {};
  let open = new Map();
  for (const line of lines) {
    if (line.visit !== undefined) {
      visit = line.visit;
      open = new Map();
    } else if (line.probe !== undefined) {
      rows[`probe ${line.probe}`] = { ...visit, file: line.hash, answer: line.answer };
    } else if (line.figures !== undefined) {
      rows[`figures ${line.figures}`] = { ...visit, file: line.hash, answer: line.answer };
    } else if (line.name !== fileItself) {
      open.get(line.file)?.push(line);
    } else if (line.progress === 'began') {
      open.set(line.file, []);
    } else {
      rows[line.file] = { ...visit, file: line.hash, ...countsOf(open.get(line.file) ?? []), seconds: line.seconds ?? 0 };
    }
  }
  return rows;
}

/** What the lines about the tests of a file say; of a test that only said itself that it ended, what it said. */
function countsOf(lines) {
  const told = lines.filter(({ state }) => state !== undefined);
  const untold = lines.filter(({ name, sofar }) => sofar !== undefined && !told.some((line) => line.name === name));
  const states = [...told.map(({ state }) => state), ...untold.map(({ sofar }) => sofar)];
  const count = (wanted) => states.filter((state) => state === wanted).length;
  const failures = told
    .filter(({ state }) => state === 'failed')
    .map(({ name, message }) => `${name}: ${(message ?? '').split('\n', 1)[0].slice(0, 200)}`);
  return { passed: count('passed'), failed: count('failed'), skipped: count('skipped'), ...(failures.length > 0 ? { failures } : {}) };
}

/** @param {readonly Record<string, object>[]} parts later ones replace earlier ones */
export function writeSeen(...parts) {
  const rows = Object.entries(Object.assign({}, ...parts)).filter(([name]) =>
    filesOfRow(name).some((file) => existsSync(join(root, file))),
  );
  rows.sort(([a], [b]) => (a < b ? -1 : 1));
  // A line for each row, so that a difference can be read.
  writeFileSync(path, `{\n${rows.map(([name, row]) => `  ${JSON.stringify(name)}: ${JSON.stringify(row)}`).join(',\n')}\n}\n`);
}
