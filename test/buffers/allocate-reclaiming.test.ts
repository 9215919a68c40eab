import { beforeEach, describe, expect, it } from 'vitest';
import { OutOfMemoryError } from '../../src/basics/errors.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { AddressCountingResource } from './address-counting-resource.js';

let stream: Stream;
let addresses: AddressCountingResource;

beforeEach(() => {
  stream = Stream.legacyDefault();
  addresses = new AddressCountingResource();
});

function drop(count: number, bytes = 1000): void {
  for (let i = 0; i < count; i++) new DeviceBuffer(bytes, { resource: addresses, stream });
}

describe('without --expose-gc', () => {
  it('an allocation that runs out of memory uses what was dropped', () => {
    addresses.limitBytes = 16_000;
    for (let i = 0; i < 10_000; i++) new DeviceBuffer(1000, { resource: addresses, stream });
    using buffer = new DeviceBuffer(0, { resource: addresses, stream });
    buffer.resize(14_000);
    expect(buffer.capacityBytes).toBe(14_000);
  });

  it('an allocation that cannot be served throws the first error', () => {
    addresses.limitBytes = 10_000;
    drop(5);
    let calls = 0;
    addresses.beforeAllocate = () => calls++;
    const error = (() => {
      try {
        new DeviceBuffer(20_000, { resource: addresses, stream });
      } catch (caught) {
        return caught;
      }
    })();
    expect(error).toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY', requestedBytes: 20_000, path: ['addresses'] });
    expect(calls).toBeGreaterThan(1);
  });

  it('an allocation does not repeat the stages that the resource has tried', () => {
    drop(5);
    let calls = 0;
    addresses.beforeAllocate = (bytes) => {
      calls++;
      const stages = ['settle', 'minor-collection', 'major-collection'].map((stage) => ({ stage, recoveredBytes: 0 }));
      throw new OutOfMemoryError('none', { requestedBytes: bytes, path: ['addresses'], stages });
    };
    expect(() => new DeviceBuffer(1, { resource: addresses, stream })).toThrow('none');
    expect(calls).toBe(1);
    expect(addresses.frees).toHaveLength(0);
  });

  it('a failure of another kind is thrown at once', () => {
    let calls = 0;
    addresses.beforeAllocate = () => {
      calls++;
      throw new Error('broken');
    };
    drop(5, 0);
    expect(() => new DeviceBuffer(1, { resource: addresses, stream })).toThrow('broken');
    expect(calls).toBe(1);
  });
});
