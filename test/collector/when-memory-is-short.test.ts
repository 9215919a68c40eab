import { describe, expect, test } from 'vitest';
import { OutOfMemoryError } from '../../src/basics/errors.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { tryAgainCollecting } from '../../src/collector/when-memory-is-short.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { AddressCountingResource } from '../buffers/address-counting-resource.js';

const shortage = new OutOfMemoryError('none is left', { requestedBytes: 1, path: [] });

function drop(addresses: AddressCountingResource): void {
  for (let i = 0; i < 10; i++) new DeviceBuffer(1000, { resource: addresses, stream: Stream.legacyDefault() });
}

describe('an allocation that failed', () => {
  test('is tried again once a collection has freed something', () => {
    const addresses = new AddressCountingResource();
    drop(addresses);
    expect(tryAgainCollecting(shortage, () => addresses.live.size)).toBeLessThanOrEqual(1);
  });

  test('fails with its own error if nothing was freed, and other errors pass', () => {
    const other = new Error('unlike');
    expect(() => tryAgainCollecting(other, () => 17)).toThrow(other);
    const tried = (['settle', 'minor-collection', 'major-collection'] as const).map((stage) => ({ stage, recoveredBytes: 0 }));
    const last = new OutOfMemoryError('none is left', { requestedBytes: 1, path: [], stages: tried });
    expect(() => tryAgainCollecting(last, () => 17)).toThrow(last);
  });
});
