import { afterAll, afterEach, describe, expect, test } from 'vitest';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  copy,
  copyFromHost,
  copyToHostSync,
  HostMemoryResource,
  KiB,
  ManagedMemoryResource,
  type MemoryResource,
  MiB,
  PinnedHostMemoryResource,
  Stream,
  set,
  VirtualMemoryResource,
} from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { needMemoryPools } from '../support/device-memory.js';
import { code } from '../support/errors.js';
import { needFaults } from '../support/real-gpu.js';

const stream = new Stream({ nonBlocking: true });
afterAll(() => stream.dispose());
afterEach(() => {
  failCall('cuPointerGetAttribute', 0);
});

const kinds: [string, () => MemoryResource & Disposable][] = [
  ['cuda', () => new CudaMemoryResource()],
  ['cuda-async', () => new CudaAsyncMemoryResource()],
  ['managed', () => new ManagedMemoryResource()],
  ['pinned-host', () => new PinnedHostMemoryResource()],
  ['virtual', () => new VirtualMemoryResource()],
];

describe('the driver is not asked about', () => {
  test.each(kinds)('memory of %s, from its beginning', (name, make) => {
    needFaults();
    if (name === 'cuda-async') needMemoryPools();
    using resource = make();
    const pointer = resource.allocate(2 * MiB, stream);
    const array = new Uint8Array(KiB).fill(4);
    failCall('cuPointerGetAttribute', 1, 999);
    set(pointer, 7, 1, 2 * MiB, stream);
    copyFromHost(pointer, array, stream);
    const found = new Uint8Array(KiB);
    copyToHostSync(found, pointer, stream);
    expect(new Set(found)).toEqual(new Set([4]));
    resource.deallocate(pointer, 2 * MiB, stream);
  });

  test.each(kinds.filter(([name]) => name !== 'cuda-async'))('large memory of %s, within it', (_name, make) => {
    needFaults();
    using resource = make();
    const pointer = resource.allocate(4 * MiB, stream);
    failCall('cuPointerGetAttribute', 1, 999);
    set(pointer + 3 * MiB, 9, 1, MiB, stream);
    copy(pointer + MiB, pointer + 3 * MiB, MiB, stream);
    const found = new Uint8Array(KiB);
    copyToHostSync(found, pointer + 2 * MiB - KiB, stream);
    expect(new Set(found)).toEqual(new Set([9]));
    resource.deallocate(pointer, 4 * MiB, stream);
  });
});

describe('the driver is asked about', () => {
  const asks = (use: () => void) => {
    failCall('cuPointerGetAttribute', 1, 999);
    expect(use).toThrow(code('ERR_CISTERN_DRIVER'));
  };

  test.each(kinds)('a range that goes past the end of memory of %s, and one that was freed', (name, make) => {
    needFaults();
    if (name === 'cuda-async') needMemoryPools();
    using resource = make();
    const pointer = resource.allocate(4 * MiB, stream);
    asks(() => set(pointer, 1, 1, 4 * MiB + 1, stream));
    asks(() => set(pointer + 3 * MiB, 1, 1, MiB + 1, stream));
    resource.deallocate(pointer, 4 * MiB, stream);
    asks(() => set(pointer, 1, 1, 1, stream));
    asks(() => set(pointer + MiB, 1, 1, 1, stream));
  });

  test('host memory, which another library may have registered', () => {
    needFaults();
    using resource = new HostMemoryResource();
    using device = new CudaMemoryResource();
    const [host, pointer] = [resource.allocate(MiB, stream), device.allocate(MiB, stream)];
    asks(() => copy(pointer, host, MiB, stream));
    resource.deallocate(host, MiB, stream);
    device.deallocate(pointer, MiB, stream);
  });
});
