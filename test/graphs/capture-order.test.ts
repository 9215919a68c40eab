import { expect, test } from 'vitest';
import type { StreamIdentity } from '../../src/driver/streams/stream-identity.js';
import { CaptureOrder } from '../../src/graphs/capture-order.js';

const stream = () => ({}) as StreamIdentity;

function capture() {
  const origin = stream();
  const ended: [number, number][] = [];
  const order = new CaptureOrder(origin, { epochEnded: (number, epoch) => ended.push([number, epoch]) });
  return { origin, ended, order };
}

test('streams are numbered as they join, and each epoch ends with a recording', () => {
  const { origin, ended, order } = capture();
  const [first, second, outside] = [stream(), stream(), stream()];
  expect([order.numberOf(origin), order.epochOf(0), order.numberOf(first)]).toEqual([0, 0, -1]);
  order.eventRecorded(origin, 1);
  order.eventAwaited(first, 1);
  expect([order.numberOf(first), order.epochOf(0), order.epochOf(1)]).toEqual([1, 1, 0]);
  expect(order.joinedUnseen(second)).toBe(2);
  for (const version of [2, 3]) order.eventRecorded(second, version);
  expect(order.epochOf(2)).toBe(2);
  // Neither an event of a stream that has not joined, nor one that nobody has recorded here, makes one join.
  order.eventRecorded(outside, 4);
  order.eventAwaited(outside, 5);
  order.eventAwaited(outside, 4);
  expect(order.numberOf(outside)).toBe(-1);
  expect(ended).toEqual([
    [0, 0],
    [2, 0],
    [2, 1],
  ]);
});

test('a stream comes after what an event covers that it has awaited, directly or by others, and after nothing else', () => {
  const { origin, order } = capture();
  const [first, second, third, unseen] = [stream(), stream(), stream(), stream()];
  const after = (a: number, b: number, epochs: readonly number[]) => epochs.map((epoch) => order.isAfter(a, b, epoch));
  order.eventRecorded(origin, 1);
  order.eventAwaited(first, 1);
  expect([after(0, 0, [0, 1, 2]), after(1, 0, [0, 1]), after(0, 1, [0])]).toEqual([[true, true, true], [true, false], [false]]);
  order.eventRecorded(origin, 2);
  order.eventAwaited(first, 2);
  expect(after(1, 0, [0, 1, 2])).toEqual([true, true, false]);
  // A later wait of one that joined by an event does not change what the event covers.
  order.eventAwaited(second, 1);
  expect(after(2, 0, [0, 1])).toEqual([true, false]);
  order.eventRecorded(first, 3);
  order.eventAwaited(third, 3);
  expect([after(3, 1, [0, 1]), after(3, 0, [0, 1, 2]), after(3, 2, [0])]).toEqual([[true, false], [true, true, false], [false]]);
  // An older event takes nothing away.
  order.eventAwaited(third, 1);
  expect([after(3, 1, [0, 1]), after(3, 0, [0, 1, 2])]).toEqual([
    [true, false],
    [true, true, false],
  ]);
  order.eventAwaited(origin, 3);
  expect([after(0, 1, [0, 1]), after(0, 2, [0])]).toEqual([[true, false], [false]]);
  const number = order.joinedUnseen(unseen);
  expect([after(number, 0, [0]), after(0, number, [0])]).toEqual([[false], [false]]);
});
