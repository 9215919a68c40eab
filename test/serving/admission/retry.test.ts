import { setImmediate as nextTurn } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { freeAtSweeps } from '../../../src/collector/free-unreachable-buffers.js';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  CudaMemoryResource,
  DeviceBuffer,
  KiB,
  OutOfMemoryError,
  PoolMemoryResource,
} from '../../../src/index.js';
import { AdmittingResourceAdaptor, type Grant } from '../../../src/serving/index.js';
import { code } from '../../support/errors.js';
import { SpyResource } from '../../support/spy-resource.js';
import { stream } from '../../support/stream.js';

const outOfMemory = code('ERR_CISTERN_OUT_OF_MEMORY');

/** Eight KiB in one block, or more, all of which can be promised. */
function promising(maximumOvertakes = 16, limitBytes = 8 * KiB) {
  const upstream = new CudaMemoryResource();
  const pool = new PoolMemoryResource(upstream, { initialBytes: limitBytes, maximumBytes: limitBytes });
  const resource = new AdmittingResourceAdaptor(pool, { limitBytes, maximumOvertakes });
  const allocate = (grant: Grant, kibibytes: number) => grant.run(() => resource.allocate(kibibytes * KiB, stream));
  const free = (pointer: number, kibibytes: number) => resource.deallocate(pointer, kibibytes * KiB, stream);
  const dispose = () => {
    for (const each of [resource, pool, upstream]) each.dispose();
  };
  return { resource, allocate, free, [Symbol.dispose]: dispose };
}

/** A grant of 4 KiB that has nothing, while two others have the second and the sixth KiB: no piece of 4 KiB is free. */
async function inPieces(maximumOvertakes?: number) {
  const bed = promising(maximumOvertakes);
  const { resource, allocate, free } = bed;
  const [second, sixth, large] = [await resource.reserve(KiB), await resource.reserve(KiB), await resource.reserve(4 * KiB)];
  const fill = await resource.reserve(2 * KiB);
  const place = (grant: Grant) => allocate(grant, 1);
  const pieces = [place(fill), place(second), place(large), place(large), place(large), place(sixth)];
  for (const at of [0, 2, 3, 4]) free(pieces[at] as number, 1);
  fill.dispose();
  const retry = (kibibytes = 4, options = {}) => large.retry(() => resource.allocate(kibibytes * KiB, stream), options);
  return {
    ...bed,
    second,
    sixth,
    large,
    retry,
    ofSecond: pieces[1] as number,
    ofSixth: pieces[5] as number,
    [Symbol.dispose]: bed[Symbol.dispose],
  };
}

/** What a promise is by now. */
async function stateOf(promise: Promise<unknown>): Promise<'waits' | 'fulfilled' | 'rejected'> {
  let state: 'waits' | 'fulfilled' | 'rejected' = 'waits';
  promise.then(
    () => {
      state = 'fulfilled';
    },
    () => {
      state = 'rejected';
    },
  );
  await nextTurn();
  return state;
}

