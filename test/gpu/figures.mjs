/**
 * Programs that measure on a GPU for longer than a probe, each alone, after the tests: run-gpu.mjs starts them with `--figures`, and keeps the
 * line of JSON that they print last; one with `skipped` says what is missing. Over the strict driver, where no time means anything, they get the arguments of `trial`.
 */
const decoder = [
  '--layers',
  '16',
  '--width',
  '1024',
  '--tokens',
  '100',
  '--batch',
  '256',
  '--requests',
  '64',
  '--cache',
  '64MiB',
  '--sleep',
  '20GiB',
];

export const figures = {
  comparison: {
    program: ['node', 'bench/gpu/compare.mjs', '--json'],
    files: ['bench/gpu/compare.mjs', 'bench/gpu/through-cistern.mjs', 'bench/gpu/through_peers.py'],
    seconds: 60,
    trial: ['--operations', '2000', '--rounds', '2'],
  },
  decoder: {
    program: ['node', 'examples/decoder/main.js', '--json', ...decoder, '--workspace', '32MiB'],
    files: ['main.js', 'decoder.js', 'libraries.js', 'kernels.cu'].map((name) => `examples/decoder/${name}`),
    seconds: 60,
    // A later option counts.
    trial: [
      '--layers',
      '1',
      '--width',
      '32',
      '--tokens',
      '2',
      '--requests',
      '8',
      '--cache',
      '1MiB',
      '--sleep',
      '16MiB',
      '--workspace',
      '1MiB',
    ],
  },
  decoderInPyTorch: {
    program: ['python3', 'examples/decoder/with_torch.py', '--json', ...decoder],
    files: ['examples/decoder/with_torch.py'],
    seconds: 45,
    trial: [],
  },
};
