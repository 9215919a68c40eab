/**
 * Programs that measure on a GPU for longer than a probe, each alone, after the tests: run-gpu.mjs starts them with `--figures`, and keeps the
 * line of JSON that they print last. Over the strict driver, where no time means anything, they get the arguments of `trial`.
 */
export const figures = {
  comparison: {
    program: ['node', 'bench/gpu/compare.mjs', '--json'],
    files: ['bench/gpu/compare.mjs', 'bench/gpu/through-cistern.mjs', 'bench/gpu/through_peers.py'],
    seconds: 60,
    trial: ['--operations', '2000', '--rounds', '2'],
  },
};
