/** Merges what visits to GPUs left (`results.jsonl` of run-gpu.mjs) into seen.json, and writes the pages: `npm run seen -- [FILE …]`. */
import { readFileSync } from 'node:fs';
import { linesOf } from './run-suite.mjs';
import { readSeen, rowsOf, writeSeen } from './seen.mjs';
import { writePages } from './seen-pages.mjs';

const visits = process.argv.slice(2).map((file) => rowsOf(linesOf(readFileSync(file))));
if (visits.flatMap(Object.values).some(({ gpu }) => gpu === undefined)) {
  console.error('these results are not of a GPU, and say nothing about one');
  process.exit(1);
}
if (visits.length > 0) writeSeen(readSeen(), ...visits);
writePages();
