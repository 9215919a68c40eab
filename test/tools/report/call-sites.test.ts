import { expect, test } from 'vitest';
import { callSites } from '../../../src/tools/report/call-sites.js';

const siteOf = (...frames: readonly string[]) => callSites(['', frames.join('\n')]).names[1];

/** What `torch.cuda.memory._record_memory_history(stacks="all")`, its default, begins each stack with. */
const beginning = [
  'torch::unwind::unwind() (??:0)',
  'torch::CapturedTraceback::gather(bool, bool, bool) (??:0)',
  'c10::cuda::CUDACachingAllocator::Native::malloc (CUDACachingAllocator.cpp:0)',
  'at::native::empty_cuda',
  '_PyEval_EvalFrameDefault (/usr/local/src/conda/python/Python/ceval.c:5253)',
];

test.each([
  'forward (/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py:125)',
  'forward (C:\\venv\\Lib\\site-packages\\torch\\nn\\modules\\linear.py:125)',
  'run (/usr/lib/python3.12/asyncio/runners.py:10)',
  'run (C:\\Users\\me\\AppData\\Local\\Programs\\Python\\Python312\\Lib\\asyncio\\runners.py:10)',
  'call (/tmp/torchinductor_me/ab/cab.py:77)',
  '<module> (<string>:1)',
  'forward (<eval_with_key>.3:8)',
  '_call_with_frames_removed (<frozen importlib._bootstrap>:488)',
  'require (node:internal/modules/helpers:182:18)',
  'get (/app/node_modules/pkg/index.js:1:1)',
  'Array.map (<anonymous>)',
])('%s is not the code of a program', (frame) => {
  expect(siteOf(...beginning, frame, 'weights (/home/me/train.py:10)')).toBe('weights (/home/me/train.py:10)');
  expect(siteOf(...beginning, frame)).toBe(frame);
});

test('without code of the program, the place is that of a dependency, then C++, then the allocator', () => {
  expect(siteOf(...beginning)).toBe('at::native::empty_cuda');
  expect(siteOf(...beginning.slice(0, 3))).toBe('torch::unwind::unwind() (??:0)');
  expect(siteOf('f (a.c:1)', 'main')).toBe('f (a.c:1)');
});

test.each(['load (file.py:3)', 'load (/library/python/load.js:3:1)', 'async load (file:///a/load.mjs:3:1)'])(
  '%s is the code of a program',
  (frame) => {
    expect(siteOf(frame, 'weights (/home/me/train.py:10)')).toBe(frame);
  },
);

test('of a library on another thread, the place is the JavaScript of a dependency that created the work, and else a function with a name', () => {
  const native = [
    '+0x2c2edf (native:libggml-cuda.so)',
    'llama_model_base::load_tensors(llama_model_loader&) (native:libllama.so)',
    'llama_model_load_from_file (native:libllama.so)',
    'thread node (native:thread)',
    'work that was created by (native:napi_create_async_work)',
  ];
  const dependency = '_create (file:///app/node_modules/node-llama-cpp/dist/LlamaModel.js:615:50)';
  expect(siteOf(...native)).toBe(native[1]);
  expect(siteOf(...native, dependency)).toBe(dependency);
  expect(siteOf(...native, dependency, 'load (file:///app/app.js:7:3)')).toBe('load (file:///app/app.js:7:3)');
  expect(siteOf('+0x1 (native:liba.so)', 'thread pool (native:thread)')).toBe('+0x1 (native:liba.so)');
});
