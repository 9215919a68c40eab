/** Which buffers go on to files, how many, and what is told of it: with members that only say so. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { Filing } from '../../../src/serving/spilling/filing.js';
import type { SpillFiles } from '../../../src/serving/spilling/spill-files.js';
import type { SpillMembers } from '../../../src/serving/spilling/spill-members.js';

/** A buffer on the host, which goes to a file when that is told to end. */
class Member {
  isOnHost = true;
  asked = 0;
  goes: 'at once' | 'when told' | 'not' | Error = 'at once';
  onAsked = () => {};
  #end: (() => void) | undefined;

  constructor(
    readonly rank: number,
    readonly bytes: number,
  ) {}

  async goToFile(lane: unknown): Promise<boolean> {
    expect(lane).toBe(outward);
    this.asked++;
    this.onAsked();
    if (this.goes instanceof Error) throw this.goes;
    if (this.goes === 'when told') await new Promise<void>((resolve) => (this.#end = resolve));
    if (this.goes !== 'not') this.isOnHost = false;
    return this.goes !== 'not';
  }

  end(): void {
    this.#end?.();
  }
}

const outward = {};
let members: Member[];
let most: number | undefined;
let ended: number;
let moved: number;
let filing: Filing;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['performance'] });
  vi.advanceTimersByTime(5000);
  members = [new Member(3, 10), new Member(1, 20), new Member(2, 30)];
  most = undefined;
  [ended, moved] = [0, 0];
  const files = { outward, end: () => ended++ } as unknown as SpillFiles;
  const list = { [Symbol.iterator]: () => members[Symbol.iterator]() } as unknown as SpillMembers;
  filing = new Filing(
    files,
    list,
    () => most,
    () => moved++,
  );
});

afterEach(() => void vi.useRealTimers());

const onHost = () => members.filter(({ isOnHost }) => isOnHost).map(({ rank }) => rank);
const counts = () => [filing.filed, filing.filedBytes, filing.refused, moved];
const settled = async () => {
  for (let turn = 0; turn < 5; turn++) await nextTurn();
};

describe('by call, buffers go', () => {
  test.each([
    [0, 0, [3, 1, 2], 0],
    [1, 20, [3, 2], 1],
    [20, 20, [3, 2], 1],
    [21, 50, [3], 2],
    [50, 50, [3], 2],
    [1000, 60, [], 3],
  ])('by their ranks until %i bytes have gone', async (bytes, gone, left, filed) => {
    expect(await filing.move(bytes)).toBe(gone);
    expect([onHost(), counts()]).toEqual([left, [filed, gone, 0, filed]]);
  });

  test('unless they are elsewhere, or needed meanwhile, which count for nothing', async () => {
    (members[1] as Member).isOnHost = false;
    (members[2] as Member).goes = 'not';
    expect(await filing.move(10)).toBe(10);
    expect([members.map(({ asked }) => asked), counts()]).toEqual([
      [1, 0, 1],
      [1, 10, 0, 1],
    ]);
  });

  test('until one cannot, of which is known for a second', async () => {
    const wrong = new Error('full');
    (members[2] as Member).goes = wrong;
    expect(filing.failure).toBeUndefined();
    await expect(filing.move(60)).rejects.toBe(wrong);
    expect([onHost(), counts()]).toEqual([
      [3, 2],
      [1, 20, 1, 1],
    ]);
    vi.advanceTimersByTime(999);
    expect(filing.failure).toBe(wrong);
    // None is tried in the background for so long.
    filing.moveInBackground(60);
    expect([filing.isGoingOn, (members[0] as Member).asked]).toEqual([false, 0]);
    vi.advanceTimersByTime(1);
    expect(filing.failure).toBeUndefined();
    (members[2] as Member).goes = 'at once';
    filing.moveInBackground(60);
    await settled();
    expect(onHost()).toEqual([]);
  });

  test('until the end, after which nobody is told', async () => {
    const [, first] = members as [Member, Member];
    first.goes = 'when told';
    const moving = filing.move(60);
    filing.end();
    first.end();
    expect([await moving, ended]).toEqual([20, 1]);
    expect([onHost(), counts()]).toEqual([
      [3, 2],
      [1, 20, 0, 0],
    ]);
  });
});

describe('in the background, buffers go', () => {
  test.each([
    [undefined, [3, 1, 2]],
    [60, [3, 1, 2]],
    [59, [3, 2]],
    [40, [3, 2]],
    [39, [3]],
    [0, []],
  ])('above %s bytes on the host', async (bytes, left) => {
    most = bytes;
    // What is elsewhere does not count.
    const elsewhere = new Member(0, 1000);
    elsewhere.isOnHost = false;
    members.unshift(elsewhere);
    filing.keepHostBelow();
    await settled();
    expect([onHost(), filing.isGoingOn]).toEqual([left, false]);
    // Each, and then the end, if anything began.
    expect(moved).toBe(left.length === 3 ? 0 : 3 - left.length + 1);
  });

  test('as far as the most is that was asked for meanwhile', async () => {
    const first = new Member(1, 1);
    members[1] = first;
    first.goes = 'when told';
    filing.moveInBackground(1);
    expect([filing.isGoingOn, first.asked]).toEqual([true, 1]);
    for (const bytes of [5, 31, 6]) filing.moveInBackground(bytes);
    first.end();
    await settled();
    expect([onHost(), filing.isGoingOn, counts()]).toEqual([[], false, [3, 41, 0, 4]]);
    expect(members.map(({ asked }) => asked)).toEqual([1, 1, 1]);
  });

  test('if any is on the host', async () => {
    for (const member of members) member.isOnHost = false;
    filing.moveInBackground(10);
    expect(filing.isGoingOn).toBe(false);
    await settled();
    expect(moved).toBe(0);
    // What was wanted then counts, once there is one.
    (members[0] as Member).isOnHost = true;
    filing.moveInBackground(0);
    await settled();
    expect(onHost()).toEqual([]);
  });

  test.each(['not', new Error('full')] as const)('until none can: %s', async (goes) => {
    for (const member of members) member.goes = goes;
    const [first] = members as [Member];
    // It is asked for more while it tries.
    first.onAsked = () => filing.moveInBackground(60);
    filing.moveInBackground(60);
    await settled();
    expect([filing.isGoingOn, moved]).toEqual([false, 1]);
    expect(members.map(({ asked }) => asked)).toEqual(goes === 'not' ? [1, 1, 1] : [0, 1, 0]);
    // What was wanted is forgotten: it goes no further than what is asked for now.
    vi.advanceTimersByTime(2000);
    for (const member of members) member.goes = 'at once';
    filing.moveInBackground(20);
    await settled();
    expect([onHost(), filing.isGoingOn]).toEqual([[3, 2], false]);
  });

  test('until the end, after which nobody is told', async () => {
    const [, first] = members as [Member, Member];
    first.goes = 'when told';
    filing.moveInBackground(20);
    filing.moveInBackground(60);
    filing.end();
    first.end();
    await settled();
    expect([onHost(), filing.isGoingOn, counts()]).toEqual([[3, 2], false, [1, 20, 0, 0]]);
    expect((members[2] as Member).asked).toBe(0);
  });
});
