import { readdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** Tests that hardly use the device, or start programs that do: what one leaves cannot matter to another. */
const plainFolders = [
  'basics',
  'budget',
  'model',
  'package',
  'specification',
  'suballocation',
  'suites',
  'types',
  ...['cli', 'files', 'formats', 'planning', 'replay', 'report'].map((name) => `tools/${name}`),
];
const deviceFolders = [
  ...['adaptors', 'buffers', 'graphs', 'interchange', 'plans', 'resources'],
  ...['serving/accounts', 'serving/admission', 'stream-ordering'],
];

/** Files of these folders that run in a process of their own. */
const apart = [
  // They count the steps of an index that they put in place of the usual one, or search for a time.
  'adaptors/arena-memory-resource',
  'suballocation/block-lists',
  'suballocation/free-space-index',
  'suballocation/index-memory',
  'suballocation/segment-map',
  'tools/planning/plan-allocations',
  // They look at what is observed, or is left for the collector, in the whole process.
  'buffers/host-functions-meanwhile',
  'plans/pass-recorder',
  // They put other modules of Node in place, or load addons that are not there everywhere.
  'package/addons',
  'package/onnxruntime',
  'resources/pinned-by-default',
  // They give the software device another size.
  'tools/cli/diff',
  'tools/cli/plan',
  'tools/cli/report',
  // Its programs take the processors for a long time.
  'package/installed-package',
  // They register kinds of resources, for which there is one name in a process.
  'specification/lists-and-branches',
  'specification/resource-kinds',
  'specification/resource-stack',
  // They leave memory, most of it on purpose, or need or count all that there is.
  'adaptors/aligned-resource-adaptor',
  'adaptors/binning-memory-resource',
  'adaptors/bulk-frees',
  'adaptors/captured-streams',
  'adaptors/faulty-upstreams',
  'adaptors/old-fences',
  'adaptors/pool-memory-resource',
  'adaptors/prefetch-resource-adaptor',
  'adaptors/statistics-resource-adaptor',
  'basics/unknown-options',
  'buffers/managed-buffers',
  'plans/planned-memory-resource',
  'plans/planned-unusual-calls',
  'resources/cuda-async-memory-resource',
  'serving/admission/deadlocks',
  'stream-ordering/overlap',
  'tools/replay/replay-log',
].map((name) => `test/${name}.test.ts`);

const [plain, device] = [plainFolders, deviceFolders].map((folders) =>
  folders.flatMap((folder) =>
    readdirSync(fileURLToPath(new URL(`../${folder}`, import.meta.url)), { recursive: true, encoding: 'utf8' })
      .filter((name) => name.endsWith('.test.ts'))
      .map((name) => `test/${folder}/${name.replaceAll('\\', '/')}`),
  ),
);
const missing = apart.filter((file) => !plain.includes(file) && !device.includes(file));
if (missing.length > 0) throw new Error(`test/support/together.mjs names files that are not there: ${missing.join(', ')}`);

/**
 * The test files that `npm test` runs one after another in the same process: the start of a process, Vitest's own modules in it and those of src/
 * cost more than most of them do. Each leaves nothing behind (leaves-nothing.ts), and passes whatever ran before it.
 */
export const together = plain.filter((file) => !apart.includes(file)).sort();

/**
 * Those that a visit of a GPU runs so, where the driver starts with each process. One that fails there runs again by itself (run-gpu.mjs), so these
 * may look at what is in a process or on a device as long as they seldom see others.
 */
export const togetherOnVisits = [...together, ...device.filter((file) => !apart.includes(file))].sort();
