/** Reads a log repeatedly: as a log to replay, as a whole run, or its bytes alone. */
import { createReadStream } from 'node:fs';
import { createGunzip } from 'node:zlib';
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { parameters, report } from '../support/processes.mjs';

const warmUpSamples = 2;
const pieceBytes = 256 * 1024;

const { reader, path, events, repeat } = /** @type {{ reader: 'log' | 'run' | 'bytes', path: string, events: number, repeat: number }} */ (
  parameters()
);
const cistern = await loadCistern();

const samples = [];
let first = 0;
for (let i = 0; i < warmUpSamples + repeat; i++) {
  const start = performance.now();
  await read();
  const sample = ((performance.now() - start) * 1e6) / events;
  if (i === 0) first = sample;
  if (i >= warmUpSamples) samples.push(sample);
}
report({ nanosecondsPerEvent: figuresOf(samples), first });

async function read() {
  if (reader === 'log') return cistern.readAllocationLog(path);
  if (reader === 'run') return cistern.readRecordedRun(path);
  const file = createReadStream(path, { highWaterMark: pieceBytes });
  let bytes = 0;
  for await (const piece of path.endsWith('.gz') ? file.pipe(createGunzip({ chunkSize: pieceBytes })) : file) bytes += piece.length;
  return bytes;
}
