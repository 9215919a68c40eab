import { afterEach, expect, test } from 'vitest';
import { type AddressRange, beginSleep, endSleep } from '../../src/driver/memory/guarded-addresses.js';
import { CapturedMemory } from '../../src/graphs/captured-memory.js';
import { GraphRegion } from '../../src/graphs/graph-region.js';
import { LaunchOrder } from '../../src/graphs/launch-order.js';
import { CudaMemoryResource } from '../../src/index.js';
import { code } from '../support/errors.js';
import { stream } from '../support/stream.js';

let asleep: AddressRange = { begin: 0, end: 0 };
afterEach(() => endSleep(asleep));

test.each([0, 1, 2, 3])('a graph is not launched while one of its pieces of memory is asleep: %i', (sleeping) => {
  using upstream = new CudaMemoryResource();
  const order = new LaunchOrder('eager');
  const region = new GraphRegion(upstream, order, Number.POSITIVE_INFINITY);
  const memory = new CapturedMemory('step', region, order, () => {});
  const places = [0x10000, 0x20000, 0x30000, 0x40000];
  memory.usedBytes = new Map(places.slice(0, 2).map((address) => [address, 256]));
  memory.kept.push(...places.slice(2).map((address) => ({ address, bytes: 256 })));
  memory.beforeLaunch(stream);
  const begin = places[sleeping] as number;
  asleep = { begin, end: begin + 0x1000 };
  beginSleep(asleep);
  expect(() => memory.beforeLaunch(stream)).toThrow(code('ERR_CISTERN_ASLEEP'));
  endSleep(asleep);
  memory.beforeLaunch(stream);
  region[Symbol.dispose]();
});
