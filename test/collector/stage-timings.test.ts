import { expect, test } from 'vitest';
import { formatReclaimTimings, type StageTiming } from '../../src/collector/stage-timings.js';

const idle: StageTiming = {
  stage: 'settle',
  calls: 0,
  milliseconds: 0,
  share: 0,
  averageMilliseconds: 0,
  recoveredBytes: 0,
  rescues: 0,
};

test('timings are formatted as a table with aligned columns', () => {
  const text = formatReclaimTimings({
    elapsedMilliseconds: 82_200,
    allocations: 65_100,
    exhaustions: 4310,
    softCollections: 0,
    stages: [
      idle,
      {
        ...idle,
        stage: 'minor-collection',
        calls: 4310,
        milliseconds: 15_600,
        share: 0.1898,
        averageMilliseconds: 3.62,
        recoveredBytes: 1.5 * 2 ** 40,
        rescues: 4183,
      },
      { ...idle, stage: 'major-collection', calls: 127, milliseconds: 0.5, share: 0.004, averageMilliseconds: 0.0039, rescues: 127 },
    ],
  });
  expect(text.split('\n')).toEqual([
    'stages took 19.4 % of 82.2 s',
    '────────────────────────────────────────────────────────────────────',
    'stage              calls    time   share  average  recovered  served',
    '────────────────────────────────────────────────────────────────────',
    'first try         65,100       -       -        -          -  60,790',
    'settle                 0     0 s   0.0 %      0 s        0 B       0',
    'minor-collection   4,310  15.6 s  19.0 %  3.62 ms   1.50 TiB   4,183',
    'major-collection     127  500 µs   0.4 %  3.90 µs        0 B     127',
    '────────────────────────────────────────────────────────────────────',
    '',
  ]);
});

test('soft collections are mentioned if there were any', () => {
  const text = formatReclaimTimings({ elapsedMilliseconds: 0, allocations: 0, exhaustions: 0, softCollections: 1234, stages: [idle] });
  expect(text).toMatch(/^stages took 0\.0 % of 0 s, 1,234 soft collections\n/);
});
