/**
 * The suites for a CUDA device, in a sensible order: each relies on what the earlier ones have
 * shown.
 */
export const gpuSuites = {
  driver: suite('streams, events, copies, pools, workers and exits', 'test/driver', 'test/resources'),
  kernels: suite('memory that kernels read and write while it changes hands', 'test/gpu'),
  conformance: suite('every resource and adaptor', 'test/conformance', 'test/tools/testing'),
  adaptors: suite(
    'stream order in every pooling resource',
    'test/adaptors',
    'test/graphs',
    'test/plans',
    'test/serving',
    'test/recording/recording-resource-adaptor.test.ts',
    'test/stream-ordering',
    'test/specification/resource-stack.test.ts',
  ),
  buffers: suite(
    'buffers, reclaiming, replay',
    'test/buffers',
    'test/interchange',
    'test/processes',
    'test/workers',
    'test/collector',
    'test/tools/replay/{record-replay,replay-log}.test.ts',
    'test/recording/recording.test.ts',
  ),
  collector: { ...suite('what the garbage collector finds', 'test/gc'), execArgv: ['--expose-gc'] },
  programs: suite('known faults and random programs', 'test/property'),
  sweep: suite('each call of the driver fails once; skipped on a GPU', 'test/sweep'),
};

function suite(about, ...folders) {
  const include = folders.map((folder) => (folder.endsWith('.ts') ? folder : `${folder}/**/*.test.ts`));
  return { about, include, exclude: ['test/driver/software-device.test.ts'], execArgv: [] };
}
