// Loaded before each test file. A capture that a test leaves over makes later tests fail with errors of the driver that name no
// cause. So a test that fails says which streams are captured at that time, by whom and since when.
import { beforeEach, expect } from 'vitest';
import { mailbox, native } from '../../src/driver/native.js';

interface Begun {
  readonly test: string;
  readonly milliseconds: number;
  readonly at: string;
}

/** Streams that cistern has created or wrapped here, and those on which it has begun a capture. */
interface Followed {
  readonly streams: Set<number>;
  readonly begun: Map<number, Begun>;
}

const binding = native();
const inProcess = globalThis as { cisternCapturesOfTests?: Followed };
// Once in a process that runs several files.
inProcess.cisternCapturesOfTests ??= follow();
const { streams, begun } = inProcess.cisternCapturesOfTests;

function follow(): Followed {
  const { beginCapture, createStream, wrapStream } = binding;
  const followed: Followed = { streams: new Set(), begun: new Map() };

  binding.createStream = (...args) => {
    createStream(...args);
    if (mailbox[0] === 0) followed.streams.add(mailbox[1] as number);
  };

  binding.wrapStream = (...args) => {
    wrapStream(...args);
    if (mailbox[0] === 0) followed.streams.add(mailbox[1] as number);
  };

  binding.beginCapture = (stream, mode) => {
    beginCapture(stream, mode);
    if (mailbox[0] !== 0) return;
    followed.streams.add(stream);
    const at = new Error().stack?.split('\n').find((line) => line.includes('/test/') && !line.includes('captures-left-over'));
    followed.begun.set(stream, {
      test: expect.getState().currentTestName ?? 'outside any test',
      milliseconds: performance.now(),
      at: (at ?? '').trim(),
    });
  };
  return followed;
}

beforeEach(({ onTestFailed }) =>
  onTestFailed(({ task }) => {
    const captures = capturesNow();
    const [error] = task.result?.errors ?? [];
    if (captures.length > 0 && error !== undefined) error.message += `\ncaptured when this test failed:\n${captures.join('\n')}`;
  }),
);

/** A line for each stream that is captured; only those that cistern knows can be asked. */
function capturesNow(): string[] {
  return [...streams].flatMap((stream) => {
    binding.captureStatus(stream);
    const [status, state] = mailbox;
    if (status !== 0) {
      // It has been destroyed.
      streams.delete(stream);
      return [];
    }
    if (state === 0) return [];
    const by = begun.get(stream);
    const age = by === undefined ? '' : `${((performance.now() - by.milliseconds) / 1000).toFixed(1)} s ago `;
    const who = by === undefined ? 'not begun through cistern' : `begun ${age}by "${by.test}" ${by.at}`;
    return [`- stream ${stream}, ${state === 1 ? 'active' : 'invalidated'}, ${who}`];
  });
}
