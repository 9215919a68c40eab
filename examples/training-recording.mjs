// A training loop on two streams, recorded with phases, labels and stacks, as input for a report.
//
//     node examples/training-recording.mjs [file]
//     cistern report [file] -o report.html
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { CudaMemoryResource, KiB, MiB, PoolMemoryResource, Stream } from 'cistern';
import { readRecordedRun } from 'cistern/logs';
import { annotate, Recording, RecordingResourceAdaptor } from 'cistern/recording';

const file = process.argv[2] ?? join(tmpdir(), 'training.cistern');
const steps = 10;
/** MiB of weights and of activations of each layer. */
const layers = [
  [6, 9],
  [4, 14],
  [8, 6],
  [4, 12],
  [8, 10],
  [4, 7],
  [6, 13],
  [2, 5],
];

/** The work of a kernel; a GPU would do it by itself. */
function compute(microseconds) {
  const end = performance.now() + microseconds / 1000;
  while (performance.now() < end);
}

/** Memory with a label, which may be freed on any stream. */
function tensor(resource, bytes, stream, label) {
  const pointer = resource.allocate(bytes, stream);
  if (label !== undefined) resource.label(pointer, label);
  return { stream, free: (on = stream) => resource.deallocate(pointer, bytes, on) };
}

/** The workspace of one kernel. */
function workspace(resource, kibibytes, stream) {
  const scratch = tensor(resource, kibibytes * KiB, stream);
  compute(60);
  scratch.free();
}

function forward(resource, stream) {
  return layers.map(([, activations], layer) => {
    const output = tensor(resource, activations * MiB, stream, `activations.${layer}`);
    for (let kernel = 0; kernel < 4; kernel++) workspace(resource, 200 + 180 * ((layer + kernel) % 5), stream);
    return output;
  });
}

function backward(resource, stream, activations) {
  for (const [layer, output] of [...activations.entries()].reverse()) {
    const gradient = tensor(resource, layers[layer][0] * MiB, stream, `gradient.${layer}`);
    for (let kernel = 0; kernel < 3; kernel++) workspace(resource, 320 + 140 * ((layer + kernel) % 4), stream);
    output.free();
    compute(90);
    gradient.free();
  }
}

function train(resource, kernels, copies) {
  const weights = layers.map(([size], layer) => tensor(resource, size * MiB, kernels, `weights.${layer}`));
  let batch = tensor(resource, 6 * MiB, copies, 'batch 0');
  for (let step = 0; step < steps; step++) {
    annotate('step', () => {
      const activations = annotate('forward', () => forward(resource, kernels));
      // The next batch is copied while this one is in use, and sizes differ.
      const next = annotate('load', () => tensor(resource, (5 + (step % 3)) * MiB, copies, `batch ${step + 1}`));
      annotate('backward', () => backward(resource, kernels, activations));
      batch.free(kernels);
      batch = next;
    });
  }
  batch.free();
  for (const each of weights) each.free();
}

const recording = new Recording({ file });
const upstream = new CudaMemoryResource();
const pool = new PoolMemoryResource(upstream, { initialBytes: 64 * MiB, deallocationEvents: 'deferred' });
const resource = new RecordingResourceAdaptor(pool, { recording, stackSampleBytes: 0 });
const kernels = new Stream();
const copies = new Stream();
train(resource, kernels, copies);
for (const each of [copies, kernels, resource, pool, upstream, recording]) each.dispose();

const run = await readRecordedRun(file);
console.log(`${run.eventCount} events in ${run.phases.length - 1} phases and ${run.stacks.length - 1} stacks.`);
console.log(`Look at them: cistern report ${file}`);
