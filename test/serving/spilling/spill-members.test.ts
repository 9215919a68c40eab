import { expect, test } from 'vitest';
import type { BufferMemory } from '../../../src/buffers/buffer-memory.js';
import { HostMemoryResource, type MemoryResource, Stream } from '../../../src/index.js';
import type { Move } from '../../../src/serving/spilling/moves.js';
import { type Spillable, SpillMembers } from '../../../src/serving/spilling/spill-members.js';

const host = new HostMemoryResource();
const stream = new Stream();
const [contents, copies] = [host.allocate(2048, stream), host.allocate(2048, stream)];
const stack = {} as MemoryResource;
const all = () => true;
const byLastUse = { rank: ({ lastUse }: { lastUse: number }) => lastUse };

/** A member on the device, which leaves when it is asked to, unless the host has no memory. */
class Member {
  devicePointer: number;
  readonly stack = stack;
  isPinned = false;
  isPinnedOutsideGrants = false;
  isOnHost = false;
  isInFile = false;
  /** Something else than a pin keeps it. */
  isKept = false;
  /** The stream of its last use is captured. */
  isCaptured = false;
  questions = 0;
  hostIsFull = false;
  /** What the host says to each that asks. */
  error: Error | undefined;
  onPrepare = () => {};
  /** Moves that have neither ended nor been abandoned. */
  moves = 0;
  asked = 0;
  uses = 0;
  lastUse = 0;
  rank = 0;
  serial = 0;
  heapPlace = -1;

  constructor(
    readonly bytes: number,
    readonly label = undefined,
  ) {
    this.devicePointer = Member.#next += 256;
  }

  static #next = 0;

  get canLeave(): boolean {
    this.questions++;
    return this.isIdle && !this.isCaptured;
  }

  get isIdle(): boolean {
    return !this.isKept && !this.isPinned && this.devicePointer !== 0;
  }

  /** The contents of all lie at the same place, since nobody looks at them. */
  prepareToLeave(isTentative: boolean): Move | undefined {
    if (!isTentative) this.asked++;
    this.onPrepare();
    if (this.error !== undefined) throw this.error;
    if (this.hostIsFull) return undefined;
    this.moves++;
    return {
      moves: this,
      from: { pointer: contents, stream } as BufferMemory,
      to: { pointer: copies, stream } as BufferMemory,
      bytes: this.bytes,
    };
  }

  assertHasContents(): void {}

  end(): void {
    this.moves--;
    this.devicePointer = 0;
  }

  abandon(): void {
    this.moves--;
  }

  goToFile(): Promise<boolean> {
    return Promise.resolve(false);
  }

  comeBack(members: SpillMembers): void {
    this.devicePointer = Member.#next += 256;
    members.cameBack(this);
  }
}

function joined(members: SpillMembers, ...sizes: number[]): Member[] {
  const list = sizes.map((bytes) => new Member(bytes));
  for (const member of list) members.join(member);
  return list;
}

const areAway = (list: readonly Member[]) => list.map(({ devicePointer }) => devicePointer === 0);

test('those of the least rank leave first, of equal ranks the first that joined, and what they count for is rounded up', () => {
  const members = new SpillMembers({ rank: () => 7 });
  const list = joined(members, 100, 300, 200);
  expect(list.map(({ uses, lastUse, rank }) => [uses, lastUse, rank])).toEqual([
    [1, 1, 7],
    [1, 2, 7],
    [1, 3, 7],
  ]);
  expect(members.canGive(256 + 512 + 256, all)).toBe(true);
  expect(members.canGive(256 + 512 + 256 + 1, all)).toBe(false);
  expect([members.spill(0, all), areAway(list)]).toEqual([0, [false, false, false]]);
  expect([members.spill(256, all), areAway(list)]).toEqual([256, [true, false, false]]);
  expect([members.spill(257, all), areAway(list)]).toEqual([512, [true, true, false]]);
  expect([members.spills, members.spilledBytes]).toEqual([2, 400]);
  // One that has left gives nothing.
  expect([members.canGive(256, all), members.canGive(257, all)]).toEqual([true, false]);
  for (const member of list.slice(0, 2)) member.comeBack(members);
  expect([members.returns, members.returnedBytes]).toEqual([2, 400]);
  expect([members.spill(10_000, all), areAway(list)]).toEqual([1024, [true, true, true]]);
  expect(members.spill(1, all)).toBe(0);
});