describe('a grant that retries', () => {
  test('runs a function in its scope, and returns what that returns', async () => {
    using bed = promising();
    const { resource } = bed;
    using grant = await resource.reserve(KiB);
    const buffer = await grant.retry(() => new DeviceBuffer(KiB, { stream, resource }));
    expect(grant.usedBytes).toBe(KiB);
    buffer.dispose();
    expect(await grant.retry(async () => 17)).toBe(17);
    expect(resource.statistics()).toMatchObject({ waiting: 0, waitedMilliseconds: 0 });
  });

  test('waits until somebody frees memory, if what is promised to it is in pieces', async () => {
    using bed = await inPieces();
    const { resource, large, free } = bed;
    expect(() => large.run(() => resource.allocate(4 * KiB, stream))).toThrow(outOfMemory);
    const retried = bed.retry();
    expect(await stateOf(retried)).toBe('waits');
    expect(resource.statistics().waiting).toBe(1);
    free(bed.ofSixth, 1);
    const pointer = await retried;
    expect(large).toMatchObject({ bytes: 4 * KiB, usedBytes: 4 * KiB });
    expect(resource.statistics()).toMatchObject({ waiting: 0, committedBytes: 6 * KiB });
    expect(resource.statistics().longestWaitMilliseconds).toBeGreaterThan(0);
    resource.validate();
    free(pointer, 4);
  });

  test('tries again at each free, whoever frees, and once more as it begins to wait', async () => {
    using bed = await inPieces();
    const { resource, large } = bed;
    let tries = 0;
    const retried = large.retry(() => {
      tries++;
      return resource.allocate(4 * KiB, stream);
    });
    expect(await stateOf(retried)).toBe('waits');
    expect(tries).toBe(2);
    const outside = resource.allocate(KiB, stream);
    expect(await stateOf(retried)).toBe('waits');
    expect(tries).toBe(2);
    resource.deallocate(outside, KiB, stream);
    expect(await stateOf(retried)).toBe('waits');
    expect(tries).toBe(3);
    bed.free(bed.ofSixth, 1);
    bed.free(await retried, 4);
    expect(tries).toBe(4);
  });

  test('frees what was collected before it tries once more', async () => {
    using bed = await inPieces();
    let isCollected = false;
    freeAtSweeps({
      mayBeWithWorkers: () => false,
      free: () => {
        if (!isCollected) return 0;
        isCollected = false;
        bed.free(bed.ofSixth, 1);
        return KiB;
      },
    });
    let tries = 0;
    const retried = bed.large.retry(() => {
      isCollected = ++tries === 1;
      return bed.resource.allocate(4 * KiB, stream);
    });
    expect(await stateOf(retried)).toBe('fulfilled');
    expect(tries).toBe(2);
    bed.free(await retried, 4);
  });

  test('keeps what it has used of all that it was promised before it tries again', async () => {
    using bed = await inPieces();
    const { resource, large, second, sixth } = bed;
    const retried = bed.retry();
    expect(await stateOf(retried)).toBe('waits');
    bed.free(bed.ofSecond, 1);
    second.dispose();
    bed.free(bed.ofSixth, 1);
    sixth.dispose();
    expect(large.bytes).toBe(8 * KiB);
    const pointer = bed.allocate(large, 6);
    await expect(retried).rejects.toThrow(outOfMemory);
    expect(large).toMatchObject({ bytes: 6 * KiB, usedBytes: 6 * KiB });
    expect(resource.statistics().committedBytes).toBe(6 * KiB);
    resource.validate();
    bed.free(pointer, 6);
  });

  test('keeps no more than it had if it was promised all while its function went on', async () => {
    using bed = await inPieces();
    const { resource, large, second, sixth } = bed;
    let goOn = () => {};
    const goesOn = new Promise<void>((resolve) => {
      goOn = resolve;
    });
    const retried = large.retry(async () => {
      const pointer = resource.allocate(4 * KiB, stream);
      await goesOn;
      return pointer;
    });
    expect(await stateOf(retried)).toBe('waits');
    bed.free(bed.ofSixth, 1);
    expect(await stateOf(retried)).toBe('waits');
    expect(large.usedBytes).toBe(4 * KiB);
    sixth.dispose();
    bed.free(bed.ofSecond, 1);
    second.dispose();
    expect(large.bytes).toBe(8 * KiB);
    goOn();
    const pointer = await retried;
    expect(large).toMatchObject({ bytes: 4 * KiB, usedBytes: 4 * KiB });
    resource.validate();
    bed.free(pointer, 4);
  });

  test('is admitted before new requests once it was passed as often as allowed, and at the latest when nobody else has anything', async () => {
    using bed = await inPieces(1);
    const { resource, large, second, sixth } = bed;
    const retried = bed.retry();
    const passing = await resource.reserve(KiB);
    const behind = resource.reserve(KiB);
    expect(await stateOf(behind)).toBe('waits');
    passing.dispose();
    expect(await stateOf(behind)).toBe('waits');
    // What they have allocated stays.
    second.dispose();
    expect(await stateOf(retried)).toBe('waits');
    bed.free(bed.ofSecond, 1);
    bed.free(await retried, 4);
    (await behind).dispose();
    sixth.dispose();
    expect(large.bytes).toBe(4 * KiB);
    resource.validate();
  });

  test.each([
    ['at once', (free: () => void) => free()],
    ['later', (free: () => void) => nextTurn().then(free)],
  ])('is not woken by what its function frees because it cannot have all, %s', async (_name, thenFree) => {
    using bed = await inPieces();
    const { resource, large } = bed;
    let tries = 0;
    // 3.5 KiB are nowhere in one piece once the first is taken.
    const retried = large.retry(async () => {
      if (++tries > 100) throw new Error('it tries again and again');
      const first = resource.allocate(KiB / 2, stream);
      try {
        return resource.allocate(3.5 * KiB, stream);
      } finally {
        await thenFree(() => resource.deallocate(first, KiB / 2, stream));
      }
    });
    for (let turn = 0; turn < 5; turn++) expect(await stateOf(retried)).toBe('waits');
    expect(tries).toBe(2);
    bed.free(bed.ofSixth, 1);
    const pointer = await retried;
    expect(tries).toBe(3);
    resource.deallocate(pointer, 3.5 * KiB, stream);
    resource.validate();
  });

  test('is woken by what other work of its grant frees during its attempt', async () => {
    using bed = await inPieces();
    const { resource, large, allocate, free } = bed;
    const mine = allocate(large, 1);
    let tries = 0;
    const retried = large.retry(async () => {
      tries++;
      try {
        return resource.allocate(3 * KiB, stream);
      } finally {
        if (tries === 1) await nextTurn();
      }
    });
    free(mine, 1);
    const pointer = await retried;
    expect(tries).toBeLessThanOrEqual(2);
    free(pointer, 3);
    resource.validate();
  });

  test('goes on before one that waits longer, if what was freed is enough for it alone', async () => {
    using bed = promising(16, 16 * KiB);
    const { resource, allocate, free } = bed;
    const holding = await resource.reserve(16 * KiB);
    const pieces = Array.from({ length: 16 }, () => allocate(holding, 1));
    for (let i = 0; i < 16; i += 2) free(pieces[i] as number, 1);
    holding.giveBack(8 * KiB);
    using large = await resource.reserve(4 * KiB);
    using small = await resource.reserve(2 * KiB);
    const ofLarge = large.retry(() => resource.allocate(4 * KiB, stream));
    const ofSmall = small.retry(() => resource.allocate(2 * KiB, stream));
    expect([await stateOf(ofLarge), await stateOf(ofSmall)]).toEqual(['waits', 'waits']);
    free(pieces[1] as number, 1);
    expect([await stateOf(ofLarge), await stateOf(ofSmall)]).toEqual(['waits', 'fulfilled']);
    for (let i = 3; i < 16; i += 2) free(pieces[i] as number, 1);
    free(await ofLarge, 4);
    free(await ofSmall, 2);
    holding.dispose();
    resource.validate();
  });

  test('fails if nobody else holds anything, since it would wait for ever', async () => {
    using bed = promising();
    const { resource, allocate, free } = bed;
    using grant = await resource.reserve(8 * KiB);
    const pieces = Array.from({ length: 8 }, () => allocate(grant, 1));
    for (let at = 0; at < 8; at += 2) free(pieces[at] as number, 1);
    let tries = 0;
    const failing = () => {
      tries++;
      return resource.allocate(2 * KiB, stream);
    };
    await expect(grant.retry(failing)).rejects.toThrow(outOfMemory);
    expect(tries).toBe(2);
    grant.giveBack(3 * KiB);
    await expect(grant.retry(() => resource.allocate(1.5 * KiB, stream))).rejects.toThrow('grant');
    expect(grant.bytes).toBe(5 * KiB);
    resource.validate();
  });

  test('keeps no more than it had after its last attempt, with nobody else', async () => {
    using bed = promising();
    const { resource, allocate, free } = bed;
    const grant = await resource.reserve(7 * KiB);
    const pieces = Array.from({ length: 7 }, () => allocate(grant, 1));
    for (const at of [1, 3]) free(pieces[at] as number, 1);
    const waiting = resource.reserve(3 * KiB);
    await expect(grant.retry(() => resource.allocate(2 * KiB, stream))).rejects.toThrow('largest free block');
    expect(grant.bytes).toBe(7 * KiB);
    expect(await stateOf(waiting)).toBe('waits');
    grant.giveBack(2 * KiB);
    expect(await stateOf(waiting)).toBe('fulfilled');
    resource.validate();
  });

  test('fails if all who hold wait, and it is the youngest of the lowest priority', async () => {
    using bed = await inPieces();
    const { resource, second, sixth } = bed;
    const retried = bed.retry();
    const grows = [second.grow(3 * KiB), sixth.grow(3 * KiB)];
    await expect(retried).rejects.toThrow(outOfMemory);
    for (const grow of grows) expect(await stateOf(grow)).toBe('waits');
    bed.large.dispose();
    await Promise.all(grows.slice(0, 1));
    resource.validate();
  });

  test('tries memory that was freed just before it is refused', async () => {
    using bed = await inPieces();
    const { resource, sixth } = bed;
    const retried = bed.retry();
    const grows = bed.second.grow(4 * KiB);
    expect(await stateOf(retried)).toBe('waits');
    bed.free(bed.ofSixth, 1);
    sixth.dispose();
    expect(resource.statistics().refusedInDeadlock).toBe(1);
    bed.free(await retried, 4);
    expect(await stateOf(grows)).toBe('waits');
    bed.large.dispose();
    await grows;
    resource.validate();
  });

  test('goes on if another is refused, which returns its memory', async () => {
    using bed = await inPieces();
    const { resource, sixth } = bed;
    using later = await resource.reserve(2 * KiB);
    const retried = bed.retry();
    const grows = [bed.second.grow(3 * KiB), sixth.grow(3 * KiB), later.grow(KiB)];
    await expect(grows[2]).rejects.toMatchObject({ reason: 'deadlock' });
    expect(await stateOf(retried)).toBe('waits');
    for (const grow of grows.slice(0, 2)) grow?.catch(() => {});
    bed.free(bed.ofSixth, 1);
    bed.free(await retried, 4);
    bed.second.dispose();
    sixth.dispose();
  });

  test('gives up once nobody else holds anything, although nothing was freed', async () => {
    using bed = await inPieces();
    const { resource, second, sixth, large } = bed;
    // What they have is outside of every grant from now on.
    for (const grant of [second, sixth]) grant.dispose();
    const other = await resource.reserve(KiB);
    const retried = bed.retry();
    expect(await stateOf(retried)).toBe('waits');
    other.dispose();
    expect(await stateOf(retried)).toBe('rejected');
    expect([large.bytes, resource.statistics().committedBytes]).toEqual([4 * KiB, 6 * KiB]);

    // It is promised all, and has the rest in pieces itself.
    using whole = promising();
    const grant = await whole.resource.reserve(7 * KiB);
    const pieces = Array.from({ length: 7 }, () => whole.allocate(grant, 1));
    for (const at of [1, 3]) whole.free(pieces[at] as number, 1);
    const last = await whole.resource.reserve(KiB);
    const given = grant.retry(() => whole.resource.allocate(2 * KiB, stream));
    expect(await stateOf(given)).toBe('waits');
    last.dispose();
    expect(await stateOf(given)).toBe('rejected');
    expect([grant.bytes, whole.resource.statistics().committedBytes]).toEqual([7 * KiB, 7 * KiB]);
    for (const each of [resource, whole.resource]) each.validate();
  });

  test('is ended before its turn comes, if it was promised all just before', async () => {
    using bed = promising();
    const { resource } = bed;
    const grant = await resource.reserve(7 * KiB);
    const pieces = Array.from({ length: 7 }, () => bed.allocate(grant, 1));
    for (const at of [1, 3]) bed.free(pieces[at] as number, 1);
    const last = await resource.reserve(KiB);
    const retried = grant.retry(() => resource.allocate(2 * KiB, stream));
    expect(await stateOf(retried)).toBe('waits');
    last.dispose();
    grant.dispose();
    await expect(retried).rejects.toThrow('cannot run a function: the grant is already disposed');
    expect(resource.statistics()).toMatchObject({ committedBytes: 5 * KiB, waiting: 0 });
    resource.validate();
  });

  test('waits no more for a second attempt that fails for want of other memory', async () => {
    using bed = await inPieces();
    const error = new OutOfMemoryError('of something else', { requestedBytes: 1, availableBytes: 0, path: [] });
    let tries = 0;
    const retried = bed.large.retry(() => {
      if (++tries > 1) throw error;
      return bed.resource.allocate(4 * KiB, stream);
    });
    expect(await stateOf(retried)).toBe('rejected');
    await expect(retried).rejects.toBe(error);
    expect([tries, bed.resource.statistics().waiting]).toEqual([2, 0]);
  });

  test('does not wait for another error, nor if its bytes are used up', async () => {
    using bed = await inPieces();
    const { resource, large } = bed;
    await expect(large.retry(() => resource.allocate(5 * KiB, stream))).rejects.toThrow('call grow() first');
    const error = new OutOfMemoryError('of something else', { requestedBytes: 1, availableBytes: 0, path: [] });
    await expect(
      large.retry(() => {
        throw error;
      }),
    ).rejects.toBe(error);
    await expect(large.retry(() => Promise.reject(new RangeError('foreign')))).rejects.toThrow(RangeError);
    expect(resource.statistics().waiting).toBe(0);
  });

  test('does not wait although another allocation in it failed, for another reason than that memory is short', async () => {
    const upstream = new SpyResource();
    const resource = new AdmittingResourceAdaptor(upstream, { limitBytes: KiB });
    using grant = await resource.reserve(KiB);
    const error = new OutOfMemoryError('of something else', { requestedBytes: 1, availableBytes: 0, path: [] });
    let tries = 0;
    const retried = grant.retry(() => {
      tries++;
      upstream.failure = new Error('fault');
      expect(() => resource.allocate(256, stream)).toThrow('fault');
      throw error;
    });
    await expect(retried).rejects.toBe(error);
    expect([tries, resource.statistics().admitted]).toEqual([1, 1]);
  });

  test('runs nothing once its resource is disposed', async () => {
    const resource = new AdmittingResourceAdaptor(new SpyResource(), { limitBytes: KiB });
    using grant = await resource.reserve(KiB);
    resource.dispose();
    let tries = 0;
    await expect(grant.retry(() => tries++)).rejects.toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(tries).toBe(0);
  });

  test('refuses wrong arguments, and runs nothing', async () => {
    using bed = promising();
    using grant = await bed.resource.reserve(KiB);
    const attempt = () => {
      throw new Error('it ran');
    };
    await expect(grant.retry('text' as never)).rejects.toThrow(ArgumentTypeError);
    await expect(grant.retry(attempt, { timeout: 1 } as never)).rejects.toThrow('timeout');
    await expect(grant.retry(attempt, { timeoutMilliseconds: -1 })).rejects.toThrow(ArgumentRangeError);
  });

  test('does not miss memory that is freed during an attempt', async () => {
    using bed = await inPieces();
    const { resource, large } = bed;
    let tries = 0;
    const retried = large.retry(async () => {
      const error = await new Promise<unknown>((resolve) => {
        try {
          resource.deallocate(resource.allocate(4 * KiB, stream), 4 * KiB, stream);
          resolve(undefined);
        } catch (refusal) {
          resolve(refusal);
        }
      });
      if (++tries === 2) bed.free(bed.ofSixth, 1);
      await nextTurn();
      if (error !== undefined) throw error;
      return tries;
    });
    expect(await retried).toBe(3);
  });

  test('ends its wait when the time is over, by its signal, and when the grant or the resource is disposed', async () => {
    using bed = await inPieces();
    const { resource, large } = bed;
    await expect(bed.retry(4, { timeoutMilliseconds: 0 })).rejects.toThrow(outOfMemory);
    await expect(bed.retry(4, { signal: AbortSignal.abort('before') })).rejects.toBe('before');
    const controller = new AbortController();
    const aborted = bed.retry(4, { signal: controller.signal });
    expect(await stateOf(aborted)).toBe('waits');
    controller.abort('during');
    await expect(aborted).rejects.toBe('during');
    expect(resource.statistics().waiting).toBe(0);
    expect(large.bytes).toBe(4 * KiB);
    const ended = bed.retry();
    expect(await stateOf(ended)).toBe('waits');
    large.dispose();
    await expect(ended).rejects.toThrow('cannot reserve 4 KiB: the grant or the resource is already disposed');
    await expect(large.retry(() => 1)).rejects.toThrow(code('ERR_CISTERN_DISPOSED'));
    using during = await inPieces();
    const disposed = during.large.retry(async () => {
      try {
        return during.resource.allocate(4 * KiB, stream);
      } finally {
        during.large.dispose();
      }
    });
    await expect(disposed).rejects.toThrow('cannot reserve 4 KiB: the grant or the resource is already disposed');
    using other = await inPieces();
    const stopped = other.retry();
    expect(await stateOf(stopped)).toBe('waits');
    other.resource.dispose();
    await expect(stopped).rejects.toThrow(code('ERR_CISTERN_DISPOSED'));
    resource.validate();
  });
});
