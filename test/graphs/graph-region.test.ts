import { expect, test } from 'vitest';
import { GraphRegion } from '../../src/graphs/graph-region.js';
import { LaunchOrder } from '../../src/graphs/launch-order.js';
import { CallbackMemoryResource, CudaMemoryResource, KiB } from '../../src/index.js';
import { stream } from '../support/stream.js';

test('memory for a graph is in the smallest extent that has room, wherever that is', () => {
  using cuda = new CudaMemoryResource();
  const base = cuda.allocate(4096 * KiB, stream);
  let end = base;
  const upstream = new CallbackMemoryResource(
    (bytes) => {
      const address = end;
      end += bytes;
      return address;
    },
    () => {},
  );
  // No extent that is as large as all before it fits below the maximum, so that each is as large as asked for.
  const region = new GraphRegion(upstream, new LaunchOrder('eager'), 1792 * KiB);
  for (const kibibytes of [1024, 256, 512]) region.grow(kibibytes * KiB);
  const [large, small, medium] = region.extents.map(({ address }) => address);
  expect(region.extents.map(({ bytes }) => bytes / KiB)).toEqual([1024, 256, 512]);
  expect([200, 300, 600].map((kibibytes) => region.reserve(kibibytes * KiB, 256))).toEqual([small, medium, large]);
  region[Symbol.dispose]();
  cuda.deallocate(base, 4096 * KiB, stream);
});
