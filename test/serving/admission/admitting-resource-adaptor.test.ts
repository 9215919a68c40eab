import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { getEventListeners } from 'node:events';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { inspect } from 'node:util';
import { describe, expect, test, vi } from 'vitest';
import { freeAtSweeps } from '../../../src/collector/free-unreachable-buffers.js';
import {
  CudaMemoryResource,
  type DeallocationFence,
  DeviceBuffer,
  MiB,
  MonotonicMemoryResource,
  OutOfMemoryError,
} from '../../../src/index.js';
import { AdmissionQueue, type Holder } from '../../../src/serving/admission/admission-queue.js';
import { liveAdmittingAdaptors } from '../../../src/serving/admission/admitting-resource-adaptor.js';
import { grantsInScope } from '../../../src/serving/admission/grant.js';
import { type AdmissionEvent, AdmittingResourceAdaptor, type Grant } from '../../../src/serving/index.js';
import { WaitTimes } from '../../../src/serving/waiting/waiting-line.js';
import { caught, code } from '../../support/errors.js';
import { SpyResource } from '../../support/spy-resource.js';
import { stream } from '../../support/stream.js';

function admitting(limitBytes: number, maximumOvertakes?: number): AdmittingResourceAdaptor {
  return new AdmittingResourceAdaptor(new SpyResource(), { limitBytes, ...(maximumOvertakes === undefined ? {} : { maximumOvertakes }) });
}

/** Promises, and in which order they have settled, by name. */
class Waits {
  readonly settled: string[] = [];

  add<T>(name: string, promise: Promise<T>): Promise<T> {
    promise.then(
      () => this.settled.push(name),
      (error) => this.settled.push(`${name}: ${error.reason ?? error.code ?? error.message}`),
    );
    return promise;
  }

  async soFar(): Promise<string[]> {
    await nextTurn();
    return this.settled;
  }
}

const notAdmitted = (reason: string) => expect.objectContaining({ code: 'ERR_CISTERN_NOT_ADMITTED', reason });

