import { expect, test } from 'vitest';
import { checkOrder } from '../../src/checking/index.js';
import { CudaMemoryResource, Event, Stream, set } from '../../src/index.js';
import { DriverModel } from './driver-model.js';

/**
 * Work on one blocking stream stands still while the legacy default stream is used, and then an event is
 * recorded on another blocking stream.
 */
function afterLegacyUse(use: (legacy: Stream, pointer: number) => void): { isOrdered: boolean; hasHappened: boolean } {
  using _checker = checkOrder({ stacks: false });
  using model = new DriverModel();
  using held = new Stream();
  using other = new Stream();
  using event = new Event();
  using resource = new CudaMemoryResource();
  const legacy = Stream.legacyDefault();
  const pointer = resource.allocate(512, other);
  model.hold(held);
  set(pointer, 1, 1, 256, held);
  const place = model.mark(held);
  use(legacy, pointer + 256);
  event.record(other);
  const outcome = { isOrdered: model.isOrdered(place, other), hasHappened: event.query() };
  model.finish();
  resource.deallocate(pointer, 512, legacy);
  expect(model.violation).toBeUndefined();
  return outcome;
}

test('work of the legacy default stream puts one blocking stream after another', () => {
  const outcome = afterLegacyUse((legacy, pointer) => set(pointer, 2, 1, 256, legacy));
  expect(outcome).toEqual({ isOrdered: true, hasHappened: false });
});

test('a use that is only declared on the legacy default stream orders nothing', () => {
  const outcome = afterLegacyUse((legacy, pointer) => legacy.touch(pointer, 256, 'read'));
  expect(outcome).toEqual({ isOrdered: false, hasHappened: true });
});
