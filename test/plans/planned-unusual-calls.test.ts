import { describe, expect, test } from 'vitest';
import { CallbackMemoryResource, CudaMemoryResource, Device, PoolMemoryResource, Stream } from '../../src/index.js';
import { PlannedMemoryResource, type PlannedMemoryResourceOptions } from '../../src/plans/index.js';
import { needSecondDevice } from '../support/device-memory.js';
import { caught, code } from '../support/errors.js';
import { page, planOf } from '../support/plans.js';
import { SpyResource } from '../support/spy-resource.js';

function planned(text: string, options?: PlannedMemoryResourceOptions): PlannedMemoryResource {
  return new PlannedMemoryResource(new CudaMemoryResource(), planOf(text), options);
}

/** Plans whose second request is at page 1: with one stream it takes the fast path, after a wait between streams the slow one. */
const plans = {
  'with one stream': '+1@0:0 +2@0:1 -0@0 -1@0',
  'with several streams': '+1@0:0 +2@0:1 -0@0 -1@0 +1@1:0 -2@1 +1@0:0 -3@0',
};

describe.each(Object.entries(plans))('a pass of a plan %s', (_, text) => {
  /** A resource whose next request is the second of the plan, and the address that it is to get. */
  function begun(stream: Stream) {
    const resource = planned(text, { fallback: new PoolMemoryResource(new CudaMemoryResource()) });
    resource.begin();
    const first = resource.allocate(page, stream);
    return { resource, first, second: first + page, unchanged: { ...resource.statistics() } };
  }

  test.each([
    ['-1 bytes', -1, 'ERR_OUT_OF_RANGE'],
    ['half a byte', 0.5, 'ERR_OUT_OF_RANGE'],
    ['half a byte too many', page + 0.5, 'ERR_OUT_OF_RANGE'],
    ['NaN', Number.NaN, 'ERR_OUT_OF_RANGE'],
    ['a text', '256' as never, 'ERR_INVALID_ARG_TYPE'],
  ])('refuses a request for %s, and goes on', (_, bytes, expected) => {
    using stream = new Stream();
    const { resource, second, unchanged } = begun(stream);
    expect(() => resource.allocate(bytes, stream)).toThrow(code(expected));
    expect(resource.statistics()).toEqual(unchanged);
    expect(resource.allocate(2 * page, stream)).toBe(second);
  });

  test('refuses an alignment that is none', () => {
    using stream = new Stream();
    const { resource, second } = begun(stream);
    expect(() => resource.allocate(page, stream, 3)).toThrow(code('ERR_OUT_OF_RANGE'));
    expect(resource.allocate(2 * page, stream, 1)).toBe(second);
  });

  test('has no place of a greater alignment than planned', () => {
    using stream = new Stream();
    const { resource } = begun(stream);
    expect(resource.allocate(page, stream, 4096) % 4096).toBe(0);
    expect(resource.statistics()).toMatchObject({ fallbackAllocations: 1, deviations: { alignment: 1 } });
  });

  test('does not count a request for nothing', () => {
    using stream = new Stream();
    const { resource, second } = begun(stream);
    expect(resource.allocate(0, stream)).toBe(0);
    expect(resource.allocate(1, stream)).toBe(second);
    expect(resource.statistics()).toMatchObject({ fallbackAllocations: 0, plannedAllocations: 2 });
  });

  test('refuses a stream that is disposed', () => {
    const stream = new Stream();
    using other = new Stream();
    const { resource, first, unchanged } = begun(stream);
    stream.dispose();
    expect(() => resource.allocate(2 * page, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(() => resource.deallocate(first, page, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(resource.statistics()).toEqual(unchanged);
    resource.deallocate(first, page, other);
  });

  test('refuses a free that is wrong in its size, its fence or its pointer', () => {
    using stream = new Stream();
    const { resource, first, second } = begun(stream);
    resource.allocate(2 * page, stream);
    expect(() => resource.deallocate(first, 2 * page, stream)).toThrow(code('ERR_CISTERN_WRONG_SIZE'));
    expect(() => resource.deallocate(first, page, stream, 'never' as never)).toThrow(code('ERR_INVALID_ARG_VALUE'));
    expect(() => resource.deallocate(second + page, page, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    expect(resource.statistics().plannedAllocations).toBe(2);
    resource.deallocate(first, page, stream);
    expect(() => resource.deallocate(first, page, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
  });
});

describe('a stream of a program', () => {
  test('stands for one stream of the plan, on the fast path too', () => {
    using stream = new Stream();
    using resource = planned('+1@0:0 +1@1:1 +1@1:2');
    resource.begin();
    for (let i = 0; i < 3; i++) resource.allocate(page, stream);
    expect(resource.statistics()).toMatchObject({ plannedAllocations: 1, deviations: { stream: 2 } });
  });

  test('stands for that of the plan after a request that deviated in its size', () => {
    using stream = new Stream();
    using other = new Stream();
    using resource = planned('+1@0:0 +1@0:1');
    resource.begin();
    resource.allocate(2 * page, stream);
    resource.allocate(page, other);
    expect(resource.statistics().deviations).toMatchObject({ larger: 1, stream: 1 });
  });
});

describe('a free', () => {
  test('of memory of an earlier pass is late within a pass only', () => {
    using stream = new Stream();
    using resource = planned('+1@0:0 +1@0:1 -0@0 -1@0');
    resource.begin();
    const [first, second] = [resource.allocate(page, stream), resource.allocate(page, stream)];
    resource.begin();
    resource.deallocate(first, page, stream);
    resource.end();
    resource.deallocate(second, page, stream);
    expect(resource.statistics()).toMatchObject({ plannedAllocations: 0, deviations: { 'late-free': 1, 'free-stream': 0 } });
  });

  test('that the plan does not have may come on the stream of the allocation', () => {
    using stream = new Stream();
    using other = new Stream();
    using resource = planned('+1@0:0 +1@0:1');
    resource.begin();
    const [first, second] = [resource.allocate(page, stream), resource.allocate(page, stream)];
    resource.deallocate(first, page, stream);
    expect(resource.statistics().deviations['free-stream']).toBe(0);
    resource.deallocate(second, page, other);
    expect(resource.statistics().deviations['free-stream']).toBe(1);
  });
});

describe('memory that another stream than planned has freed', () => {
  /** A pass of one stream, of which another has freed the allocations with two pages, and it itself the others. */
  function pass(text: string) {
    const [stream, other] = [new Stream(), new Stream()];
    const resource = planned(text);
    resource.begin();
    const sizes = Array.from(planOf(text).sizes).slice(0, 3);
    const pointers = sizes.map((bytes) => resource.allocate(bytes, stream));
    for (const [i, pointer] of pointers.entries()) {
      resource.deallocate(pointer, sizes[i] as number, sizes[i] === 2 * page ? other : stream);
    }
    return { resource, stream, other, pointers };
  }

  test('leaves what lies before and after it to the stream', () => {
    const { resource, stream, pointers } = pass('+1@0:0 +2@0:1 +1@0:3 -0@0 -1@0 -2@0 +1@0:0 +1@0:3 +2@0:1');
    expect(resource.allocate(page, stream)).toBe(pointers[0]);
    expect(resource.allocate(page, stream)).toBe(pointers[2]);
    expect(resource.allocate(2 * page, stream)).not.toBe(pointers[1]);
    expect(resource.statistics().deviations).toMatchObject({ 'free-stream': 1, 'in-use': 1 });
  });

  test('is not free in several places', () => {
    const { resource, stream } = pass('+1@0:0 +2@0:1 +2@0:3 -0@0 -1@0 -2@0 +2@0:3 +2@0:1');
    for (let i = 0; i < 2; i++) resource.allocate(2 * page, stream);
    expect(resource.statistics().deviations).toMatchObject({ 'free-stream': 2, 'in-use': 2 });
  });

  test('serves the stream that freed it', () => {
    using first = new Stream();
    using second = new Stream();
    using resource = planned('+1@1:4 +4@0:0 -1@0 +4@1:0');
    resource.begin();
    resource.allocate(page, second);
    const pointer = resource.allocate(4 * page, first);
    resource.deallocate(pointer, 4 * page, second);
    expect(resource.allocate(4 * page, second)).toBe(pointer);
    expect(resource.statistics()).toMatchObject({ fallbackAllocations: 0, deviations: { 'free-stream': 1 } });
  });
});

test('memory that is kept longer than planned leaves what lies after it to the plan', () => {
  using stream = new Stream();
  using resource = planned('+1@0:0 -0@0 +1@0:0 +1@0:1');
  resource.begin();
  const kept = resource.allocate(page, stream);
  resource.allocate(page, stream);
  expect(resource.allocate(page, stream)).toBe(kept + page);
  expect(resource.statistics()).toMatchObject({ fallbackAllocations: 1, deviations: { 'in-use': 1 } });
});

describe('a stream that frees first', () => {
  const text = '+4@0:0 -0@1 +1@1:4';

  test('stands for the stream that the plan frees on', () => {
    using first = new Stream();
    using second = new Stream();
    using third = new Stream();
    using resource = planned(text);
    resource.begin();
    resource.deallocate(resource.allocate(4 * page, first), 4 * page, second);
    resource.allocate(page, third);
    expect(resource.statistics().deviations).toMatchObject({ 'free-stream': 0, stream: 1 });
  });

  test('does not stand for it if it stands for another', () => {
    using first = new Stream();
    using second = new Stream();
    using resource = planned(text);
    resource.begin();
    resource.deallocate(resource.allocate(4 * page, first), 4 * page, first);
    resource.allocate(page, second);
    expect(resource.statistics().deviations).toMatchObject({ 'free-stream': 1, stream: 0 });
  });

  test('does not stand for it if the memory is of an earlier pass', () => {
    using first = new Stream();
    using second = new Stream();
    using third = new Stream();
    using resource = planned('+4@0:0 +1@1:4 -0@0 -1@1');
    resource.begin();
    const kept = resource.allocate(4 * page, first);
    resource.deallocate(resource.allocate(page, second), page, second);
    resource.begin();
    resource.deallocate(kept, 4 * page, first);
    resource.allocate(4 * page, third);
    expect(resource.statistics().deviations).toMatchObject({ stream: 0, 'late-free': 1, 'free-stream': 0 });
  });
});

describe('a plan that repeats', () => {
  test.each([
    ['one request', '+1@0:0', 1],
    ['two requests', '+1@0:0 -0@0 +1@0:0 -1@0', 2],
  ])('begins with the first request, and again after the last, with %s', (_, text, requests) => {
    using stream = new Stream();
    using resource = planned(text, { repeats: true });
    expect(resource.statistics().passes).toBe(0);
    for (let pass = 1; pass <= 3; pass++) {
      for (let i = 0; i < requests; i++) resource.deallocate(resource.allocate(page, stream), page, stream);
      expect(resource.statistics()).toMatchObject({ passes: pass, fallbackAllocations: 0 });
    }
  });

  test('begins once if it plans nothing', () => {
    using stream = new Stream();
    using resource = planned('', { repeats: true });
    for (let i = 0; i < 3; i++) resource.deallocate(resource.allocate(page, stream), page, stream);
    expect(resource.statistics()).toMatchObject({ passes: 1, fallbackAllocations: 3, deviations: { extra: 3 } });
  });
});

describe('a pass', () => {
  test('that began by itself is ended by a run, and one that the program began is not', () => {
    using stream = new Stream();
    using resource = planned('+1@0:0 -0@0', { repeats: true });
    resource.deallocate(resource.allocate(page, stream), page, stream);
    expect(resource.run(() => resource.statistics().passes)).toBe(2);
    resource.deallocate(resource.allocate(page, stream), page, stream);
    resource.begin();
    expect(() => resource.run(() => {})).toThrow(code('ERR_CISTERN_INVALID_STATE'));
  });

  test('goes on when one before it settles', async () => {
    using stream = new Stream();
    using resource = planned('+1@0:0 -0@0');
    let settle = () => {};
    const settled = new Promise<void>((resolve) => {
      settle = resolve;
    });
    const run = resource.run(() => settled);
    resource.begin();
    settle();
    await run;
    resource.deallocate(resource.allocate(page, stream), page, stream);
    expect(resource.statistics()).toMatchObject({ passes: 2, fallbackAllocations: 0 });
  });

  test.each([
    ['with one stream', '+1@0:0 +1@0:1 -0@0 -1@0 +1@0:0 -2@0', 0],
    ['with two streams', '+1@0:0 +1@0:1 -0@0 -1@0 +1@1:0 -2@1', 1],
  ])('of a plan %s is as it was after a refused request', (_, text, next) => {
    using first = new Stream();
    using second = new Stream();
    const other = next === 0 ? first : second;
    using resource = planned(text, { deviations: 'refuse' });
    resource.begin();
    const pointers = [resource.allocate(page, first), resource.allocate(page, first)];
    const before = resource.statistics();
    const refused = (bytes: number) => expect(() => resource.allocate(bytes, other)).toThrow(code('ERR_CISTERN_PLAN_DEVIATION'));
    refused(2 * page);
    refused(2 * page);
    // What the plan gives next is not free yet.
    refused(page);
    expect(resource.statistics()).toEqual({ ...before, deviations: { ...before.deviations, larger: 2, 'in-use': 1 } });
    for (const pointer of pointers) resource.deallocate(pointer, page, first);
    expect(resource.statistics().deviations['late-free']).toBe(0);
    expect(resource.allocate(page, other)).toBe(pointers[0]);
    resource.deallocate(pointers[0] as number, page, other);
  });

  test('leaves the peak of what is reserved as it is, which can be reset', () => {
    using stream = new Stream();
    const resource = planned('+4@0:0 -0@0');
    expect([resource.reservedBytes, resource.peakReservedBytes]).toEqual([4 * page, 4 * page]);
    resource.trim(stream);
    expect([resource.reservedBytes, resource.peakReservedBytes]).toEqual([0, 4 * page]);
    resource.resetPeakReservedBytes();
    expect(resource.peakReservedBytes).toBe(0);
    expect(resource.heldBackFrom(stream)).toBe(0);
    resource.dispose();
    expect(() => resource.begin()).toThrow(code('ERR_CISTERN_DISPOSED'));
  });
});

test.each([
  [{ deviations: 'sometimes' }, "deviations must be 'fallback', 'refuse'"],
  [{ fallback: {} }, 'fallback must be'],
  [{ fallbacks: undefined }, 'fallbacks'],
])('a plan is not served with the options %o', (options, message) => {
  expect(() => planned('+1@0:0', options as never)).toThrow(message);
});

describe('the fallback of a plan', () => {
  test('is the upstream, or another resource of its device', () => {
    needSecondDevice();
    const fallback = new CudaMemoryResource();
    using own = planned('+1@0:0');
    using other = planned('+1@0:0', { fallback });
    expect([own.fallback, own.alternates, other.fallback, other.alternates]).toEqual([own.upstream, [], fallback, [fallback]]);
    const ofSecond = new CudaMemoryResource({ device: Device.get(1) });
    expect(caught(() => planned('+1@0:0', { fallback: ofSecond }))).toMatchObject({
      code: 'ERR_INVALID_ARG_VALUE',
      message: 'fallback must belong to device 0, as the upstream does, got one of device 1',
    });
  });

  test('frees its memory with the events that the resource was given', () => {
    using stream = new Stream();
    const fallback = new SpyResource();
    using resource = planned('+1@0:0', { fallback, deallocationEvents: 'off' });
    resource.deallocate(resource.allocate(page, stream), page, stream);
    resource.deallocate(resource.allocate(page, stream), page, stream, 'eager');
    expect(fallback.fences).toEqual(['off', 'eager']);
  });

  test('serves what comes while the block is taken again, and then the request that took it', () => {
    using stream = new Stream();
    using pool = new PoolMemoryResource(new CudaMemoryResource());
    using fallback = new PoolMemoryResource(new CudaMemoryResource());
    let inner: number | undefined;
    let meanwhile = () => {};
    using upstream = new CallbackMemoryResource(
      (bytes, on) => {
        meanwhile();
        return pool.allocate(bytes, on);
      },
      (pointer, bytes, on) => pool.deallocate(pointer, bytes, on),
    );
    using resource = new PlannedMemoryResource(upstream, planOf('+1@0:0 +1@0:1 -0@0 -1@0'), { fallback });
    resource.begin();
    resource.trim(stream);
    meanwhile = () => {
      meanwhile = () => {};
      inner = resource.allocate(page, stream);
    };
    const outer = resource.allocate(page, stream);
    expect([fallback.statistics().allocatedBytes, resource.statistics().fallbackAllocations]).toEqual([2 * page, 2]);
    expect(Math.abs(outer - (inner as number))).toBeGreaterThanOrEqual(page);
    for (const pointer of [outer, inner as number]) resource.deallocate(pointer, page, stream);
    expect(fallback.statistics().allocatedBytes).toBe(0);
    expect(caught(() => resource.deallocate(outer, page, stream))).toMatchObject({ code: 'ERR_CISTERN_DOUBLE_FREE' });
  });
});
