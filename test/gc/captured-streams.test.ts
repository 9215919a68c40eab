/** What is dropped while a stream is captured: buffers of each kind of resource, and the resources. */
import { describe, expect, test } from 'vitest';
import { freeUnreachableBuffers, watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { mailbox, native } from '../../src/driver/native.js';
import { createResourceStack, Device, DeviceBuffer, Event, type ResourceStack, Stream } from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { stacksOf } from '../support/kind-stacks.js';
import { isGpu } from '../support/real-gpu.js';
import { collectGarbage, collectGarbageUntil } from './collection.js';

const bytes = 4096;
const captures = ['own', 'joined', 'foreign'] as const;

/** Captures a stream while garbage is collected, which must leave the capture alone. */
async function collectWhileCaptured(captured: Stream, capture: (typeof captures)[number]): Promise<void> {
  using origin = new Stream({ nonBlocking: true });
  using event = new Event();
  const first = capture === 'joined' ? origin : captured;
  if (capture === 'foreign') {
    native().beginCapture(first.handle, 0);
    expect(mailbox[0]).toBe(0);
  } else {
    first.beginCapture('global');
  }
  if (capture === 'joined') {
    event.record(origin);
    captured.wait(event);
  }
  for (let i = 0; i < 2; i++) await collectGarbage();
  const status = captured.captureStatus;
  if (capture === 'joined') {
    event.record(captured);
    origin.wait(event);
  }
  using graph = first.endCapture();
  expect([status, graph.nodeCounts.total]).toEqual(['active', 0]);
}

function freeBytes(): number {
  Device.get().synchronizeSync();
  return Device.get().memoryInfo().freeBytes;
}

/** Makes buffers that nobody keeps, on each of two streams. */
function dropBuffers(stack: ResourceStack, streams: readonly Stream[]): void {
  for (const stream of streams) for (let i = 0; i < 3; i++) new DeviceBuffer(bytes, { resource: stack.resource, stream });
}

async function untilAllAreFreed(known: number): Promise<void> {
  // The end of a capture that nobody told of is not seen.
  freeUnreachableBuffers();
  await collectGarbageUntil(() => watchedBuffers().count === known);
  expect(watchedBuffers().count).toBe(known);
}

describe.each(everyKind.map((kind) => [kind.name, stacksOf(kind)[0] as string] as const))('%s', (_name, specification) => {
  test.each(captures)('buffers, %s capture', async (capture) => {
    using captured = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    const before = freeBytes();
    const known = watchedBuffers().count;
    const stack = createResourceStack(specification);
    dropBuffers(stack, [captured, other]);
    await collectWhileCaptured(captured, capture);
    await untilAllAreFreed(known);
    const { memoryKind } = stack.resource;
    stack.dispose();
    // A GPU's driver keeps what it has used for managed memory.
    if (!isGpu || memoryKind !== 'managed') expect(freeBytes()).toBe(before);
  });

  // A sanitizing adaptor reports what is left when the process ends, so it is never collected.
  test.skipIf(specification.startsWith('sanitizing'))('the resource itself, with its buffers', async () => {
    using captured = new Stream({ nonBlocking: true });
    const known = watchedBuffers().count;
    let isCollected = false;
    const registry = new FinalizationRegistry(() => {
      isCollected = true;
    });
    const drop = () => {
      const stack = createResourceStack(specification);
      dropBuffers(stack, [captured]);
      registry.register(stack.resource, undefined);
    };
    drop();
    await collectWhileCaptured(captured, 'own');
    await untilAllAreFreed(known);
    await collectGarbageUntil(() => isCollected);
    expect(isCollected).toBe(true);
  });
});
