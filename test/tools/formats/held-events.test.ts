import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { LoggedEvent } from '../../../src/tools/formats/event-columns.js';
import { HeldEvents } from '../../../src/tools/formats/held-events.js';

const amount = fc.oneof(
  fc.constantFrom(0, 1, 255, 256, 65_535, 65_536, 2 ** 32 - 1, 2 ** 32, 2 ** 40, 2 ** 53 - 1, 2 ** 60, -(2 ** 52), 0.5, 1e300),
  fc.nat(),
  fc.nat(1000).map((n) => 4096 * n),
  fc.maxSafeNat(),
);
const anyEvent: fc.Arbitrary<LoggedEvent> = fc.record({
  kind: fc.integer({ min: 1, max: 10 }) as fc.Arbitrary<LoggedEvent['kind']>,
  layer: fc.nat(255),
  stream: fc.nat(65_535),
  thread: fc.nat(65_535),
  phase: fc.nat(65_535),
  stack: fc.nat(2 ** 32 - 1),
  account: fc.nat(65_535),
  time: amount,
  first: amount,
  second: amount,
});

const taken = (held: HeldEvents, places?: readonly number[]) => Array.from(held.take(places), (event) => ({ ...event }));

test('held events are those that were added, in order', () => {
  fc.assert(
    fc.property(fc.array(anyEvent, { maxLength: 20 }), fc.constantFrom(1, 7), (events, times) => {
      const held = new HeldEvents();
      const all = Array.from({ length: times }, () => events).flat();
      for (const event of all) held.append(event);
      expect(held.eventCount).toBe(all.length);
      expect(taken(held)).toEqual(all);
    }),
  );
});

test('held events may fill several chunks, and their layers may change places', () => {
  const held = new HeldEvents();
  const event = { kind: 1, layer: 0, stream: 3, thread: 4, phase: 5, stack: 6, account: 7, time: 0, first: 0, second: 0 } as LoggedEvent;
  const eventAt = (i: number) => ({ ...event, layer: i % 2, time: 10 * i, first: 2 ** 40 + 256 * i, second: i % 70_000 });
  for (let i = 0; i < 150_000; i++) held.append(eventAt(i));
  const found = taken(held, [1, 0]);
  expect(found).toHaveLength(150_000);
  for (const i of [0, 1, 65_535, 65_536, 131_071, 131_072, 149_999]) expect(found[i]).toEqual({ ...eventAt(i), layer: 1 - (i % 2) });
  expect(taken(held)).toEqual([]);
});