test('as many leave as are needed, and no more', () => {
  const members = new SpillMembers(byLastUse);
  const list = joined(members, 256, 256, 256, 256);
  expect([members.spill(512, all), areAway(list)]).toEqual([512, [true, true, false, false]]);
});

test('two that leave together take memory of the host in the order of their addresses, as more do', () => {
  const members = new SpillMembers({ rank: ({ bytes }) => -bytes });
  for (const sizes of [
    [256, 512],
    [256, 512, 1024],
  ]) {
    const list = joined(members, ...sizes);
    const asked: number[] = [];
    for (const member of list) member.onPrepare = () => asked.push(member.bytes);
    members.spill(10_000, all);
    expect(asked).toEqual(sizes);
    for (const member of list) members.remove(member);
  }
});

test('the driver is asked only about as many as are needed, and about none that the host has no memory for', () => {
  const members = new SpillMembers(byLastUse);
  const list = joined(members, 512, 512, 1024, 256);
  const questions = () => list.map((member) => member.questions);
  expect([members.canGive(512, all), questions()]).toEqual([true, [1, 0, 0, 0]]);
  for (const member of list.slice(0, 3)) member.hostIsFull = true;
  expect([members.spill(256, all), questions()]).toEqual([256, [2, 0, 0, 1]]);
});

test('those that leave after one was refused take memory of the host in the order of their addresses, too', () => {
  const members = new SpillMembers({ rank: ({ bytes }) => -bytes });
  const list = joined(members, 256, 512, 1024);
  const asked: number[] = [];
  for (const member of list.slice(0, 2)) member.onPrepare = () => asked.push(member.bytes);
  (list[2] as Member).hostIsFull = true;
  expect([members.spill(768, all), asked]).toEqual([768, [256, 512]]);
});

test('what a capture uses stays, as only the driver knows', () => {
  const members = new SpillMembers(byLastUse);
  const [captured, other] = joined(members, 256, 256) as [Member, Member];
  captured.isCaptured = true;
  expect([members.canGive(512, all), members.spill(10_000, all), areAway([captured, other])]).toEqual([false, 256, [false, true]]);
});

test('an error keeps who causes it, and those behind it, and those before have left', () => {
  const members = new SpillMembers(byLastUse);
  const list = joined(members, 256, 256, 256) as [Member, Member, Member];
  list[1].error = new Error('broken');
  expect(() => members.spill(10_000, all)).toThrow('broken');
  expect([areAway(list), list.map(({ moves }) => moves), members.spills]).toEqual([[true, false, false], [0, 0, 0], 1]);
  list[1].error = undefined;
  expect([members.spill(10_000, all), areAway(list)]).toEqual([512, [true, true, true]]);
});

test('what cannot leave any more, since code of a program has run, stays', () => {
  const members = new SpillMembers(byLastUse);
  const list = joined(members, 256, 256, 256) as [Member, Member, Member];
  const [first, second, third] = list;
  let wasPrepared = false;
  second.onPrepare = () => {
    wasPrepared = true;
  };
  first.onPrepare = () => {
    second.isKept = true;
  };
  expect([members.spill(10_000, all), areAway(list), third.moves, wasPrepared]).toEqual([512, [true, false, true], 0, false]);
});

