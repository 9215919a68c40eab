// The tests of the library, with a limit that one of them meets.
//
//     node --test examples/library/index.test.js
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createResourceStack, Stream, TrackingResourceAdaptor } from 'cistern';
import { runningTotal } from './index.js';

const { resource: upstream } = createResourceStack('limiting(pool(cuda), limitBytes=64KiB)');
const stream = new Stream();

test('the caller gets the result and owns it', async () => {
  const resource = new TrackingResourceAdaptor(upstream, { captureStacks: true });
  const buffer = runningTotal(Float64Array.of(1, 2, 3.5), { resource, stream });
  const bytes = await buffer.toHost();
  assert.deepEqual([...new Float64Array(bytes.buffer)], [1, 3, 6.5]);
  buffer.dispose();
  assert.equal(resource.report(), 'no outstanding allocations');
});

test('nothing is left when memory runs out', () => {
  const resource = new TrackingResourceAdaptor(upstream);
  assert.throws(() => runningTotal(new Float64Array(5000), { resource, stream }), { code: 'ERR_CISTERN_OUT_OF_MEMORY' });
  assert.equal(resource.allocatedBytes, 0);
});
