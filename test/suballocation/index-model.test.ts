import fc from 'fast-check';
import { expect, test } from 'vitest';
import { FreeSpaceIndex, unitBytes } from '../../src/suballocation/free-space-index.js';

const base = 2 ** 40;
/** The units of the addresses in which segments lie, and of a page. */
const area = 16_384;
const page = 16;

/** What a unit is part of: nothing, a used block (below 0), or the free memory of a lane (from 1 on). */
const absent = 0;

interface Range {
  readonly start: number;
  readonly units: number;
}

interface Block extends Range {
  readonly state: number;
  readonly isHead: boolean;
}

interface Live extends Range {
  readonly state: number;
  readonly slack: number;
  readonly owner: number;
}

/** The addresses unit by unit, with no lists and no records. */
class Model {
  readonly states = new Int32Array(area);
  /** Whether a segment begins at a unit. */
  readonly isHead = new Uint8Array(area);
  readonly live: Live[] = [];
  #used = 0;
  /** Until the next change. */
  #ranges: Block[] | undefined;

  /** The ranges of units that have one state and are in one segment: the blocks that the index must have, and the gaps. */
  get ranges(): readonly Block[] {
    if (this.#ranges !== undefined) return this.#ranges;
    this.#ranges = [];
    for (let start = 0; start < area; ) {
      const state = this.states[start] as number;
      let end = start + 1;
      while (end < area && this.states[end] === state && this.isHead[end] === 0) end++;
      this.#ranges.push({ start, units: end - start, state, isHead: this.isHead[start] === 1 });
      start = end;
    }
    return this.#ranges;
  }

  /** Those that have a state. */
  in(state: number): readonly Block[] {
    return this.ranges.filter((range) => range.state === state);
  }

  /** Whether a range is the only one of its segment. */
  isSegment({ start, units, isHead }: Block): boolean {
    const end = start + units;
    return isHead && (end === area || this.isHead[end] === 1 || this.states[end] === absent);
  }

  set({ start, units }: Range, state: number): void {
    this.#ranges = undefined;
    this.states.fill(state, start, start + units);
  }

  /** Adds a segment, or extends what touches the range. */
  add(range: Range, state: number, joins: boolean): void {
    const end = range.start + range.units;
    const touches = joins && range.start > 0 && this.states[range.start - 1] !== absent;
    this.isHead[range.start] = touches ? 0 : 1;
    if (joins && end < area) this.isHead[end] = 0;
    this.set(range, state);
  }

  /** Takes units out of a segment, which then ends before them; what comes after begins another one. */
  remove(range: Range): void {
    const end = range.start + range.units;
    if (end < area && this.states[end] !== absent) this.isHead[end] = 1;
    this.set(range, absent);
    this.isHead[range.start] = 0;
  }

  use(range: Range, slack: number, owner: number): void {
    const state = -++this.#used;
    this.set(range, state);
    this.live.push({ ...range, state, slack, owner });
  }

  /** All units of one state get another. */
  replace(from: number, to: number): void {
    for (const range of this.in(from)) this.set(range, to);
  }

  clear(): void {
    this.set({ start: 0, units: area }, absent);
    this.isHead.fill(0);
    this.live.length = 0;
  }
}

const kinds = [
  ...['allocate', 'allocate', 'allocate', 'aligned', 'free', 'free', 'free', 'segment', 'extend', 'extend'],
  ...['pages', 'pages', 'release', 'carve', 'carve', 'transfer', 'join', 'share', 'clear'],
] as const;

test('a free-space index agrees with a model of single units after any steps in several lanes', () => {
  const step = fc.record({
    kind: fc.constantFrom(...kinds),
    units: fc.oneof(
      fc.integer({ min: 1, max: 80 }),
      fc.integer({ min: 1, max: 8 }).map((pages) => pages * page),
      fc.integer({ min: 1, max: 5000 }),
    ),
    pick: fc.nat(),
    lane: fc.nat({ max: 2 }),
    other: fc.nat({ max: 2 }),
  });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 120, size: 'max' }), fc.boolean(), (steps, takesLowest) => {
      const index = new FreeSpaceIndex();
      if (takesLowest) index.takeLowest();
      const lanes = [index.addLane(), index.addLane(), index.addLane()];
      const isShared = [false, false, false];
      const model = new Model();
      for (const { kind, units, pick, lane, other } of steps) {
        const number = lanes[lane] as number;
        // The state of the units that are free in a lane.
        const [own, others] = [lane + 1, other + 1];
        const free = model.in(own);
        if (kind === 'segment' || kind === 'extend') {
          const gaps = model.in(absent);
          const gap = gaps[pick % gaps.length];
          if (gap === undefined) continue;
          const size = Math.min(units, gap.units);
          // At the end of the gap, the start, or between.
          const start = gap.start + (pick % 3 === 0 ? gap.units - size : pick % 3 === 1 ? 0 : (gap.units - size) >> 1);
          if (kind === 'segment') index.addSegment(base + start * unitBytes, size * unitBytes, number);
          else index.extendSegment(base + start * unitBytes, size * unitBytes, number);
          model.add({ start, units: size }, own, kind === 'extend');
        } else if (kind === 'allocate' || kind === 'aligned') {
          const slack = pick % 256;
          const alignment = kind === 'aligned' ? 512 << (pick % 5) : unitBytes;
          const fits = free.filter((range) => alignUp(range.start, alignment / unitBytes) + units <= range.start + range.units);
          const canAllocate = index.canAllocate(units, number);
          const address =
            kind === 'aligned' ? index.allocateAligned(units, slack, alignment, number, pick) : index.allocate(units, slack, number, pick);
          expect(address !== -1).toBe(fits.length > 0);
          if (kind === 'allocate') expect(canAllocate).toBe(address !== -1);
          if (address === -1) continue;
          const start = (address - base) / unitBytes;
          expect(fits.map((range) => alignUp(range.start, alignment / unitBytes))).toContain(start);
          model.use({ start, units }, slack, pick);
        } else if (kind === 'free') {
          if (model.live.length === 0) continue;
          const [live] = model.live.splice(pick % model.live.length, 1) as [Live];
          const address = base + live.start * unitBytes;
          const block = index.usedBlock(address);
          const bytes = live.units * unitBytes - live.slack;
          expect([index.askedBytes(block), index.ownerOf(block)]).toEqual([bytes, live.owner]);
          if (pick % 2 === 0) index.free(block, number);
          else expect(index.freeAt(address, bytes, number)).toBe(true);
          model.set(live, own);
        } else if (kind === 'pages') {
          const whole = ({ start, units: size }: Range) => Math.floor((start + size) / page) * page - alignUp(start, page);
          const removed = index.removePages(number, page * unitBytes, units * unitBytes);
          if (removed === undefined) {
            expect(units < page || free.every((range) => whole(range) <= 0)).toBe(true);
            continue;
          }
          const range = { start: (removed.address - base) / unitBytes, units: removed.bytes / unitBytes };
          const around = free.find(({ start, units: size }) => start <= range.start && start + size >= range.start + range.units);
          if (around === undefined) expect.fail('the pages are not free');
          // The last ones of a block, as many as may be removed.
          expect(range.start + range.units).toBe(Math.floor((around.start + around.units) / page) * page);
          expect(range.units).toBe(Math.min(whole(around), Math.floor(units / page) * page));
          model.remove(range);
        } else if (kind === 'release') {
          const segments = free.filter((range) => range.units <= units && model.isSegment(range));
          const removed = index.removeFreeSegment(number, units * unitBytes);
          const found = segments.find(({ start }) => base + start * unitBytes === removed?.address);
          expect(found !== undefined).toBe(segments.length > 0);
          expect(found?.units).toBe(removed && removed.bytes / unitBytes);
          if (found !== undefined) model.remove(found);
        } else if (kind === 'carve' && lane !== other) {
          const isDone = index.carve(units, number, lanes[other] as number);
          expect(isDone).toBe(free.some((range) => range.units >= units));
          if (!isDone) continue;
          // The first units of a block have moved.
          const starts = new Set(Array.from(index.blocks(), (block) => (block.address - base) / unitBytes));
          const from = free.filter(({ start, units: size }) => {
            const isLeft = size > units && starts.has(start + units);
            return size >= units && ownerAt(index, start) === lanes[other] && (size === units || isLeft);
          });
          expect(from.length).toBe(1);
          model.set({ start: from[0]?.start ?? 0, units }, others);
        } else if (kind === 'transfer' && lane !== other) {
          index.transfer(number, lanes[other] as number);
          model.replace(own, others);
        } else if (kind === 'join' && lane !== other) {
          const hasExchanged = index.join(number, lanes[other] as number);
          expect(hasExchanged).toBe(free.length > model.in(others).length);
          if (hasExchanged) [lanes[lane], lanes[other]] = [lanes[other] as number, number];
          model.replace(own, others);
        } else if (kind === 'share') {
          isShared[lane] = units % 2 === 0;
          index.share(number, units % 2 === 0);
        } else if (kind === 'clear' && pick % 8 === 0) {
          const segments = index.removeAllSegments();
          const bytes = unitBytes * model.states.filter((state) => state !== absent).length;
          expect(segments.reduce((sum, segment) => sum + segment.bytes, 0)).toBe(bytes);
          model.clear();
        }
        expectAgreement(index, lanes, model);
        expectShared(index, lanes, isShared, model, lane, units);
      }
    }),
    { numRuns: 100 },
  );
});

