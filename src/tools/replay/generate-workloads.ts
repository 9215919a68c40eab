/**
 * The programs behind generated logs. Each is a generator that writes rows and pauses after every
 * step, so that the rows can be taken. Each ends with everything freed.
 */
import { GiB, MiB } from '../../basics/units.js';
import type { GeneratedAllocation, GeneratedRows } from './generated-rows.js';
import { type RandomSource, Sfc32, StandardRandom } from './generator-random.js';

/** A kind of log that can be generated. */
export interface Workload {
  /** One phrase that describes it. */
  readonly summary: string;
  /** Number of events unless the caller gives one. */
  readonly defaultEvents: number;
  /** The distance between addresses. */
  readonly strideBytes?: number | undefined;
  /** Writes approximately `events` events, usually a few more, and pauses after every step. */
  readonly run: (rows: GeneratedRows, seed: number, events: number) => Generator<void>;
}

/** The names of the workloads. */
export type WorkloadName = 'random' | 'dl-training' | 'dataframe' | 'multi-stream' | 'small-hot' | 'rmm-random';

/** Every workload by its name. */
export const workloads: Readonly<Record<WorkloadName, Workload>> = {
  random: {
    summary: 'allocations up to 4 MiB at random, at most 4 GiB live',
    defaultEvents: 1_000_000,
    run: (rows, seed, events) => randomAllocations(rows, new Sfc32(seed), Math.ceil(events / 2), 4 * MiB, 4 * GiB),
  },
  'dl-training': {
    summary: 'training of a network of 100 layers: activations forward, gradients backward, identical in every iteration',
    defaultEvents: 800_600,
    run: (rows, seed, events) => training(rows, new Sfc32(seed), events),
  },
  dataframe: {
    summary: 'columns of a dataframe: sizes spread over eight orders of magnitude, most of them short-lived, a few long-lived',
    defaultEvents: 1_000_000,
    strideBytes: GiB,
    run: (rows, seed, events) => dataframe(rows, new Sfc32(seed), Math.ceil(events / 2)),
  },
  'multi-stream': {
    summary: 'four streams whose memory use rises and falls in turn',
    defaultEvents: 600_000,
    run: (rows, seed, events) => multiStream(rows, new Sfc32(seed), events),
  },
  'small-hot': {
    summary: '10,000 small live allocations, replaced one at a time',
    defaultEvents: 1_000_000,
    run: (rows, seed, events) => smallHot(rows, new Sfc32(seed), events),
  },
  'rmm-random': {
    summary: "RMM's benchmark RANDOM_ALLOCATIONS, up to 1 MiB each; with seed 1, exactly the sizes and order of its build with libstdc++",
    defaultEvents: 20_000,
    run: (rows, seed, events) => randomAllocations(rows, new StandardRandom(seed), Math.ceil(events / 2), MiB, 16_000 * MiB, true),
  },
};

/** Removes an item, and puts the last one in its place. */
function swapRemove<T>(items: T[], index: number): T {
  const item = items[index] as T;
  const last = items.pop() as T;
  if (index < items.length) items[index] = last;
  return item;
}

/**
 * The control flow of RMM's `cpp/benchmarks/random_allocations`: with a probability of 73 % another
 * allocation, else a free of a random one.
 * @param drawsAsRmm whether to draw the index of a free as RMM does, from a range larger than the
 * number of live allocations
 */
function* randomAllocations(
  rows: GeneratedRows,
  random: RandomSource,
  allocations: number,
  largestBytes: number,
  mostBytes: number,
  drawsAsRmm = false,
): Generator<void> {
  const live: GeneratedAllocation[] = [];
  let liveBytes = 0;
  let count = 0;
  while (count < allocations || live.length > 0) {
    const bytes = random.between(1, largestBytes);
    if (live.length === 0 || (random.between(0, 99) < 73 && count < allocations && liveBytes + bytes < mostBytes)) {
      live.push(rows.allocate(bytes));
      liveBytes += bytes;
      count++;
    } else {
      const index = drawsAsRmm ? random.between(0, allocations - 1) % live.length : random.between(0, live.length - 1);
      const freed = swapRemove(live, index);
      liveBytes -= freed.bytes;
      rows.free(freed);
    }
    yield;
  }
}

