import { describe, expect, test, vi } from 'vitest';
import {
  CisternError,
  CudaMemoryResource,
  DriverError,
  type FailureCallback,
  FailureCallbackResourceAdaptor,
  LimitingResourceAdaptor,
  type MemoryResource,
  OutOfMemoryError,
} from '../../src/index.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

const outOfMemory = (requestedBytes = 5) => new OutOfMemoryError('nothing is left', { requestedBytes, path: ['the device'] });

/** Fails once. */
function failing(failure: Error = outOfMemory()) {
  const upstream = new SpyResource();
  upstream.failure = failure;
  return upstream;
}

describe('FailureCallbackResourceAdaptor', () => {
  test('tries again once if the callback returns true', () => {
    const failure = outOfMemory();
    const upstream = failing(failure);
    const callback = vi.fn(() => true);
    const resource = new FailureCallbackResourceAdaptor(upstream, callback);
    expect(resource.allocate(5, stream)).toBeGreaterThan(0);
    expect(callback.mock.calls).toEqual([[5, failure]]);
    expect(failure.path).toEqual(['the device']);
  });

  test('does not call back if nothing fails', () => {
    const callback = vi.fn(() => true);
    const resource = new FailureCallbackResourceAdaptor(new SpyResource(), callback);
    resource.deallocate(resource.allocate(5, stream), 5, stream);
    expect(callback).not.toHaveBeenCalled();
  });

  test('tries as long as the callback returns true, and throws the last error', () => {
    using leaf = new CudaMemoryResource();
    const upstream = new LimitingResourceAdaptor(leaf, { limitBytes: 256 });
    const allocate = vi.spyOn(upstream, 'allocate');
    let tries = 0;
    const resource = new FailureCallbackResourceAdaptor(upstream, () => ++tries < 4);
    expect(() => resource.allocate(1000, stream)).toThrow(
      expect.objectContaining({ requestedBytes: 1000, path: ['FailureCallbackResourceAdaptor', 'LimitingResourceAdaptor'] }),
    );
    expect([tries, allocate.mock.calls.length]).toEqual([4, 4]);
  });

  test('allocates from memory that the callback freed', () => {
    using leaf = new CudaMemoryResource();
    const upstream = new LimitingResourceAdaptor(leaf, { limitBytes: 1024 });
    let old = upstream.allocate(1024, stream);
    const resource = new FailureCallbackResourceAdaptor(upstream, (bytes) => {
      if (old !== 0) upstream.deallocate(old, bytes, stream);
      const didFree = old !== 0;
      old = 0;
      return didFree;
    });
    const pointer = resource.allocate(1024, stream);
    expect(() => resource.allocate(1024, stream)).toThrow(OutOfMemoryError);
    resource.deallocate(pointer, 1024, stream);
  });

  test('passes the alignment on at every try', () => {
    const upstream = failing();
    const allocate = vi.spyOn(upstream, 'allocate');
    const resource = new FailureCallbackResourceAdaptor(upstream, () => true);
    resource.allocate(5, stream, 4096);
    expect(allocate.mock.calls).toEqual([
      [5, stream, 4096],
      [5, stream, 4096],
    ]);
  });

  test('is called for errors of the given class, and no others', () => {
    const driverError = () => new DriverError('allocate', 'CUDA_ERROR_UNKNOWN', 999, 'unknown');
    const callback = vi.fn(() => true);
    const upstream = failing(driverError());
    const usual = new FailureCallbackResourceAdaptor(upstream, callback);
    expect(() => usual.allocate(5, stream)).toThrow(DriverError);
    expect(callback).not.toHaveBeenCalled();

    const forDrivers = new FailureCallbackResourceAdaptor(upstream, callback, { errorClass: DriverError });
    upstream.failure = driverError();
    forDrivers.allocate(5, stream);
    upstream.failure = outOfMemory();
    expect(() => forDrivers.allocate(5, stream)).toThrow(OutOfMemoryError);
    expect(callback).toHaveBeenCalledTimes(1);

    const forAll = new FailureCallbackResourceAdaptor(upstream, callback, { errorClass: CisternError });
    for (const failure of [driverError(), outOfMemory()]) {
      upstream.failure = failure;
      forAll.allocate(5, stream);
    }
    expect(callback).toHaveBeenCalledTimes(3);
  });

  test("throws the callback's error, with the failure as its cause unless it has one", () => {
    const failure = outOfMemory();
    const plain = new Error('the cache is broken');
    const caused = new Error('the cache is broken', { cause: 'a reason of its own' });
    const frozen = Object.freeze(new Error('the cache is frozen'));
    for (const [thrown, cause] of [
      [plain, failure],
      [caused, 'a reason of its own'],
      [frozen, undefined],
      ['no error', undefined],
    ] as const) {
      const resource = new FailureCallbackResourceAdaptor(failing(failure), () => {
        throw thrown;
      });
      let seen: unknown;
      try {
        resource.allocate(5, stream);
      } catch (error) {
        seen = error;
      }
      expect(seen).toBe(thrown);
      if (thrown instanceof Error) expect(thrown.cause).toBe(cause);
      expect(resource.allocate(5, stream)).toBeGreaterThan(0);
    }
  });

  test('throws the failure itself if the callback does', () => {
    const failure = outOfMemory();
    const resource = new FailureCallbackResourceAdaptor(failing(failure), (_bytes, error) => {
      throw error;
    });
    expect(() => resource.allocate(5, stream)).toThrow(failure);
    expect(failure.cause).toBeUndefined();
    expect(failure.path).toEqual(['FailureCallbackResourceAdaptor', 'the device']);
  });

  test.each([undefined, 1, Promise.resolve(true)])('refuses the answer %s', (answer) => {
    const failure = outOfMemory();
    const resource = new FailureCallbackResourceAdaptor(failing(failure), () => answer as unknown as boolean);
    expect(() => resource.allocate(5, stream)).toThrow(
      expect.objectContaining({
        code: 'ERR_INVALID_ARG_TYPE',
        message: expect.stringMatching(/^callback must return true or false, returned/),
        cause: failure,
      }),
    );
  });

  test('notices that the callback disposed it', () => {
    const resource = new FailureCallbackResourceAdaptor(failing(), () => {
      resource.dispose();
      return true;
    });
    expect(() => resource.allocate(5, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  });

  test('lets the callback allocate through it', () => {
    const upstream = failing();
    const resource: MemoryResource = new FailureCallbackResourceAdaptor(upstream, () => resource.allocate(7, stream) > 0);
    expect(resource.allocate(5, stream)).toBeGreaterThan(0);
  });

  test('refuses a callback that is not a function', () => {
    const upstream = new SpyResource();
    expect(() => new FailureCallbackResourceAdaptor(upstream, undefined as unknown as FailureCallback)).toThrow(
      'callback must be a function, got undefined',
    );
    expect(() => new FailureCallbackResourceAdaptor(upstream, () => true, { errorClass: 'all' as never })).toThrow(
      'errorClass must be a function, got "all"',
    );
  });
});
