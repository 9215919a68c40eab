import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, renameSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { root } from './cistern.mjs';

/**
 * A log to replay.
 * @typedef {object} Trace
 * @property {string} name
 * @property {string} path
 */

/** The folders that may hold the traces that are not part of the repository. */
const sharedFolders = [process.env['CISTERN_TRACES'] ?? '', join(root, '../shared/traces'), join(root, 'shared/traces')].filter(Boolean);
const realNames = ['arrow-etl', 'torch-ddp-training', 'torch-owlv2-inference', 'torch-sglang-capture'];
const syntheticNames = ['random', 'dl-training', 'dataframe', 'multi-stream', 'small-hot'];
export const traceNames = [...realNames, ...syntheticNames];

/**
 * The available traces; says why others are not.
 * @param {readonly string[]} names
 * @param {(reason: string) => void} skip
 * @returns {Trace[]}
 */
export function findTraces(names, skip) {
  const shared = sharedFolders.find((folder) => existsSync(folder));
  const traces = [];
  for (const name of realNames.filter((each) => names.includes(each))) {
    const folders = [join(root, 'examples/traces'), ...(shared === undefined ? [] : [shared])];
    const path = folders.map((folder) => join(folder, `${name}.csv.gz`)).find((file) => existsSync(file));
    if (path === undefined) skip(`trace ${name}: there is no ${name}.csv.gz in ${folders.join(' or ')}`);
    else traces.push({ name, path });
  }
  const wanted = syntheticNames.filter((name) => names.includes(name));
  if (wanted.length === 0) return traces;
  const folder = synthesize(shared, (reason) => skip(`traces ${wanted.join(', ')}: ${reason}`));
  if (folder !== undefined) traces.push(...wanted.map((name) => ({ name, path: join(folder, `${name}.csv`) })));
  return traces;
}

/**
 * The folder with the synthetic traces, which are generated once for each version of their
 * generator.
 * @param {string | undefined} shared
 * @param {(reason: string) => void} skip
 */
function synthesize(shared, skip) {
  const generator = join(shared ?? sharedFolders[0], 'generate.py');
  if (!existsSync(generator)) {
    skip(`there is no ${generator}`);
    return undefined;
  }
  const version = createHash('sha256').update(readFileSync(generator)).digest('hex').slice(0, 12);
  const folder = join(tmpdir(), `cistern-bench-traces-${version}`);
  if (existsSync(folder)) return folder;
  const unfinished = mkdtempSync(`${folder}-`);
  try {
    execFileSync('python3', [generator, unfinished], { stdio: 'ignore' });
    renameSync(unfinished, folder);
    return folder;
  } catch (error) {
    rmSync(unfinished, { recursive: true });
    if (existsSync(folder)) return folder;
    skip(`python3 ${generator} failed: ${error instanceof Error ? error.message : error}`);
    return undefined;
  }
}

/**
 * Writes a log in the form that `bench_native` reads.
 * @param {import('../../src/tools/replay/index.js').AllocationLog} log
 * @param {string} path
 */
export function writeNativeTrace(log, path) {
  const header = Buffer.alloc(12);
  header.writeUInt32LE(0x43545243, 0);
  header.writeUInt32LE(log.eventCount, 4);
  header.writeUInt32LE(log.slotCount, 8);
  const file = openSync(path, 'w');
  try {
    writeSync(file, header);
    for (const { operations, sizes, count } of log.chunks) {
      const rows = Buffer.alloc(16 * count);
      for (let row = 0; row < count; row++) {
        const operation = operations[row];
        rows.writeUInt32LE(operation >= 0 ? operation : ~operation, 16 * row);
        rows.writeUInt32LE(operation >= 0 ? 0 : 1, 16 * row + 4);
        rows.writeDoubleLE(sizes[row], 16 * row + 8);
      }
      writeSync(file, rows);
    }
  } finally {
    closeSync(file);
  }
}
