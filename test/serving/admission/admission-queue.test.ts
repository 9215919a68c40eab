import { describe, expect, test } from 'vitest';
import { AdmissionQueue, type AdmissionRequest, type Holder, type Outcome } from '../../../src/serving/admission/admission-queue.js';

/** A queue of 1,024 bytes, and what became of requests, by name. */
class Bed {
  readonly queue = new AdmissionQueue('', 1024, 16, () => {});
  readonly outcomes: string[] = [];
  readonly holders = new Map<string, Holder>();

  ask(name: string, bytes: number, request: Partial<AdmissionRequest> = {}): number {
    const settle = (outcome: Outcome) => {
      this.outcomes.push(`${name} ${outcome.kind}`);
      if (outcome.kind === 'admitted') this.holders.set(name, outcome.holder);
    };
    return this.queue.ask({ bytes, priority: 0, settle, ...request });
  }

  holder(name: string): Holder {
    return this.holders.get(name) as Holder;
  }

  /** What those who wait go on after. */
  party(name: string) {
    return { queue: this.queue, holder: this.holder(name) };
  }
}

test.each([true, false])('a queue of which nothing was asked is valid, and has all of its bytes: shared %s', (isShared) => {
  const queue = new AdmissionQueue(isShared ? 'admission-queue.test' : '', 1024, 16, () => {});
  queue.validate();
  expect(queue.takeOutside(1025)).toBe(false);
  expect(queue.takeOutside(1024)).toBe(true);
  queue.giveOutside(1024);
  queue.validate();
});

describe('what is allocated outside of grants counts', () => {
  const calls: [string, (bed: Bed, hold: number) => unknown][] = [
    ['something is in use', ({ queue }) => queue.hold([])],
    ['a use ends', ({ queue }, hold) => queue.endHold(hold)],
    ['a grant is asked for', (bed) => bed.ask('b', 0)],
    ['a request is withdrawn', (bed) => bed.queue.withdraw(12_345)],
    ['a grant gives back', (bed) => bed.queue.shrink(bed.holder('a'), 0)],
    ['a grant ends', (bed) => bed.queue.end(bed.holder('other'))],
    ['waits end', ({ queue }) => queue.stop()],
    ['leftovers are freed', ({ queue }) => queue.settle()],
    ['it is read', ({ queue }) => queue.read()],
  ];

  test.each(calls)('after %s', (_, call) => {
    const bed = new Bed();
    const { queue } = bed;
    bed.ask('a', 256);
    bed.ask('other', 0);
    const hold = queue.hold([bed.party('a')]);
    // What is taken, and what is given back.
    for (const [taken, given, free] of [
      [512, 0, 256],
      [256, 768, 768],
    ] as const) {
      expect(queue.takeOutside(taken)).toBe(true);
      if (given > 0) queue.giveOutside(given);
      if (free === 256) call(bed, hold);
      else queue.read();
      expect(queue.takeOutside(free + 1)).toBe(false);
      expect(queue.read()).toMatchObject({ committedBytes: 1024 - free, outsideBytes: 768 - free });
      queue.validate();
    }
  });

  test('after what an ended grant used is freed', () => {
    const bed = new Bed();
    const { queue } = bed;
    bed.ask('a', 512);
    expect(queue.use(bed.holder('a'), 256)).toBe(true);
    queue.end(bed.holder('a'));
    expect(queue.takeOutside(512)).toBe(true);
    queue.unuse(bed.holder('a'), 256);
    queue.validate();
    expect(queue.takeOutside(513)).toBe(false);
    expect(queue.takeOutside(512)).toBe(true);
    queue.giveOutside(1024);
  });

  test('after a wait that ends', () => {
    const bed = new Bed();
    const { queue } = bed;
    bed.ask('a', 256);
    expect(queue.takeOutside(512)).toBe(true);
    const number = bed.ask('b', 1024);
    expect(queue.takeOutside(257)).toBe(false);
    expect([queue.withdraw(number), queue.withdraw(number)]).toEqual([true, false]);
    expect(queue.takeOutside(257)).toBe(false);
    expect(queue.takeOutside(256)).toBe(true);
    queue.giveOutside(768);
    queue.validate();
    expect(bed.outcomes).toEqual(['a admitted']);
  });
});

describe('requests that wait for each other', () => {
  test('are found at once', () => {
    const bed = new Bed();
    bed.ask('a', 1024);
    bed.ask('b', 256, { waiters: () => [bed.party('a')] });
    expect(bed.outcomes).toEqual(['a admitted', 'b refused']);
  });

  test('are found over several queues, and what still waits in the one is known there', () => {
    const [x, y] = [new Bed(), new Bed()];
    y.ask('older', 1024);
    x.ask('younger', 1024);
    y.ask('refused', 256, { waiters: () => [x.party('younger')] });
    y.ask('waiting', 256);
    x.ask('left', 256, { waiters: () => [y.party('older')] });
    expect([x.outcomes, y.outcomes]).toEqual([['younger admitted'], ['older admitted', 'refused refused']]);
    y.queue.validate();
    // Whoever waits is served as soon as something is freed.
    y.queue.end(y.holder('older'));
    expect(y.outcomes.slice(2)).toEqual(['waiting admitted']);
    for (const { queue } of [x, y]) queue.stop();
  });

  test('are found as the last use ends that could have given back something', () => {
    const bed = new Bed();
    const { queue } = bed;
    const hold = queue.hold([]);
    bed.ask('a', 1024);
    bed.ask('b', 256, { waiters: () => [bed.party('a')] });
    expect(bed.outcomes).toEqual(['a admitted']);
    queue.endHold(hold);
    expect(bed.outcomes).toEqual(['a admitted', 'b refused']);
    queue.validate();
  });
});

test('a request that was admitted at once is not withdrawn', () => {
  const bed = new Bed();
  expect(bed.queue.withdraw(bed.ask('a', 256))).toBe(false);
  expect(bed.queue.read()).toMatchObject({ holders: 1, committedBytes: 256, waiting: 0 });
});
