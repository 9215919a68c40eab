import { describe, expect, test } from 'vitest';
import { interpose, mailbox, type NativeBinding, native } from '../../../src/driver/native.js';
import { invalidValueStatus } from '../../../src/driver/status.js';
import { AdmissionQueue, type AdmissionRequest, type Holder, type Outcome } from '../../../src/serving/admission/admission-queue.js';

/** A queue of 1,024 bytes, and what became of requests, by name. */
class Bed {
  readonly queue: AdmissionQueue;
  /** How often it was told that somebody still waits. */
  told = 0;
  readonly outcomes: string[] = [];
  readonly holders = new Map<string, Holder>();

  constructor(name = '') {
    this.queue = new AdmissionQueue(name, 1024, 16, () => this.told++);
  }

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
  // The last one is no exact number any more.
  for (const bytes of [1025, 2 ** 53]) expect(queue.takeOutside(bytes)).toBe(false);
  expect(queue.takeOutside(512)).toBe(true);
  expect([queue.takeOutside(513), queue.takeOutside(512), queue.takeOutside(1)]).toEqual([false, true, false]);
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

  test('are found as a use begins that ends only as they go on', () => {
    const [x, y] = [new Bed(), new Bed()];
    y.ask('outer', 256);
    // It may be freed at any time, as long as nothing is known of it.
    x.queue.takeOutside(1024);
    x.ask('asking', 256, { waiters: () => [y.party('outer')] });
    expect(x.outcomes).toEqual([]);
    const hold = x.queue.hold([y.party('outer')]);
    expect(x.outcomes).toEqual(['asking refused']);
    x.queue.validate();
    x.queue.endHold(hold);
    x.queue.giveOutside(1024);
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

describe('whoever can bring more is told that somebody still waits', () => {
  const calls: [string, (bed: Bed) => unknown][] = [
    ['something that was allocated outside of grants is freed', ({ queue }) => queue.giveOutside(256)],
    ['a grant gives back', (bed) => bed.queue.shrink(bed.holder('a'), 256)],
    ['a grant ends', (bed) => bed.queue.end(bed.holder('a'))],
    ['what an ended grant used is freed', (bed) => bed.queue.unuse(bed.holder('ended'), 256)],
    ['leftovers are freed', ({ queue }) => queue.settle()],
    ['others have changed it', ({ queue }) => queue.wake()],
  ];

  test.each(calls)('as %s, unless nobody does', (_, call) => {
    for (const [waiting, told] of [
      [[1024, 512], 1],
      [[1024], 1],
      [[], 0],
    ] as const) {
      const bed = new Bed();
      const { queue } = bed;
      bed.ask('a', 256);
      bed.ask('ended', 256);
      queue.use(bed.holder('ended'), 256);
      queue.end(bed.holder('ended'));
      queue.takeOutside(512);
      for (const bytes of waiting) bed.ask('waiting', bytes);
      bed.told = 0;
      call(bed);
      expect(bed.told).toBe(told);
      queue.validate();
    }
  });

  test('not as it was served by what was freed', () => {
    const bed = new Bed();
    bed.ask('a', 1024);
    bed.ask('b', 1024);
    bed.queue.end(bed.holder('a'));
    expect([bed.outcomes, bed.told]).toEqual([['a admitted', 'b admitted'], 0]);
  });
});

describe('what the addon refuses is thrown', () => {
  test.each<[operation: string, refusing: keyof NativeBinding, call: (bed: Bed) => unknown, isShared: boolean]>([
    ['read a queue for memory', 'readAdmission', ({ queue }) => queue.read(), false],
    ['tell a queue what is taken', 'takeUnpromised', ({ queue }) => [queue.takeOutside(256), queue.read()], false],
    ['tell a queue what is taken', 'giveUnpromised', ({ queue }) => [queue.giveOutside(256), queue.read()], false],
    ['take memory', 'takeUnpromised', ({ queue }) => queue.takeOutside(256), true],
    ['take memory', 'takeUnpromised', ({ queue }) => queue.takeOutside(0), true],
    ['give memory back', 'giveUnpromised', ({ queue }) => queue.giveOutside(256), true],
    ['give memory back', 'giveUnpromised', ({ queue }) => queue.giveOutside(0), true],
    ['ask for memory', 'askForAdmission', (bed) => bed.ask('b', 256), false],
    ['note a use of memory', 'holdAdmission', ({ queue }) => queue.hold([]), false],
    ['end a use of memory', 'endAdmissionHold', ({ queue }) => queue.endHold(1), false],
    ['withdraw a request for memory', 'withdrawAdmission', ({ queue }) => queue.withdraw(1), false],
    ['give promised memory back', 'shrinkAdmission', (bed) => bed.queue.shrink(bed.holder('a'), 256), false],
    ['end a grant', 'endAdmission', (bed) => bed.queue.end(bed.holder('a')), false],
    ['end waits for memory', 'stopAdmission', ({ queue }) => queue.stop(), false],
    ['free what ended workers left', 'settleAdmission', ({ queue }) => queue.settle(), false],
    ['validate a queue for memory', 'validateAdmission', ({ queue }) => queue.validate(), false],
    ['take what became of a request', 'takeAdmission', ({ queue }) => queue.deliver(), false],
    ['wait for memory', 'onAdmissions', () => new Bed(), false],
  ])('cannot %s: %s', (operation, refusing, call, isShared) => {
    const bed = new Bed(isShared ? `admission-queue.test: ${refusing}` : '');
    bed.ask('a', 512);
    const refuse = () => {
      mailbox[0] = invalidValueStatus;
    };
    interpose(() => ({ [refusing]: refuse }));
    try {
      expect(() => call(bed)).toThrow(`cannot ${operation}: `);
    } finally {
      interpose();
    }
  });

  test('cannot make a queue for memory', () => {
    expect(() => new AdmissionQueue('', Number.NaN, 16, () => {})).toThrow('cannot make a queue for memory: ');
  });
});

describe('what is not valid is found:', () => {
  test('what the addon says', () => {
    const { queue } = new Bed();
    const validateAdmission = () => {
      mailbox[0] = 0;
      mailbox[1] = 3;
    };
    interpose(() => ({ validateAdmission }));
    try {
      expect(() => queue.validate()).toThrow('admission: invariant 3 does not hold');
    } finally {
      interpose();
    }
    queue.validate();
  });

  test('another number of free bytes than is known here', () => {
    const bed = new Bed();
    bed.ask('a', 256);
    [mailbox[0], mailbox[1]] = [bed.queue.pairOf(bed.holder('a'))[0], 256];
    native().takeUnpromised();
    expect(() => bed.queue.validate()).toThrow('admission: 512 bytes are free, not 768');
  });
});

describe('the addon is called only', () => {
  const counted = ['takeUnpromised', 'giveUnpromised', 'readAdmission', 'takeAdmission'] as const;

  /** The calls of each that something makes, for one queue or for all. */
  function callsOf(act: () => unknown, handle?: number): number[] {
    const calls = counted.map(() => 0);
    interpose((addon) =>
      Object.fromEntries(
        counted.map((name, i) => [
          name,
          (given?: number) => {
            if (handle === undefined || handle === given) calls[i] = (calls[i] as number) + 1;
            (addon[name] as (handle?: number) => void)(given);
          },
        ]),
      ),
    );
    try {
      act();
    } finally {
      interpose();
    }
    return calls;
  }

  const takeAndGive = ({ queue }: Bed) => {
    expect(queue.takeOutside(512)).toBe(true);
    queue.giveOutside(512);
  };
  const takeAll = ({ queue }: Bed) => queue.takeOutside(512);
  const waitFor = (bed: Bed) => bed.ask('waiting', 1024);
  const nothing = () => {};

  test.each<[string, before: (bed: Bed) => unknown, act: (bed: Bed) => unknown, number[]]>([
    ['not for what is taken and given while nobody waits, down to the last byte', nothing, takeAndGive, [0, 0, 0, 0]],
    ['for what is taken while somebody waits, and given', waitFor, takeAndGive, [1, 1, 0, 0]],
    ['for what became of a request that was decided', nothing, (bed) => bed.ask('b', 256), [0, 0, 0, 1]],
    [
      'for what became of two',
      (bed) => [takeAll(bed), bed.ask('b', 256), bed.ask('c', 256)],
      (bed) => bed.queue.end(bed.holder('a')),
      [0, 0, 0, 2],
    ],
    ['for what became of none', nothing, ({ queue }) => queue.withdraw(12_345), [0, 0, 0, 0]],
    ['for what became of requests elsewhere, until there is nothing more', takeAll, ({ queue }) => queue.deliver(), [0, 0, 0, 1]],
    ['for what is free by now, if somebody waited', waitFor, ({ queue }) => queue.deliver(), [0, 0, 1, 1]],
  ])('%s', (_, before, act, expected) => {
    const bed = new Bed();
    bed.ask('a', 512);
    before(bed);
    expect(callsOf(() => act(bed))).toEqual(expected);
  });

  test('by those who are told that something was decided for them', () => {
    const [x, y] = [new Bed(), new Bed()];
    y.ask('older', 1024);
    x.ask('younger', 1024);
    y.ask('refused', 256, { waiters: () => [x.party('younger')] });
    const [handle] = x.queue.pairOf(x.holder('younger'));
    const left = () => x.ask('left', 256, { waiters: () => [y.party('older')] });
    expect(callsOf(left, handle)).toEqual([0, 0, 0, 0]);
    expect(y.outcomes).toEqual(['older admitted', 'refused refused']);
  });

  test('with no holder where there is none', () => {
    const bed = new Bed();
    const lengths: (number | undefined)[] = [];
    interpose((addon) => ({
      askForAdmission: (...args) => {
        lengths.push(args[5]?.length);
        addon.askForAdmission(...args);
      },
      holdAdmission: (handle, parties) => {
        lengths.push(parties.length);
        addon.holdAdmission(handle, parties);
      },
    }));
    try {
      bed.ask('a', 1024);
      bed.ask('b', 1024, { waiters: () => [] });
      bed.queue.hold([]);
      bed.queue.hold([bed.party('a')]);
    } finally {
      interpose();
    }
    expect(lengths).toEqual([undefined, undefined, 0, 0, 2]);
  });
});

test('a request that was admitted at once is not withdrawn', () => {
  const bed = new Bed();
  expect(bed.queue.withdraw(bed.ask('a', 256))).toBe(false);
  expect(bed.queue.read()).toMatchObject({ holders: 1, committedBytes: 256, waiting: 0 });
});