test('what does not help stays, and so does what cannot leave, until it can', () => {
  const members = new SpillMembers(byLastUse);
  const list = joined(members, 256, 256, 256) as [Member, Member, Member];
  const [first, second, third] = list;
  const helps = (pointer: number, of: MemoryResource) => of === stack && pointer !== first.devicePointer;
  second.isKept = true;
  expect([members.canGive(256, helps), members.canGive(512, helps)]).toEqual([true, false]);
  expect([members.spill(10_000, helps), areAway(list)]).toEqual([256, [false, false, true]]);
  expect([first.asked, second.asked, third.asked]).toEqual([0, 0, 1]);
  second.isKept = false;
  expect([members.spill(10_000, all), areAway(list)]).toEqual([512, [true, true, true]]);
});

test('what is pinned is passed over without a question, and is a candidate again when its pin ends', () => {
  const members = new SpillMembers(byLastUse);
  const list = joined(members, 256, 256) as [Member, Member];
  const [pinned, other] = list;
  pinned.isPinned = true;
  expect([members.spill(256, all), areAway(list)]).toEqual([256, [false, true]]);
  other.comeBack(members);
  expect([members.spill(256, all), pinned.questions]).toEqual([256, 0]);
  pinned.isPinned = false;
  members.mayLeave(pinned);
  expect([members.spill(256, all), areAway(list)]).toEqual([256, [true, true]]);
  // The end of a pin of what is on the host makes none of it.
  members.mayLeave(pinned);
  expect([members.spill(256, all), pinned.heapPlace]).toEqual([0, -1]);
});

test('what the host has no memory for makes no larger one be tried, but smaller ones', () => {
  const members = new SpillMembers(byLastUse);
  const list = joined(members, 512, 512, 1024, 256) as [Member, Member, Member, Member];
  for (const member of list) member.hostIsFull = true;
  list[3].hostIsFull = false;
  expect([members.spill(10_000, all), list.map(({ asked }) => asked)]).toEqual([256, [1, 0, 0, 1]]);
  for (const member of list) member.hostIsFull = false;
  expect([members.spill(10_000, all), areAway(list)]).toEqual([2048, [true, true, true, true]]);
});

test('a use changes the place, and a rank that is no number is 0', () => {
  let rank = (member: { lastUse: number }): number => member.lastUse;
  const members = new SpillMembers({ rank: (member) => rank(member) });
  const list = joined(members, 256, 256, 256) as [Member, Member, Member];
  members.used(list[0]);
  expect([list[0].uses, list[0].lastUse]).toEqual([2, 4]);
  expect([members.spill(256, all), areAway(list)]).toEqual([256, [false, true, false]]);
  rank = () => Number.NaN;
  members.used(list[0]);
  expect(list[0].rank).toBe(0);
  // A use of what is away does not make it a candidate.
  members.used(list[1]);
  expect([members.spill(256, all), areAway(list), list[1].heapPlace]).toEqual([256, [true, true, false], -1]);
});

test('a member that is gone is none, whatever ends later', () => {
  const members = new SpillMembers(byLastUse);
  const [gone, other] = joined(members, 256, 256) as [Member, Member];
  expect([members.size, [...members]]).toEqual([2, [gone, other]]);
  expect([members.remove(gone), members.remove(gone), members.size, gone.heapPlace]).toEqual([true, false, 1, -1]);
  members.mayLeave(gone);
  expect([members.spill(10_000, all), gone.asked]).toEqual([256, 0]);
});

test('memory may come back if a member is used so, or others have some of what is live', () => {
  const members = new SpillMembers(byLastUse);
  const [first, second] = joined(members, 256, 512) as [Member, Member];
  const used = (member: Spillable) => member.isPinned;
  expect([members.mayComeBack(768, used), members.mayComeBack(769, used)]).toEqual([false, true]);
  second.isPinned = true;
  expect(members.mayComeBack(768, used)).toBe(true);
  second.isPinned = false;
  // What is away is none of the live bytes.
  members.spill(256, all);
  expect([first.devicePointer, members.mayComeBack(512, used), members.mayComeBack(513, used)]).toEqual([0, false, true]);
});