describe('a grant', () => {
  test('has its bytes for allocations in its scope, and for nobody else', async () => {
    const resource = admitting(1024);
    using grant = await resource.reserve(768);
    expect([grant.bytes, grant.usedBytes, grant.priority]).toEqual([768, 0, 0]);
    expect(caught(() => resource.allocate(512, stream))).toMatchObject({
      message:
        'the limit of 1 KiB is promised to others: 512 B (512 bytes) were asked for, 256 B are left outside all grants; reserve the memory first',
      availableBytes: 256,
      limitBytes: 1024,
      path: ['AdmittingResourceAdaptor'],
    });
    const pointer = grant.run(() => resource.allocate(768, stream));
    expect(grant.usedBytes).toBe(768);
    const outside = resource.allocate(256, stream);
    expect(caught(() => grant.run(() => resource.allocate(1, stream)))).toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      message: 'the grant of 768 B is used up: 1 B (1 bytes) were asked for, 0 B are left; call grow() first',
      availableBytes: 0,
      limitBytes: 768,
    });
    resource.deallocate(outside, 256, stream);
    resource.deallocate(pointer, 768, stream);
    expect(grant.usedBytes).toBe(0);
    grant.run(() => resource.deallocate(resource.allocate(1, stream), 1, stream));
    resource.deallocate(resource.allocate(256, stream), 256, stream);
    resource.validate();
  });

  test('gives back what it does not use as it is disposed, and the rest as that is freed', async () => {
    const resource = admitting(1024);
    const grant = await resource.reserve(1000);
    expect(grant.bytes).toBe(1024);
    const pointer = grant.run(() => resource.allocate(256, stream));
    grant.dispose();
    grant.dispose();
    expect([grant.bytes, resource.statistics().committedBytes]).toEqual([0, 256]);
    resource.deallocate(pointer, 256, stream);
    expect(resource.statistics()).toMatchObject({ committedBytes: 0, grants: 0 });
    for (const call of [() => grant.run(() => {}), () => grant.giveBack(0), () => grant.giveBack(4096)])
      expect(caught(call)).toEqual(code('ERR_CISTERN_DISPOSED'));
    await expect(grant.grow(1)).rejects.toEqual(code('ERR_CISTERN_DISPOSED'));
  });

  test('gives back piece by piece what it does not use', async () => {
    const resource = admitting(1024);
    using grant = await resource.reserve(1024);
    const pointer = grant.run(() => resource.allocate(512, stream));
    grant.giveBack(300);
    expect([grant.bytes, resource.statistics().committedBytes]).toEqual([768, 768]);
    expect(caught(() => grant.giveBack(257))).toMatchObject({ message: 'bytes must be at most the 256 unused ones, got 257' });
    for (const [bytes, error] of [
      [-256, 'ERR_OUT_OF_RANGE'],
      [0.5, 'ERR_OUT_OF_RANGE'],
      [Number.NaN, 'ERR_OUT_OF_RANGE'],
      ['256', 'ERR_INVALID_ARG_TYPE'],
    ] as const) {
      expect(caught(() => grant.giveBack(bytes as number))).toEqual(code(error));
    }
    expect([grant.bytes, grant.usedBytes]).toEqual([768, 512]);
    grant.giveBack(256);
    resource.deallocate(pointer, 512, stream);
    grant.giveBack(512);
    expect(resource.statistics()).toMatchObject({ committedBytes: 0, grants: 0 });
    resource.validate();
  });

  test('leaves others what is free outside of grants while requests wait, and not a byte more', async () => {
    const resource = admitting(1024);
    const grant = await resource.reserve(768);
    const waiting = resource.reserve(512);
    expect(resource.statistics().waiting).toBe(1);
    for (const bytes of [257, 1024, 1025, 2 ** 40]) {
      expect(caught(() => resource.allocate(bytes, stream))).toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY' });
    }
    const pointer = resource.allocate(256, stream);
    expect(caught(() => resource.allocate(1, stream))).toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY' });
    resource.deallocate(pointer, 256, stream);
    grant.dispose();
    (await waiting).dispose();
    expect(resource.statistics()).toMatchObject({ committedBytes: 0, outsideBytes: 0 });
    resource.validate();
  });

  test('within the scope of another one has the allocations, and gives the other its scope back', async () => {
    const resource = admitting(1024);
    using outer = await resource.reserve(512);
    using inner = await resource.reserve(256);
    const used = () => [outer.usedBytes, inner.usedBytes];
    const pointers = outer.run(() => {
      const first = inner.run(() => resource.allocate(256, stream));
      expect(used()).toEqual([0, 256]);
      const second = resource.allocate(256, stream);
      expect(used()).toEqual([256, 256]);
      expect(caught(() => inner.run(() => resource.allocate(1, stream)))).toMatchObject({ limitBytes: 256 });
      return [first, second];
    });
    for (const pointer of pointers) resource.deallocate(pointer, 256, stream);
    expect(used()).toEqual([0, 0]);
  });

  test('is shown with its numbers, and is not cloned', async () => {
    const resource = admitting(1024);
    using grant = await resource.reserve(512, { priority: 3 });
    const pointer = grant.run(() => resource.allocate(256, stream));
    expect(inspect(grant)).toBe('Grant { bytes: 512, usedBytes: 256, priority: 3 }');
    expect(() => structuredClone(grant)).toThrow(expect.objectContaining({ name: 'DataCloneError' }));
    resource.deallocate(pointer, 256, stream);
  });

  test('does not count for allocations once it is disposed', async () => {
    const resource = admitting(1024);
    const grant = await resource.reserve(512);
    grant.run(() => {
      expect(grantsInScope()).toHaveLength(1);
      grant.dispose();
      expect(grantsInScope()).toEqual([]);
      resource.allocate(1024, stream);
    });
    expect(resource.statistics()).toMatchObject({ committedBytes: 1024, outsideBytes: 1024 });
  });

  test('of another resource does not count', async () => {
    const [one, other] = [admitting(1024), admitting(1024)];
    using grant = await one.reserve(512);
    grant.run(() => other.allocate(768, stream));
    expect([grant.usedBytes, other.statistics().outsideBytes]).toEqual([0, 768]);
    using inner = await other.reserve(256);
    grant.run(() => inner.run(() => one.allocate(256, stream)));
    expect([grant.usedBytes, inner.usedBytes]).toEqual([256, 0]);
  });

  test('loses nothing if the upstream fails, or refuses a free', async () => {
    const upstream = new SpyResource();
    const resource = new AdmittingResourceAdaptor(upstream, { limitBytes: 1024 });
    using grant = await resource.reserve(512);
    for (const allocate of [() => resource.allocate(512, stream), () => grant.run(() => resource.allocate(512, stream))]) {
      upstream.failure = new Error('fault');
      expect(allocate).toThrow('fault');
    }
    expect([grant.usedBytes, resource.statistics().outsideBytes]).toEqual([0, 0]);
    const pointer = grant.run(() => resource.allocate(512, stream));
    upstream.failure = new Error('fault');
    expect(() => resource.deallocate(pointer, 512, stream)).toThrow('fault');
    expect(grant.usedBytes).toBe(512);
    resource.deallocate(pointer, 512, stream);
    expect(grant.usedBytes).toBe(0);
  });

  test('counts the allocations that it has, among which those of no bytes are not', async () => {
    using uses = vi.spyOn(AdmissionQueue.prototype, 'use');
    const resource = admitting(1024);
    using grant = await resource.reserve(512);
    const allocate = (bytes: number) => grant.run(() => resource.allocate(bytes, stream));
    expect(allocate(0)).toBe(0);
    const [[holder]] = uses.mock.calls as [[Holder, number]];
    expect(holder.allocations).toBe(0);
    const pointer = allocate(256);
    expect(holder.allocations).toBe(1);
    resource.deallocate(0, 0, stream);
    resource.deallocate(pointer, 256, stream);
    expect(holder.allocations).toBe(0);
  });

  test('and nobody else gets anything back for what is at no address', async () => {
    const resource = admitting(1024);
    using grant = await resource.reserve(256);
    resource.allocate(512, stream);
    for (const free of [() => resource.deallocate(0, 256, stream), () => grant.run(() => resource.deallocate(0, 256, stream))]) free();
    expect(resource.statistics()).toMatchObject({ committedBytes: 768, outsideBytes: 512 });
    resource.validate();
  });

  test('that has ended says so before anything else', async () => {
    const resource = admitting(1024);
    const grant = await resource.reserve(256);
    grant.dispose();
    const options = { signal: AbortSignal.abort(new Error('too late')) };
    for (const call of [grant.retry(() => 1, options), grant.grow(256, options)])
      await expect(call).rejects.toEqual(code('ERR_CISTERN_DISPOSED'));
  });

  test('gets back what a bulk free takes', async () => {
    using upstream = new CudaMemoryResource();
    const monotonic = new MonotonicMemoryResource(upstream);
    const resource = new AdmittingResourceAdaptor(monotonic, { limitBytes: MiB });
    using grant = await resource.reserve(MiB);
    grant.run(() => [resource.allocate(1024, stream), new DeviceBuffer(2048, { stream, resource })]);
    expect(grant.usedBytes).toBe(3072);
    monotonic.dispose();
    expect(grant.usedBytes).toBe(0);
  });
});

