/** Programs that once found a violation, shrunk. */
import { expect, test } from 'vitest';
import type { Program } from './program.js';
import { ProgramRunner } from './program-runner.js';

const counterexamples: Readonly<Record<string, Program>> = {
  'an arena waits for a stream that a host function ends meanwhile': {
    stack: { leaf: { kind: 'cuda' }, layers: [{ kind: 'arena', options: { arenaBytes: 1_048_576 } }] },
    unitBytes: 256,
    isDefaultHeld: false,
    streams: ['non-blocking'],
    commands: [
      { do: 'allocate', stream: 0, units: 1, less: 0, alignment: 256 },
      { do: 'launch', stream: 0, body: [{ do: 'end', stream: 0, isUnannounced: false }] },
      { do: 'free', allocation: 0, count: 1 },
      { do: 'defragment' },
    ],
    ending: 'free',
  },
  'a pool grows in a host function for a stream that ends meanwhile': {
    stack: { leaf: { kind: 'cuda' }, layers: [{ kind: 'pool' }] },
    unitBytes: 256,
    isDefaultHeld: false,
    streams: ['non-blocking'],
    commands: [
      { do: 'interrupt', leaf: 0, call: 'allocate', body: [{ do: 'end', stream: 0, isUnannounced: false }] },
      { do: 'launch', stream: 0, body: [{ do: 'allocate', stream: 0, units: 1, less: 0, alignment: 256 }] },
      { do: 'synchronize', what: 'stream', which: 0 },
    ],
    ending: 'free',
  },
  'the order checker takes a block that a pool handed out whole for one that the driver handed out': {
    stack: { leaf: { kind: 'cuda-async' }, layers: [{ kind: 'pool', options: { initialBytes: 2048 } }] },
    unitBytes: 256,
    isDefaultHeld: false,
    streams: ['non-blocking'],
    commands: [
      { do: 'record', event: 0, stream: 0 },
      { do: 'allocate', stream: 0, units: 8, less: 0, alignment: 256 },
      { do: 'free', allocation: 0, fence: 0, how: 'old', count: 1 },
    ],
    ending: 'free',
  },
  'a read needs more staging memory while a host function is pending on another stream': {
    stack: { leaf: { kind: 'cuda' }, layers: [] },
    unitBytes: 256,
    isDefaultHeld: false,
    streams: ['non-blocking', 'non-blocking'],
    commands: [
      { do: 'buffer', stream: 0, bytes: 100_000, spare: 0, hasData: true },
      { do: 'launch', stream: 1, body: [] },
      { do: 'buffer-step', what: 'read', buffer: 0, other: 0, from: 0, bytes: 100_000 },
    ],
    ending: 'free',
  },
  'a read that a host function begins needs more staging memory': {
    stack: { leaf: { kind: 'cuda' }, layers: [] },
    unitBytes: 256,
    isDefaultHeld: false,
    streams: ['non-blocking'],
    commands: [
      { do: 'buffer', stream: 0, bytes: 100_000, spare: 0, hasData: true },
      { do: 'launch', stream: 0, body: [{ do: 'buffer-step', what: 'read-later', buffer: 0, other: 0, from: 0, bytes: 100_000 }] },
      { do: 'synchronize', what: 'stream', which: 0 },
    ],
    ending: 'free',
  },
};

test.each(Object.entries(counterexamples))('%s', async (_name, program) => {
  using runner = new ProgramRunner();
  runner.run(program);
  await runner.settle();
  expect(runner.counts.programs).toBe(1);
});
