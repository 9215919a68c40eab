// A server that is killed and restarted with its weights in place: `cistern keep` holds them meanwhile.
//
//     node examples/restarting-server.mjs [MiB of weights]
//
// It starts `cistern keep`, and then the server three times: the first one computes its weights, is killed (SIGKILL), and the next
// one finds them; the last one has none, for comparison. Linux only.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { Device, DeviceBuffer, formatBytes, MiB, Stream } from 'cistern';
import { LastingMemoryResource } from 'cistern/lasting';

const [role, size = '16'] = ['serve', 'bare'].includes(process.argv[2]) ? process.argv.slice(2) : ['run', ...process.argv.slice(2)];
const layerBytes = 8 * MiB;
const layerCount = Math.max(1, Math.ceil((Number(size) * MiB) / layerBytes));

await { run, serve, bare }[role]();

/** The server: it is ready with the sum of the first weights of all layers. */
async function serve() {
  // The name of the model's files and what arranges them: change it, and old weights are refused.
  const layout = `example-1-${layerCount}`;
  const weights = await LastingMemoryResource.open({ region: 'example', bytes: layerCount * layerBytes, layout });
  const stream = new Stream();
  const layers = Array.from({ length: layerCount }, () => new DeviceBuffer(layerBytes, { resource: weights, stream }));
  const wasEmpty = weights.isWriting;
  if (wasEmpty) {
    // In place of a file, or of a download.
    for (const [index, layer] of layers.entries()) layer.copyFrom(new Float32Array(layerBytes / 4).fill(index + 1));
    weights.commit();
  }
  let sum = 0;
  for (const layer of layers) {
    const [first] = layer.toHostSync(new Float32Array(1));
    sum += first;
  }
  process.send({ wasEmpty, sum });
  setInterval(() => {}, 1000); // a server goes on until it is killed
}

/** The same without weights. */
async function bare() {
  Device.get().synchronizeSync();
  process.send({ wasEmpty: true, sum: 0 });
  setInterval(() => {}, 1000);
}

async function run() {
  const folder = mkdtempSync(join(tmpdir(), 'cistern-example-'));
  process.env.CISTERN_KEEP = join(folder, 'keep.sock');
  const command = join(dirname(createRequire(import.meta.url).resolve('cistern/package.json')), 'dist/tools/cli/main.js');
  const keep = spawn(process.execPath, [command, 'keep'], { stdio: ['ignore', 'inherit', 'pipe'] });
  await once(keep.stderr, 'data'); // it says where it listens
  try {
    for (const [name, as] of [
      ['first start ', 'serve'],
      ['after a kill', 'serve'],
      ['no weights  ', 'bare'],
    ]) {
      const begin = performance.now();
      const server = spawn(process.execPath, [fileURLToPath(import.meta.url), as, size], {
        stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      });
      const [{ wasEmpty, sum }] = await once(server, 'message');
      const milliseconds = (performance.now() - begin).toFixed(0);
      const weights = as === 'bare' ? 'none' : `${formatBytes(layerCount * layerBytes)} ${wasEmpty ? 'computed' : 'in place'}, sum ${sum}`;
      console.log(`${name}: ready after ${milliseconds} ms, weights: ${weights}`);
      server.kill('SIGKILL');
      await once(server, 'exit');
    }
  } finally {
    keep.kill();
    rmSync(folder, { recursive: true });
  }
}
