import { describe, expect, test, vi } from 'vitest';
import {
  type AllocateCallback,
  CallbackMemoryResource,
  type CallbackMemoryResourceOptions,
  Device,
  Event,
  OutOfMemoryError,
  type Stream,
} from '../../src/index.js';
import { stream } from '../support/stream.js';

function make(answer: unknown, options?: CallbackMemoryResourceOptions) {
  const allocate = vi.fn((_bytes: number, _stream: Stream, _alignment: number) => answer as number);
  const deallocate = vi.fn();
  return { allocate, deallocate, resource: new CallbackMemoryResource(allocate, deallocate, options) };
}

describe('CallbackMemoryResource', () => {
  test('calls the functions with its own arguments', () => {
    const { allocate, deallocate, resource } = make(0x7f00_0000_0000);
    expect(resource.allocate(1000, stream)).toBe(0x7f00_0000_0000);
    resource.allocate(1000, stream, 4096);
    resource.allocate(1000, stream, 16);
    using event = new Event();
    for (const fence of ['off', event, undefined] as const) resource.deallocate(0x7f00_0000_0000, 1000, stream, fence);
    expect(allocate.mock.calls).toEqual([
      [1000, stream, 256],
      [1000, stream, 4096],
      [1000, stream, 256],
    ]);
    expect(deallocate.mock.calls).toEqual(['off', event, undefined].map((fence) => [0x7f00_0000_0000, 1000, stream, fence]));
  });

  test('calls nothing for zero bytes and the null pointer', () => {
    const { allocate, deallocate, resource } = make(0x7f00_0000_0000);
    expect(resource.allocate(0, stream)).toBe(0);
    resource.deallocate(0, 4096, stream);
    expect([allocate.mock.calls, deallocate.mock.calls]).toEqual([[], []]);
  });

  test('has the given device and memory kind', () => {
    const usual = make(0).resource;
    expect([usual.device.index, usual.memoryKind]).toEqual([0, 'device']);
    const other = make(0, { device: Device.get(1), memoryKind: 'pinned-host' }).resource;
    expect([other.device.index, other.memoryKind]).toEqual([1, 'pinned-host']);
    expect(() => other.allocate(5, stream)).toThrow(OutOfMemoryError);
    const ofDevice = make(0, { device: Device.get(1) }).resource;
    expect(() => ofDevice.allocate(5, stream)).toThrow('stream must belong to device 1, got one of device 0');
  });

  test('is out of memory if the function returns the null pointer', () => {
    expect(() => make(0).resource.allocate(2048, stream)).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_OUT_OF_MEMORY',
        message: 'the allocate function has no memory: 2 KiB (2048 bytes) were asked for',
        requestedBytes: 2048,
        path: ['CallbackMemoryResource'],
      }),
    );
  });

  test.each([
    [undefined, 'returned undefined for 5 bytes, which cannot be the address of that many bytes'],
    [Promise.resolve(undefined), 'returned an instance of Promise for 5 bytes, but allocate must return the address itself'],
    [256n, 'returned 256n for 5 bytes, which'],
    [-256, 'returned -256 for 5 bytes, which'],
    [2 ** 53, 'returned 9007199254740992 for 5 bytes, which'],
  ])('refuses the pointer %s', (returned, fault) => {
    const { deallocate, resource } = make(returned);
    const message = expect.stringMatching(`^the CallbackMemoryResource ${fault}`);
    expect(() => resource.allocate(5, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_FAULTY_RESOURCE', message, returned }));
    expect(deallocate).not.toHaveBeenCalled();
  });

  test('refuses a pointer with less than the usual alignment, and frees it', () => {
    const { deallocate, resource } = make(257);
    const message = 'the CallbackMemoryResource returned 0x101 for 5 bytes, which is not a multiple of 256; it was freed again';
    expect(() => resource.allocate(5, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_FAULTY_RESOURCE', message }));
    expect(deallocate.mock.calls).toEqual([[257, 5, stream, undefined]]);
  });

  test('refuses a pointer with less than the requested alignment, and frees it', () => {
    const { deallocate, resource } = make(4096);
    expect(() => resource.allocate(5, stream, 8192)).toThrow(
      'alignment must be one that the allocate function supports, got 8192; it returned 0x1000, which is freed again',
    );
    expect(deallocate.mock.calls).toEqual([[4096, 5, stream, undefined]]);
  });

  test('frees after its disposal, and allocates no more', () => {
    const { deallocate, resource } = make(4096);
    resource.allocate(5, stream);
    resource.dispose();
    expect(() => resource.allocate(5, stream)).toThrow('cannot allocate: the CallbackMemoryResource is already disposed');
    resource.deallocate(4096, 5, stream);
    expect(deallocate).toHaveBeenCalledTimes(1);
  });

  test("throws the functions' errors, with its name in the path of an out-of-memory error", () => {
    const outOfMemory = new OutOfMemoryError('nothing is left', { requestedBytes: 5, path: ['mine'] });
    const failure = new Error('something else');
    const allocate = vi.fn<AllocateCallback>();
    const resource = new CallbackMemoryResource(allocate, () => {
      throw failure;
    });
    allocate.mockImplementationOnce(() => {
      throw outOfMemory;
    });
    expect(() => resource.allocate(5, stream)).toThrow(outOfMemory);
    expect(outOfMemory.path).toEqual(['CallbackMemoryResource', 'mine']);
    allocate.mockImplementationOnce(() => {
      throw failure;
    });
    expect(() => resource.allocate(5, stream)).toThrow(failure);
    expect(() => resource.deallocate(256, 5, stream)).toThrow(failure);
  });

  test('calls the functions without a receiver', () => {
    let self: unknown = 'nobody';
    const resource = new CallbackMemoryResource(
      function (this: unknown) {
        self = this;
        return 256;
      },
      () => {},
    );
    resource.allocate(5, stream);
    expect(self).toBeUndefined();
  });

  test('is equal only to itself', () => {
    const { allocate, deallocate, resource } = make(0x7f00_0000_0000);
    expect(resource.isEqual(resource)).toBe(true);
    expect(resource.isEqual(new CallbackMemoryResource(allocate, deallocate))).toBe(false);
  });

  test('refuses arguments that are not functions, and invalid options', () => {
    const none = undefined as never;
    expect(() => new CallbackMemoryResource(none, () => {})).toThrow('allocate must be a function, got undefined');
    expect(() => new CallbackMemoryResource(() => 0, none)).toThrow('deallocate must be a function, got undefined');
    expect(() => make(0, null as never)).toThrow('options must be an object, got null');
    expect(() => make(0, { memoryKind: 'tape' as never })).toThrow(/^memoryKind must be 'device'/);
  });
});