function* training(rows: GeneratedRows, random: Sfc32, events: number): Generator<void> {
  const layers = 100;
  const smallest = 512;
  const largest = Math.floor(256e6 / smallest) * smallest;
  const distinct = new Set([smallest, largest]);
  while (distinct.size < 200) {
    const bytes = Math.floor(Math.exp(random.uniform(Math.log(smallest), Math.log(256e6))));
    distinct.add(Math.max(smallest, Math.floor(bytes / smallest) * smallest));
  }
  const sizes = [...distinct].sort((a, b) => a - b);
  const workspaces = sizes.slice(0, 150);
  const forwardWorkspaces = Array.from({ length: layers }, () => random.choice(workspaces));
  const backwardWorkspaces = Array.from({ length: layers }, () => random.choice(workspaces));
  // Each iteration uses every size, as an activation or as a gradient.
  const order = [...sizes];
  random.shuffle(order);
  const parameters = sizes.slice(0, 160);
  const weights = Array.from({ length: 3 * layers }, () => rows.allocate(random.choice(parameters)));
  yield;

  const perIteration = 8 * layers;
  const iterations = Math.max(1, Math.ceil((events - 2 * weights.length) / perIteration));
  for (let iteration = 0; iteration < iterations; iteration++) {
    const activations: GeneratedAllocation[] = [];
    for (let layer = 0; layer < layers; layer++) {
      activations.push(rows.allocate(order[2 * layer] as number));
      rows.free(rows.allocate(forwardWorkspaces[layer] as number));
    }
    let gradient: GeneratedAllocation | undefined;
    const late: GeneratedAllocation[] = [];
    for (let layer = layers - 1; layer >= 0; layer--) {
      const next = rows.allocate(order[2 * layer + 1] as number);
      rows.free(rows.allocate(backwardWorkspaces[layer] as number));
      const activation = activations[layer] as GeneratedAllocation;
      // A tenth of the activations are freed later than their layer.
      if (random.fraction() < 0.1) late.push(activation);
      else rows.free(activation);
      if (gradient !== undefined) rows.free(gradient);
      gradient = next;
      if (late.length > 0 && random.fraction() < 0.5) rows.free(late.shift() as GeneratedAllocation);
    }
    rows.free(gradient as GeneratedAllocation);
    for (const activation of late) rows.free(activation);
    yield;
  }
  for (const weight of weights.reverse()) rows.free(weight);
  yield;
}

function* dataframe(rows: GeneratedRows, random: Sfc32, allocations: number): Generator<void> {
  /** The frees before each allocation, by the allocation's number, with their exact times. */
  const ends = new Map<number, { readonly time: number; readonly allocation: GeneratedAllocation }[]>();
  const longest = 40_000;
  for (let step = 0; step < allocations + longest + 1; step++) {
    const ended = ends.get(step) ?? [];
    ends.delete(step);
    for (const { allocation } of ended.sort((a, b) => a.time - b.time)) rows.free(allocation);
    if (step < allocations) {
      const bytes = Math.min(Math.max(Math.floor(Math.exp(random.normal(Math.log(MiB), 2))), 8), GiB);
      const lifetime = Math.min(longest, 45 * (1 - random.fraction()) ** (-1 / 1.1));
      const end = { time: step + lifetime, allocation: rows.allocate(bytes) };
      const endStep = Math.ceil(end.time);
      const others = ends.get(endStep);
      if (others === undefined) ends.set(endStep, [end]);
      else others.push(end);
    }
    yield;
  }
}

function* multiStream(rows: GeneratedRows, random: Sfc32, events: number): Generator<void> {
  const streams = Array.from({ length: 4 }, (_, i) => `0x${(0x55d000001000 + 0x1000 * i).toString(16)}`);
  const live: GeneratedAllocation[][] = streams.map(() => []);
  const liveBytes = streams.map(() => 0);
  let current = 0;
  while (rows.count < events) {
    if (random.fraction() < 0.02) current = random.between(0, streams.length - 1);
    const own = live[current] as GeneratedAllocation[];
    const target = GiB * (1 + Math.sin((2 * Math.PI * rows.count) / 50_000 + (current * Math.PI) / 2));
    const chance = (liveBytes[current] as number) < target ? 0.65 : 0.3;
    if (own.length === 0 || random.fraction() < chance) {
      const bytes = Math.floor(Math.exp(random.uniform(Math.log(4096), Math.log(64 * MiB))));
      own.push(rows.allocate(bytes, streams[current]));
      liveBytes[current] = (liveBytes[current] as number) + bytes;
    } else {
      const freed = swapRemove(own, random.between(0, own.length - 1));
      liveBytes[current] = (liveBytes[current] as number) - freed.bytes;
      rows.free(freed);
    }
    yield;
  }
  for (const allocation of live.flat()) rows.free(allocation);
  yield;
}

function* smallHot(rows: GeneratedRows, random: Sfc32, events: number): Generator<void> {
  const liveCount = Math.min(10_000, Math.ceil(events / 2));
  const size = () => random.between(256, 4096);
  const live = Array.from({ length: liveCount }, () => rows.allocate(size()));
  while (rows.count < events - liveCount) {
    rows.free(swapRemove(live, random.between(0, live.length - 1)));
    live.push(rows.allocate(size()));
    yield;
  }
  random.shuffle(live);
  for (const allocation of live) rows.free(allocation);
  yield;
}