function alignUp(value: number, multiple: number): number {
  return Math.ceil(value / multiple) * multiple;
}

/** The lane that has the unit at some place. */
function ownerAt(index: FreeSpaceIndex, start: number): number | undefined {
  const address = base + start * unitBytes;
  for (const block of index.blocks()) if (block.address <= address && address < block.address + block.bytes) return block.lane;
  return undefined;
}

function expectAgreement(index: FreeSpaceIndex, lanes: readonly number[], model: Model): void {
  index.validate();
  const blocks = model.ranges.filter(({ state }) => state !== absent);
  const expected = blocks.map(({ start, units, state, isHead }) => ({
    address: base + start * unitBytes,
    bytes: units * unitBytes,
    lane: state < 0 ? -1 : (lanes[state - 1] as number),
    isHead,
  }));
  expect([...index.blocks()].sort((a, b) => a.address - b.address)).toEqual(expected);
  expect(index.usedBlocks).toBe(model.live.length);
  const last = expected.at(-1);
  for (const lane of lanes) {
    const sizes = expected.filter((block) => block.lane === lane).map(({ bytes }) => bytes);
    expect(index.freeBytes(lane)).toBe(sizes.reduce((sum, bytes) => sum + bytes, 0));
    expect(index.largestFreeBytes(lane)).toBe(Math.max(0, ...sizes));
    expect(index.isEmpty(lane)).toBe(sizes.length === 0);
    expect(index.freeTailBytes(lane)).toBe(last?.lane === lane ? last.bytes : 0);
  }
}

/** `laneWith` and `fullLane` find a shared lane exactly if there is one. */
function expectShared(
  index: FreeSpaceIndex,
  lanes: readonly number[],
  isShared: readonly boolean[],
  model: Model,
  lane: number,
  units: number,
): void {
  const own = lanes[lane] as number;
  const others = [0, 1, 2].filter((each) => each !== lane && isShared[each]);
  const having = (least: number) => others.filter((each) => model.in(each + 1).some((range) => range.units >= least));
  const [fits, filled] = [having(units), having(1)];
  expect(fits.length > 0 ? fits : [-1]).toContain(lanes.indexOf(index.laneWith(units, own, -1)));
  expect(filled.length > 0 ? filled : [-1]).toContain(lanes.indexOf(index.fullLane(own, -1)));
}
