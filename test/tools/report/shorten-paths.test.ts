import { expect, test } from 'vitest';
import { shortenPaths } from '../../../src/tools/report/shorten-paths.js';

test("the program's common folder is left out, and what is above node_modules in dependencies", () => {
  const stacks = [
    '',
    'parse (file:///home/me/app/routes/parse.js:3:7)\nhandle (file:///home/me/app/server.js:9:1)\nrun (/opt/x/node_modules/fastify/lib/run.js:1:2)',
    'process (node:internal/process/task_queues:95:5)\n<anonymous> (/home/me/app/server.js:40:2)',
  ];
  expect(shortenPaths(stacks)).toEqual([
    '',
    'parse (routes/parse.js:3:7)\nhandle (server.js:9:1)\nrun (node_modules/fastify/lib/run.js:1:2)',
    'process (node:internal/process/task_queues:95:5)\n<anonymous> (server.js:40:2)',
  ]);
});

test('the same of stacks of Python, whose frames have no column, on Linux and on Windows', () => {
  const stack = (folder: string, packages: string) =>
    [
      'c10::cuda::CUDACachingAllocator::malloc (/opt/pytorch/c10/cuda/CUDACachingAllocator.cpp:1)',
      `forward (${packages}/torch/nn/linear.py:125)`,
      `encode (${folder}/models/encoder.py:31)`,
      `main (${folder}/train.py:7)`,
      '_run_code (/usr/lib/python3.12/runpy.py:88)',
    ].join('\n');
  const [short] = shortenPaths([stack('/home/me/project', '/home/me/project/.venv/lib/python3.12/site-packages')]);
  expect(short?.split('\n').slice(1)).toEqual([
    'forward (site-packages/torch/nn/linear.py:125)',
    'encode (models/encoder.py:31)',
    'main (train.py:7)',
    '_run_code (/usr/lib/python3.12/runpy.py:88)',
  ]);
  // Another machine's snapshot has the same functions.
  expect(shortenPaths([stack('/workspace/project', '/opt/conda/lib/python3.11/site-packages')])).toEqual([short]);
  const windows = stack('C:\\Users\\me\\project', 'C:\\Python312\\Lib\\site-packages').replaceAll('/models/', '\\models\\');
  expect(
    shortenPaths([windows.replace('/train.py', '\\train.py')])[0]
      ?.split('\n')
      .slice(1, 4),
  ).toEqual(['forward (site-packages/torch/nn/linear.py:125)', 'encode (models\\encoder.py:31)', 'main (train.py:7)']);
});