describe('a request', () => {
  test('waits until its bytes are free, and is admitted by whoever frees them', async () => {
    const resource = admitting(1024);
    const first = await resource.reserve(512);
    const outside = resource.allocate(512, stream);
    const waits = new Waits();
    const second = waits.add('second', resource.reserve(1024));
    first.dispose();
    expect(await waits.soFar()).toEqual([]);
    expect(resource.statistics()).toMatchObject({ waiting: 1, waitingBytes: 1024, admitted: 1 });
    resource.deallocate(outside, 512, stream);
    expect(await waits.soFar()).toEqual(['second']);
    expect(resource.statistics()).toMatchObject({ waiting: 0, admitted: 2, admittedAfterWait: 1, committedBytes: 1024 });
    expect(resource.statistics().longestWaitMilliseconds).toBeGreaterThan(0);
    (await second).dispose();
  });

  test('of one priority is admitted in the order of arrival, of a higher one before', async () => {
    const resource = admitting(1024);
    const holding = await resource.reserve(1024);
    const waits = new Waits();
    for (const [name, priority] of [
      ['a', 0],
      ['b', 0],
      ['c', 1],
      ['d', -1],
      ['e', 1],
    ] as const) {
      void waits.add(name, resource.reserve(1024, { priority })).then((grant) => grant.dispose());
    }
    holding.dispose();
    expect(await waits.soFar()).toEqual(['c', 'e', 'a', 'b', 'd']);
  });

  test('that does not fit is passed by later ones that do, as often as allowed', async () => {
    const resource = admitting(1024, 2);
    const holding = await resource.reserve(512);
    const waits = new Waits();
    const large = waits.add('large', resource.reserve(1024));
    const small = ['a', 'b', 'c'].map((name) => waits.add(name, resource.reserve(256)));
    expect(await waits.soFar()).toEqual(['a', 'b']);
    expect(resource.statistics()).toMatchObject({ waiting: 2, overtakes: 2, committedBytes: 1024 });
    holding.dispose();
    (await small[0])?.dispose();
    expect(await waits.soFar()).toEqual(['a', 'b']);
    resource.validate();
    (await small[1])?.dispose();
    expect(await waits.soFar()).toEqual(['a', 'b', 'large']);
    (await large).dispose();
    expect(await waits.soFar()).toEqual(['a', 'b', 'large', 'c']);
  });

  test('that was decided just before it was to end has what it was promised, and has waited once', async () => {
    const resource = admitting(1024);
    const holding = await resource.reserve(1024);
    const controller = new AbortController();
    const waiting = resource.reserve(512, { signal: controller.signal });
    using notes = vi.spyOn(WaitTimes.prototype, 'note');
    // As if another worker had returned memory, and this one not yet heard of it.
    const { withdraw } = resource.queue;
    const withdraws = vi.spyOn(resource.queue, 'withdraw').mockImplementation(function (this: AdmissionQueue, request) {
      holding.dispose();
      return withdraw.call(this, request);
    });
    controller.abort(new Error('too late'));
    const grant = await waiting;
    expect([grant.bytes, withdraws.mock.results[0]?.value, notes.mock.calls.length]).toEqual([512, false, 1]);
    expect(resource.statistics()).toMatchObject({ aborted: 0, admittedAfterWait: 1 });
    grant.dispose();
  });

  test('is passed by sixteen if nothing else is asked for', async () => {
    const resource = admitting(16 * 256 + 1024);
    const holding = await resource.reserve(512);
    const large = resource.reserve(resource.limitBytes);
    const small = Array.from({ length: 17 }, () => resource.reserve(256));
    await Promise.all(small.slice(0, 16));
    expect(resource.statistics()).toMatchObject({ waiting: 2, overtakes: 16, committedBytes: 512 + 16 * 256 });
    for (const grant of [holding, ...(await Promise.all(small.slice(0, 16)))]) grant.dispose();
    (await large).dispose();
    (await small[16])?.dispose();
  });

  test('with maximumOvertakes 0 is never passed', async () => {
    const resource = admitting(1024, 0);
    const holding = await resource.reserve(512);
    const waits = new Waits();
    void waits.add('large', resource.reserve(1024)).then((grant) => grant.dispose());
    void waits.add('small', resource.reserve(256));
    expect(await waits.soFar()).toEqual([]);
    holding.dispose();
    expect(await waits.soFar()).toEqual(['large', 'small']);
  });

  test('that could never be met is refused at once', async () => {
    const resource = admitting(1024);
    await expect(resource.reserve(1025)).rejects.toMatchObject({
      name: 'NotAdmittedError',
      reason: 'too-large',
      message: 'cannot promise 1.25 KiB (1280 bytes): the limit is 1 KiB',
      requestedBytes: 1280,
      limitBytes: 1024,
    });
    using grant = await resource.reserve(512);
    await expect(grant.grow(768)).rejects.toMatchObject({
      reason: 'too-large',
      message: 'cannot promise 768 B (768 bytes) more to a grant that has 512 B: the limit is 1 KiB',
    });
    await expect(grant.grow(768)).rejects.toMatchObject({
      message: 'cannot promise 768 B (768 bytes) more to a grant that has 512 B: the limit is 1 KiB',
    });
    expect(resource.statistics()).toMatchObject({ refusedTooLarge: 3, waiting: 0, committedBytes: 512 });
  });

  test('ends when its time is over, and leaves nothing', async () => {
    const resource = admitting(1024);
    const holding = await resource.reserve(1024);
    const waits = new Waits();
    const late = resource.reserve(512, { timeoutMilliseconds: 5 });
    const next = waits.add('next', resource.reserve(1024));
    const latest = resource.reserve(512, { timeoutMilliseconds: 20 });
    const error = await late.catch((reason: unknown) => reason);
    expect(error).toEqual(notAdmitted('timeout'));
    expect((error as Error).message).toBe(
      'cannot promise 512 B (512 bytes): the time is over, and 0 B of 1 KiB are free, with 2 other requests waiting',
    );
    await expect(latest).rejects.toThrow('0 B of 1 KiB are free, with 1 other request waiting');
    expect(resource.statistics()).toMatchObject({ waiting: 1, refusedAfterTimeout: 2, aborted: 0, admittedAfterWait: 0 });
    holding.dispose();
    expect(await waits.soFar()).toEqual(['next']);
    (await next).dispose();
  });

  test('may wait longer than timers of Node take', async () => {
    const resource = admitting(1024);
    const holding = await resource.reserve(1024);
    const waiting = resource.reserve(1024, { timeoutMilliseconds: 2 ** 40 });
    await expect(resource.reserve(1024, { timeoutMilliseconds: 5 })).rejects.toEqual(notAdmitted('timeout'));
    holding.dispose();
    expect((await waiting).bytes).toBe(1024);
  });

  test('ends by its signal, before, during and after the wait', async () => {
    const resource = admitting(1024);
    const reason = new Error('the user left');
    await expect(resource.reserve(1, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
    const controller = new AbortController();
    const holding = await resource.reserve(1024, { signal: controller.signal });
    const waiting = resource.reserve(512, { signal: controller.signal });
    controller.abort(reason);
    await expect(waiting).rejects.toBe(reason);
    expect(resource.statistics()).toMatchObject({
      aborted: 1,
      refusedAfterTimeout: 0,
      admittedAfterWait: 0,
      waiting: 0,
      committedBytes: 1024,
    });
    expect(holding.bytes).toBe(1024);
    holding.dispose();
  });

  test('does not wait alone for its signal: any number of waits are one listener, until they end', async () => {
    const resource = admitting(1024);
    const controller = new AbortController();
    const listeners = () => getEventListeners(controller.signal, 'abort').length;
    const holding = await resource.reserve(1024);
    const admitted = resource.reserve(1024, { signal: controller.signal });
    const aborted = Array.from({ length: 1000 }, () => resource.reserve(512, { signal: controller.signal }));
    const ends = Promise.allSettled(aborted);
    expect(listeners()).toBe(1);
    holding.dispose();
    (await admitted).dispose();
    // Two of them fit at once.
    expect([listeners(), resource.statistics().waiting]).toEqual([1, 998]);
    resource.validate();
    controller.abort(new Error('gone'));
    expect(listeners()).toBe(0);
    const { length } = (await ends).filter(({ status }) => status === 'rejected');
    expect(length).toBe(998);
    resource.validate();
  });

  test('that ends lets those behind it go on', async () => {
    const resource = admitting(1024, 0);
    using holding = await resource.reserve(512);
    const waits = new Waits();
    const controller = new AbortController();
    void waits.add('large', resource.reserve(1024, { signal: controller.signal }));
    void waits.add('small', resource.reserve(512));
    controller.abort(new Error('gone'));
    expect(await waits.soFar()).toEqual(expect.arrayContaining(['small', 'large: gone']));
    expect(holding.bytes).toBe(512);
  });

  test('ends with the resource', async () => {
    const resource = admitting(1024);
    const holding = await resource.reserve(1024);
    const [waiting, growing] = [resource.reserve(512), holding.grow(0)];
    await growing;
    resource.dispose();
    await expect(waiting).rejects.toEqual(code('ERR_CISTERN_DISPOSED'));
    await expect(resource.reserve(1)).rejects.toEqual(code('ERR_CISTERN_DISPOSED'));
    await expect(holding.grow(1)).rejects.toEqual(code('ERR_CISTERN_DISPOSED'));
    holding.dispose();
    expect(resource.statistics().committedBytes).toBe(0);
  });

  test('is told no more that its time is over, or of its signal, once it was decided', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    try {
      const resource = admitting(1024);
      const { signal } = new AbortController();
      const kept = () => [vi.getTimerCount(), getEventListeners(signal, 'abort').length];
      const holding = await resource.reserve(1024);
      const waiting = resource.reserve(512, { signal, timeoutMilliseconds: 1000 });
      expect(kept()).toEqual([1, 1]);
      holding.dispose();
      expect(kept()).toEqual([0, 0]);
      (await waiting).dispose();
    } finally {
      vi.useRealTimers();
    }
  });

  test('that waits collects garbage if no grant can return memory, the first of all that wait then, and frees what was collected', async () => {
    let sweeps = 0;
    const free = () => {
      sweeps++;
      return 0;
    };
    freeAtSweeps({ mayBeWithWorkers: () => false, free });
    const sweepsOf = (call: () => unknown) => {
      const before = sweeps;
      call();
      return sweeps - before;
    };
    const resource = admitting(1024);
    const waits: Promise<Grant>[] = [];
    const reserve = () => waits.push(resource.reserve(1024));
    const outside = resource.allocate(1024, stream);
    // A collection is followed by a sweep, too.
    expect([sweepsOf(reserve), sweepsOf(reserve)]).toEqual([2, 1]);
    resource.deallocate(outside, 1024, stream);
    const grant = (await waits[0]) as Grant;
    expect(sweepsOf(reserve)).toBe(1);
    grant.dispose();
    const second = (await waits[1]) as Grant;
    second.dispose();
    const third = (await waits[2]) as Grant;
    expect([sweepsOf(reserve), sweepsOf(() => waits.push(resource.reserve(0)))]).toEqual([1, 0]);
    third.dispose();
    for (const each of await Promise.all(waits.slice(3))) each.dispose();
  });

  test('that waits for garbage gets it', async () => {
    using upstream = new CudaMemoryResource();
    const resource = new AdmittingResourceAdaptor(upstream, { limitBytes: MiB });
    (() => new DeviceBuffer(MiB, { stream, resource }))();
    // In this turn: V8 would collect it in its own time, too.
    using grant = await resource.reserve(MiB, { timeoutMilliseconds: 0 });
    expect(grant.bytes).toBe(MiB);
  });
});

describe('a grant that grows', () => {
  test('comes before new requests, whatever their priority', async () => {
    const resource = admitting(1024);
    const [first, second] = [await resource.reserve(512), await resource.reserve(512)];
    const waits = new Waits();
    const urgent = waits.add('urgent', resource.reserve(512, { priority: 9 }));
    void waits.add('growth', first.grow(512));
    second.dispose();
    expect(await waits.soFar()).toEqual(['growth']);
    expect(first.bytes).toBe(1024);
    first.dispose();
    (await urgent).dispose();
    resource.validate();
  });

  test('is refused if all who hold wait, the youngest of the lowest priority, and can try again', async () => {
    const resource = admitting(1024);
    const grants: Grant[] = [];
    for (const priority of [1, 0, 0]) grants.push(await resource.reserve(256, { priority }));
    const [important, older, younger] = grants as [Grant, Grant, Grant];
    const waits = new Waits();
    const growth = [important, younger, older].map((grant, i) =>
      waits.add(['important', 'younger', 'older'][i] as string, grant.grow(512)).catch((error: unknown) => error),
    );
    expect(await waits.soFar()).toEqual(['younger: deadlock']);
    expect(await growth[1]).toMatchObject({
      message:
        'cannot promise 512 B (512 bytes) more to a grant that has 256 B: all grants that hold memory wait for more, here or of other resources, and this request is the youngest of the lowest priority; return some memory before you try again',
    });
    expect(younger.bytes).toBe(256);
    younger.giveBack(256);
    expect(await waits.soFar()).toEqual(['younger: deadlock', 'important']);
    void waits.add('again', younger.grow(256));
    important.dispose();
    expect(await waits.soFar()).toEqual(['younger: deadlock', 'important', 'older', 'again']);
    expect(resource.statistics()).toMatchObject({ refusedInDeadlock: 1, waiting: 0 });
    resource.validate();
  });

  test('alone with memory outside of grants is refused, since that may never come back', async () => {
    const resource = admitting(1024);
    resource.allocate(512, stream);
    using grant = await resource.reserve(256);
    await expect(grant.grow(512)).rejects.toMatchObject({
      reason: 'deadlock',
      message:
        'cannot promise 512 B (512 bytes) more to a grant that has 256 B: no other grant holds memory that could be returned, and 512 B are allocated outside grants; return some memory before you try again',
    });
    await grant.grow(256);
    expect(grant.bytes).toBe(512);
  });

  test('may be the last to wait because another one ended without freeing', async () => {
    const resource = admitting(1024);
    const [first, second] = [await resource.reserve(512), await resource.reserve(512)];
    const growth = first.grow(256);
    second.run(() => resource.allocate(512, stream));
    second.dispose();
    await expect(growth).rejects.toEqual(notAdmitted('deadlock'));
    first.dispose();
  });

  test('counts as waiting when it reserves in its scope', async () => {
    const resource = admitting(1024);
    using grant = await resource.reserve(1024);
    await expect(grant.run(() => resource.reserve(256))).rejects.toEqual(notAdmitted('deadlock'));
  });

  test('passes an earlier one that does not fit, even if that was passed as often as allowed', async () => {
    const resource = admitting(1024, 0);
    const [a, b, c] = [await resource.reserve(256), await resource.reserve(256), await resource.reserve(256)];
    const waits = new Waits();
    void waits.add('a', a.grow(768));
    void waits.add('b', b.grow(256));
    expect(await waits.soFar()).toEqual(['b']);
    for (const grant of [b, c]) grant.dispose();
    expect(await waits.soFar()).toEqual(['b', 'a']);
    a.dispose();
  });

  test('ends its waits when it is disposed', async () => {
    const resource = admitting(1024);
    const [first, second] = [await resource.reserve(512), await resource.reserve(512)];
    const growth = first.grow(256);
    first.dispose();
    await expect(growth).rejects.toEqual(code('ERR_CISTERN_DISPOSED'));
    expect(resource.statistics()).toMatchObject({ waiting: 0, committedBytes: 512 });
    second.dispose();
  });
});

describe('events', () => {
  test('tell when a request waits, and how long it did', async () => {
    const resource = admitting(1024);
    const seen: AdmissionEvent[] = [];
    const listen = (message: unknown) => {
      const event = message as AdmissionEvent;
      if (event.resource === resource) seen.push(event);
    };
    subscribe('cistern:admission', listen);
    const began = performance.now();
    try {
      const holding = await resource.reserve(1024);
      const [one, other] = [resource.reserve(512, { priority: 2 }), resource.reserve(1024, { timeoutMilliseconds: 1 })];
      await expect(other).rejects.toThrow();
      holding.dispose();
      (await one).dispose();
    } finally {
      unsubscribe('cistern:admission', listen);
    }
    expect(seen).toMatchObject([
      { event: 'waiting', bytes: 512, priority: 2, waiting: 1, waitedMilliseconds: 0 },
      { event: 'waiting', bytes: 1024, priority: 0, waiting: 2 },
      { event: 'not-admitted', bytes: 1024, waiting: 1 },
      { event: 'admitted', bytes: 512, waiting: 0 },
    ]);
    for (const { waitedMilliseconds } of seen.slice(2)) {
      expect(waitedMilliseconds).toBeGreaterThan(0);
      expect(waitedMilliseconds).toBeLessThan(performance.now() - began);
    }
    const { waitedMilliseconds, longestWaitMilliseconds } = resource.statistics();
    expect(waitedMilliseconds).toBeLessThan(2 * (performance.now() - began));
    expect(longestWaitMilliseconds).toBeLessThan(performance.now() - began);
  });

  test('may abort the request that they tell of', async () => {
    const resource = admitting(1024);
    using holding = await resource.reserve(1024);
    const controller = new AbortController();
    const listen = () => controller.abort(new Error('no queue'));
    subscribe('cistern:admission', listen);
    try {
      await expect(resource.reserve(512, { signal: controller.signal })).rejects.toThrow('no queue');
    } finally {
      unsubscribe('cistern:admission', listen);
    }
    expect([holding.bytes, resource.statistics().waiting]).toEqual([1024, 0]);
  });

  test('may return the memory that the request waits for', async () => {
    const resource = admitting(1024);
    const holding = await resource.reserve(1024);
    const listen = () => holding.dispose();
    subscribe('cistern:admission', listen);
    try {
      using grant = await resource.reserve(512);
      expect(grant.bytes).toBe(512);
    } finally {
      unsubscribe('cistern:admission', listen);
    }
    expect(resource.statistics()).toMatchObject({ admittedAfterWait: 1, waiting: 0, committedBytes: 0 });
  });
});

test('alignment and fences reach the upstream, in and outside of grants', async () => {
  const upstream = new SpyResource();
  const resource = new AdmittingResourceAdaptor(upstream, { limitBytes: 4096, deallocationEvents: 'deferred' });
  using grant = await resource.reserve(1024);
  const fence = {} as DeallocationFence;
  for (const inScope of [(fn: () => void) => grant.run(fn), (fn: () => void) => fn()]) {
    inScope(() => {
      resource.deallocate(resource.allocate(256, stream, 512), 256, stream, fence);
      resource.deallocate(resource.allocate(256, stream), 256, stream);
    });
  }
  expect(upstream.alignments).toEqual([512, undefined, 512, undefined]);
  expect(upstream.fences).toEqual([fence, 'deferred', fence, 'deferred']);
  // What the upstream refuses to free still counts, for whom it did.
  const pointers = [resource.allocate(256, stream), grant.run(() => resource.allocate(256, stream))];
  for (const pointer of pointers) {
    upstream.failure = new RangeError('not yet');
    expect(() => resource.deallocate(pointer, 256, stream)).toThrow('not yet');
  }
  expect([grant.usedBytes, resource.statistics().outsideBytes]).toEqual([256, 256]);
  for (const pointer of pointers) resource.deallocate(pointer, 256, stream);
  expect([grant.usedBytes, resource.statistics().outsideBytes]).toEqual([0, 0]);
  resource.validate();
});

test('it is known as long as it is neither disposed nor collected, and validates its queue', () => {
  const [first, second] = [admitting(1024), admitting(1024)];
  const known = () => [first, second].map((each) => liveAdmittingAdaptors().includes(each));
  expect(known()).toEqual([true, true]);
  first.dispose();
  expect(known()).toEqual([false, true]);
  vi.spyOn(second.queue, 'validate').mockImplementation(() => {
    throw new Error('broken');
  });
  expect(() => second.validate()).toThrow('broken');
  second.dispose();
});

describe('arguments', () => {
  test.each([
    [{ limitBytes: -1 }, 'limitBytes must be an integer'],
    [{ limitBytes: 1, maximumOvertakes: 0.5 }, 'maximumOvertakes must be an integer'],
    [{ limitBytes: 1, overtakes: 1 }, 'options must not have "overtakes"'],
  ])('%j are refused', (options, message) => {
    expect(caught<Error>(() => new AdmittingResourceAdaptor(new SpyResource(), options as never)).message).toContain(message);
  });

  test.each([
    [-1, {}, 'bytes must be an integer'],
    [1, { priority: Number.NaN }, 'priority must be a finite number, got NaN'],
    [1, { priority: '1' }, 'priority must be a number, got "1"'],
    [1, { signal: {} }, 'signal must be an AbortSignal, got an instance of Object'],
    [1, { timeoutMilliseconds: -1 }, 'timeoutMilliseconds must be finite and at least 0'],
    [1, { timeout: 1 }, 'options must not have "timeout"'],
  ])('reserve(%j, %j) is refused', async (bytes, options, message) => {
    const resource = admitting(1024);
    await expect(resource.reserve(bytes, options as never)).rejects.toThrow(message);
    expect(resource.statistics()).toMatchObject({ committedBytes: 0, waiting: 0 });
  });

  test.each([-1, 0.5, Number.NaN, '1'])('an allocation of %j bytes is refused, and the upstream is not asked', (bytes) => {
    const upstream = new SpyResource();
    const resource = new AdmittingResourceAdaptor(upstream, { limitBytes: 1024 });
    expect(() => resource.allocate(bytes as number, stream)).toThrow('bytes must be');
    expect([upstream.alignments, resource.statistics().outsideBytes]).toEqual([[], 0]);
  });

  test.each([1n, '512', undefined, {}, Symbol('pointer')])('what is no pointer is refused, and nothing counts as freed: %s', (pointer) => {
    using upstream = new CudaMemoryResource();
    const resource = new AdmittingResourceAdaptor(upstream, { limitBytes: 1024 });
    expect(caught(() => resource.deallocate(pointer as never, 256, stream))).toEqual(code('ERR_INVALID_ARG_TYPE'));
    expect(resource.statistics()).toMatchObject({ committedBytes: 0, outsideBytes: 0 });
    resource.validate();
  });

  test('a resource that is disposed allocates nothing, and frees', () => {
    const upstream = new SpyResource();
    const resource = new AdmittingResourceAdaptor(upstream, { limitBytes: 1024 });
    const pointer = resource.allocate(256, stream);
    resource.dispose();
    expect(() => resource.allocate(256, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(upstream.alignments).toHaveLength(1);
    resource.deallocate(pointer, 256, stream);
    expect(resource.statistics().outsideBytes).toBe(0);
  });

  test('what a grant that has ended gives back counts together with what was allocated outside of grants meanwhile', async () => {
    const resource = admitting(1024);
    const grant = await resource.reserve(512);
    const pointer = grant.run(() => resource.allocate(512, stream));
    grant.dispose();
    const outside = [resource.allocate(256, stream)];
    resource.deallocate(pointer, 512, stream);
    expect(() => resource.allocate(1024, stream)).toThrow(OutOfMemoryError);
    outside.push(resource.allocate(768, stream));
    expect(() => resource.allocate(1, stream)).toThrow(OutOfMemoryError);
    expect(resource.statistics()).toMatchObject({ committedBytes: 1024, outsideBytes: 1024 });
    resource.deallocate(outside[0] as number, 256, stream);
    resource.deallocate(outside[1] as number, 768, stream);
    expect(resource.statistics()).toMatchObject({ committedBytes: 0, outsideBytes: 0 });
    resource.validate();
  });

  test('an allocation without a grant is refused as it exceeds the limit', () => {
    expect(() => admitting(1024).allocate(1025, stream)).toThrow(OutOfMemoryError);
  });
});
