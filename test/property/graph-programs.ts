/**
 * Random programs that capture graphs with memory: forks and joins, some of which another library makes, frees on
 * other streams, child graphs within child graphs, work beside the capture, host functions, captures that fail, launches
 * on several streams while others are held, updates, trims, graphs disposed in flight.
 *
 * The model shares nothing with cistern. It keeps the partial order of a capture as the set of everything
 * that comes before each point, and the contents of memory by address:
 *
 *  - two allocations of a capture share bytes only if the second was requested after the first was freed, and
 *    after it was requested, both by that order;
 *  - a child graph uses its memory where it was added, and does at each launch what it was captured with;
 *  - a launch writes what the capture queued, one launch after the other; whatever is read at the end has
 *    those contents, and each host function has run as often as its graph was launched;
 *  - nothing is left at the end, and the order checker has found nothing.
 */

import { setImmediate } from 'node:timers/promises';
import fc from 'fast-check';
import { checkOrder } from '../../src/checking/index.js';
import { mailbox, native } from '../../src/driver/native.js';
import { check } from '../../src/driver/status.js';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import {
  CisternError,
  CudaMemoryResource,
  copy,
  copyToHostSync,
  type DeallocationEvents,
  Device,
  DeviceBuffer,
  Event,
  type Graph,
  type GraphExec,
  LimitingResourceAdaptor,
  OutOfMemoryError,
  PoolMemoryResource,
  StatisticsResourceAdaptor,
  Stream,
  type StreamHold,
  set,
  VirtualMemoryResource,
} from '../../src/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';

/** A step within a capture. Numbers are indexes into what there is, modulo its count. */
type CaptureStep =
  | { readonly do: 'allocate'; readonly stream: number; readonly bytes: number; readonly alignment: number; readonly isKept: boolean }
  | { readonly do: 'free'; readonly which: number; readonly stream: number; readonly isOrdered: boolean }
  | { readonly do: 'set'; readonly which: number; readonly stream: number }
  | { readonly do: 'copy'; readonly from: number; readonly to: number; readonly stream: number }
  | { readonly do: 'order'; readonly from: number; readonly to: number; readonly isSeen: boolean }
  | { readonly do: 'record'; readonly stream: number }
  | { readonly do: 'wait'; readonly event: number; readonly stream: number }
  | { readonly do: 'buffer'; readonly stream: number; readonly bytes: number; readonly isDropped: boolean }
  | { readonly do: 'host'; readonly stream: number }
  | ({ readonly do: 'child'; readonly stream: number } & ChildShape)
  | { readonly do: 'beside'; readonly bytes: number }
  | { readonly do: 'free-beside' }
  | { readonly do: 'fail' };

/** A graph that is captured beside the capture, and added to it. */
interface ChildShape {
  /** Whether an earlier one is added once more instead: the one with the first number of `targets`. */
  readonly isAgain: boolean;
  /** What it sets; the second one on another stream, if there is one. */
  readonly targets: readonly number[];
  /** What it copies to its first target before that. */
  readonly source: number;
  readonly hasHostFunction: boolean;
  /** Whether the last one before is a child of this. */
  readonly isParent: boolean;
  /** Whether it is disposed as soon as it was added. */
  readonly isDisposed: boolean;
}

type Step =
  | { readonly do: 'capture'; readonly script: number; readonly name: number; readonly less: number; readonly unjoined: boolean }
  | { readonly do: 'warm-up'; readonly script: number; readonly name: number }
  | { readonly do: 'launch'; readonly graph: number; readonly stream: number }
  | { readonly do: 'update'; readonly graph: number; readonly by: number }
  | { readonly do: 'dispose'; readonly graph: number; readonly what: 'graph' | 'exec' }
  | { readonly do: 'give-up'; readonly graph: number; readonly which: number; readonly stream: number }
  | { readonly do: 'check'; readonly graph: number; readonly stream: number }
  | { readonly do: 'hold'; readonly stream: number }
  | { readonly do: 'release' }
  | { readonly do: 'trim' }
  | { readonly do: 'replace-stream'; readonly stream: number };

interface GraphProgram {
  readonly upstream: 'cuda' | 'virtual' | 'pool' | 'limited';
  readonly policy: DeallocationEvents;
  readonly isPlanned: boolean;
  readonly refuses: boolean;
  readonly scripts: readonly (readonly CaptureStep[])[];
  readonly steps: readonly Step[];
}

const small = fc.nat(1000);
const stream = fc.nat(3);
const bytes = fc.oneof(fc.integer({ min: 1, max: 2048 }), fc.constantFrom(256, 512, 512, 1024, 1024, 65_536));

const captureStep: fc.Arbitrary<CaptureStep> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant('allocate' as const),
      stream,
      bytes,
      alignment: fc.constantFrom(256, 256, 256, 1024),
      isKept: fc.constant(false),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ do: fc.constant('allocate' as const), stream, bytes, alignment: fc.constant(256), isKept: fc.constant(true) }),
  },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('free' as const), which: small, stream, isOrdered: fc.boolean() }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('set' as const), which: small, stream }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('copy' as const), from: small, to: small, stream }) },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant('order' as const), from: stream, to: stream, isSeen: fc.nat(7).map((value) => value > 0) }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('record' as const), stream }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('wait' as const), event: small, stream }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('buffer' as const), stream, bytes, isDropped: fc.boolean() }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('host' as const), stream }) },
  {
    weight: 3,
    arbitrary: fc.record({
      do: fc.constant('child' as const),
      stream,
      isAgain: fc.nat(3).map((value) => value === 0),
      targets: fc.array(small, { minLength: 1, maxLength: 3 }),
      source: small,
      hasHostFunction: fc.boolean(),
      isParent: fc.boolean(),
      isDisposed: fc.nat(3).map((value) => value === 0),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('beside' as const), bytes }) },
  { weight: 1, arbitrary: fc.constant({ do: 'free-beside' as const }) },
);

const script = fc
  .tuple(fc.array(captureStep, { minLength: 1, maxLength: 40, size: 'max' }), fc.nat(30))
  .map(([steps, fails]): readonly CaptureStep[] => (fails === 0 ? [...steps, { do: 'fail' }] : steps));

const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      do: fc.constant('capture' as const),
      script: small,
      name: fc.nat(1),
      less: fc.constantFrom(0, 0, 0, 0, 1, 2),
      unjoined: fc.nat(25).map((value) => value === 0),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('warm-up' as const), script: small, name: fc.nat(1) }) },
  { weight: 8, arbitrary: fc.record({ do: fc.constant('launch' as const), graph: small, stream }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('update' as const), graph: small, by: small }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('dispose' as const), graph: small, what: fc.constantFrom('graph' as const, 'exec' as const) }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('give-up' as const), graph: small, which: small, stream }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('check' as const), graph: small, stream }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('hold' as const), stream }) },
  { weight: 1, arbitrary: fc.constant({ do: 'release' as const }) },
  { weight: 1, arbitrary: fc.constant({ do: 'trim' as const }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('replace-stream' as const), stream }) },
);

function graphPrograms(): fc.Arbitrary<GraphProgram> {
  return fc.record({
    upstream: fc.constantFrom('cuda' as const, 'virtual' as const, 'pool' as const, 'limited' as const),
    policy: fc.constantFrom('eager' as const, 'deferred' as const, 'off' as const),
    isPlanned: fc.boolean(),
    refuses: fc.nat(4).map((value) => value === 0),
    scripts: fc.array(script, { minLength: 1, maxLength: 2 }),
    steps: fc.array(step, { minLength: 3, maxLength: 16, size: 'max' }),
  });
}

interface GraphProgramCounts {
  programs: number;
  steps: number;
  captures: number;
  planned: number;
  deviations: number;
  failedCaptures: number;
  launches: number;
  allocations: number;
  /** Allocations with bytes that another one of the capture had, and those among them that came from another stream. */
  reuses: number;
  reusesOfOthers: number;
  outOfMemory: number;
  /** Edges that cistern was not told of. */
  unseenEdges: number;
  /** Child graphs that were added to a capture, and those of them that have child graphs themselves. */
  children: number;
  parents: number;
  hostFunctions: number;
}

function noGraphProgramCounts(): GraphProgramCounts {
  return {
    ...{ programs: 0, steps: 0, captures: 0, planned: 0, deviations: 0, failedCaptures: 0, launches: 0, allocations: 0 },
    ...{ reuses: 0, reusesOfOthers: 0, outOfMemory: 0, unseenEdges: 0, children: 0, parents: 0, hostFunctions: 0 },
  };
}

/** Everything before a point of a capture: one bit for each point. */
type Past = bigint;

interface ModelAllocation {
  readonly pointer: number;
  readonly bytes: number;
  readonly stream: number;
  readonly isKept: boolean;
  /** The point of its request; and of its free, or -1. */
  readonly requested: number;
  freed: number;
  /** Every use so far. */
  uses: Past;
  isWritten: boolean;
}

/** What a launch does, in the order of the capture. */
type Effect =
  | { readonly kind: 'set'; readonly pointer: number; readonly bytes: number; readonly value: number }
  | { readonly kind: 'copy'; readonly from: number; readonly to: number; readonly bytes: number }
  | { readonly kind: 'host' };

/** A graph that can be a child of others. */
interface Child {
  readonly graph: Graph;
  /** Including those of its own children. */
  readonly effects: readonly Effect[];
  readonly uses: ReadonlySet<ModelAllocation>;
  readonly writes: ReadonlySet<ModelAllocation>;
  readonly isParent: boolean;
}

interface CapturedGraph {
  graph: Graph | undefined;
  exec: GraphExec | undefined;
  readonly effects: readonly Effect[];
  /** What the executable graph does: what another graph does after an update. */
  execEffects: readonly Effect[];
  readonly allocations: readonly ModelAllocation[];
  /** Those that nobody has given up. */
  readonly outputs: ModelAllocation[];
  /** The graph whose memory the executable graph uses: another one after an update. */
  execUses: CapturedGraph | undefined;
}

/** The partial order of one capture. */
class OrderModel {
  #points = 0;
  /** By stream: all that comes before its next point. A stream that is not there has not joined. */
  readonly past = new Map<number, Past>();

  constructor(origin: number) {
    this.past.set(origin, 0n);
  }

  point(on: number): number {
    const number = this.#points++;
    this.past.set(on, (this.past.get(on) as Past) | (1n << BigInt(number)));
    return number;
  }

  has(on: number, point: number): boolean {
    return ((this.past.get(on) as Past) >> BigInt(point)) % 2n === 1n;
  }

  join(on: number, past: Past): void {
    this.past.set(on, (this.past.get(on) ?? 0n) | past);
  }
}

class Failure extends Error {}

const granule = 256;

class GraphProgramRunner {
  readonly counts = noGraphProgramCounts();
  #streams: Stream[] = [];
  #holds: StreamHold[] = [];
  #graphs: CapturedGraph[] = [];
  /** By address: the value of its granule, if a launch has written it. */
  #memory = new Map<number, number>();
  #value = 0;
  /** How often the host functions of graphs have run, and shall have run at the end. */
  #hostRuns = 0;
  #expectedHostRuns = 0;
  #mayBlock = false;

  /** Runs a program. One that fails must not hold streams, or the next one, which waits for the device, would hang. */
  run(program: GraphProgram): void {
    try {
      this.#run(program);
    } finally {
      this.#releaseAll();
    }
  }

  #run(program: GraphProgram): void {
    using checker = checkOrder({ stacks: false });
    this.#graphs = [];
    this.#streams = Array.from({ length: 4 }, () => new Stream({ nonBlocking: true }));
    this.#holds = [];
    this.#graphs = [];
    this.#memory = new Map();
    [this.#hostRuns, this.#expectedHostRuns] = [0, 0];
    this.#mayBlock = program.policy === 'off';
    using leaf = program.upstream === 'virtual' ? new VirtualMemoryResource() : new CudaMemoryResource();
    const counted = new StatisticsResourceAdaptor(leaf);
    const limitBytes = program.upstream === 'limited' ? 128 * 1024 : Number.POSITIVE_INFINITY;
    const limited = limitBytes === Number.POSITIVE_INFINITY ? counted : new LimitingResourceAdaptor(counted, { limitBytes });
    using pool = new PoolMemoryResource(counted, { deallocationEvents: program.policy });
    const upstream = program.upstream === 'pool' ? pool : limited;
    const planner = program.isPlanned ? { planner: planAllocations, planningMilliseconds: 0 } : {};
    const deviations = program.refuses ? 'refuse' : 'fallback';
    const resource = new GraphMemoryResource(upstream, { ...planner, deviations, fallback: pool, deallocationEvents: program.policy });
    for (const each of program.steps) {
      this.#step(each, program, resource);
      this.counts.steps++;
      resource.validate();
    }
    this.#releaseAll();
    for (const each of this.#streams) each.synchronizeSync();
    for (const captured of this.#graphs) this.#check(captured, this.#streams[0] as Stream);
    Device.get(0).synchronizeSync();
    if (this.#hostRuns !== this.#expectedHostRuns) {
      throw new Failure(`${this.#hostRuns} host functions of graphs have run, not ${this.#expectedHostRuns}`);
    }
    this.#countAndEnd(resource);
    pool.dispose();
    for (const each of this.#streams) each.dispose();
    const { current } = counted.statistics().bytes;
    if (current !== 0) throw new Failure(`${current} bytes are left`);
    const [violation] = checker.violations;
    if (violation !== undefined) throw new Failure(`order: ${JSON.stringify(violation)}`);
    this.counts.programs++;
  }

  #countAndEnd(resource: GraphMemoryResource): void {
    const { captures, plannedCaptures, deviations } = resource.statistics();
    this.counts.captures += captures;
    this.counts.planned += plannedCaptures;
    this.counts.deviations += Object.values(deviations).reduce((sum, count) => sum + count, 0);
    const ends = this.#graphs.length % 2 === 0;
    if (ends) for (const each of this.#graphs) endOf(each);
    resource.dispose();
    if (!ends) for (const each of this.#graphs) endOf(each);
  }

  #step(each: Step, program: GraphProgram, resource: GraphMemoryResource): void {
    const { scripts } = program;
    const on = 'stream' in each ? (this.#streams[each.stream] as Stream) : (this.#streams[0] as Stream);
    const captured = 'graph' in each ? this.#graphs[each.graph % Math.max(this.#graphs.length, 1)] : undefined;
    switch (each.do) {
      case 'capture':
        this.#capture(resource, scripts[each.script % scripts.length] as readonly CaptureStep[], each);
        break;
      case 'warm-up':
        this.#warmUp(resource, scripts[each.script % scripts.length] as readonly CaptureStep[], `${each.name}`);
        break;
      case 'launch':
        if (captured?.exec !== undefined) this.#launch(captured, on);
        break;
      case 'update':
        this.#update(captured, this.#graphs[each.by % Math.max(this.#graphs.length, 1)]);
        break;
      case 'dispose':
        if (captured !== undefined) this.#dispose(captured, each.what);
        break;
      case 'give-up':
        this.#giveUp(captured, each.which, on, resource);
        break;
      case 'check':
        if (captured !== undefined && this.#holds.length === 0) this.#check(captured, on);
        break;
      case 'hold':
        // Under 'off', or once a stream has ended, the host may wait for any stream.
        if (this.#holds.length < 2 && !this.#mayBlock) this.#holds.push(on.hold());
        break;
      case 'release':
        this.#holds.shift()?.release();
        break;
      case 'trim':
        // What comes instead has other contents.
        if (resource.trim(on) > 0) this.#memory.clear();
        break;
      case 'replace-stream':
        // A stream that ends may be that of the last launch. What is freed on it later waits for the device.
        this.#mayBlock = true;
        this.#releaseAll();
        this.#streams[each.stream] = new Stream({ nonBlocking: true });
        on.dispose();
        break;
    }
  }

  #releaseAll(): void {
    for (const hold of this.#holds) hold.release();
    this.#holds = [];
  }

  #launch(captured: CapturedGraph, on: Stream): void {
    (captured.exec as GraphExec).launch(on);
    this.counts.launches++;
    for (const effect of captured.execEffects) this.#apply(effect);
  }

  #apply(effect: Effect): void {
    if (effect.kind === 'host') {
      this.#expectedHostRuns++;
      this.counts.hostFunctions++;
      return;
    }
    const pointer = effect.kind === 'set' ? effect.pointer : effect.to;
    for (let offset = 0; offset < effect.bytes; offset += granule) {
      const value = effect.kind === 'set' ? effect.value : this.#memory.get(effect.from + offset);
      if (value === undefined) this.#memory.delete(pointer + offset);
      else this.#memory.set(pointer + offset, value);
    }
  }

  #update(captured: CapturedGraph | undefined, by: CapturedGraph | undefined): void {
    if (captured?.exec === undefined || by?.graph === undefined || captured === by) return;
    if (!captured.exec.update(by.graph)) return;
    captured.execEffects = by.effects;
    captured.execUses = by;
    this.#endOutputs();
  }

  #dispose(captured: CapturedGraph, what: 'graph' | 'exec'): void {
    captured[what]?.dispose();
    captured[what] = undefined;
    if (what === 'exec') captured.execUses = undefined;
    this.#endOutputs();
  }

  /** Memory of a graph is there as long as something that uses it. */
  #endOutputs(): void {
    for (const each of this.#graphs) {
      if (each.graph !== undefined || this.#graphs.some(({ execUses }) => execUses === each)) continue;
      each.outputs.length = 0;
      for (const { pointer, bytes, isKept } of each.allocations) {
        for (let at = 0; isKept && at < bytes; at += granule) this.#memory.delete(pointer + at);
      }
    }
  }

  #giveUp(captured: CapturedGraph | undefined, which: number, on: Stream, resource: GraphMemoryResource): void {
    const output = captured?.outputs.splice(which % Math.max(captured.outputs.length, 1), 1)[0];
    if (output !== undefined) resource.deallocate(output.pointer, output.bytes, on);
  }

  /** Reads what the graph has that nobody else may write since its last launch. */
  #check({ outputs }: CapturedGraph, on: Stream): void {
    // Not stream by stream: one that has ended may still run a launch.
    Device.get(0).synchronizeSync();
    for (const { pointer, bytes } of outputs) {
      const found = new Uint8Array(bytes);
      copyToHostSync(found, pointer, on);
      for (let at = 0; at < bytes; at += granule) {
        const expected = this.#memory.get(pointer + at);
        if (expected !== undefined && found[at] !== expected) {
          throw new Failure(`0x${(pointer + at).toString(16)} has ${found[at]} instead of ${expected}`);
        }
      }
    }
  }

  #warmUp(resource: GraphMemoryResource, steps: readonly CaptureStep[], name: string): void {
    const origin = this.#streams[0] as Stream;
    try {
      resource.warmUp(name, () => {
        const live: [number, number][] = [];
        for (const each of steps) {
          if (each.do === 'allocate' && !each.isKept) live.push([resource.allocate(each.bytes, origin, each.alignment), each.bytes]);
          if (each.do !== 'free' || live.length === 0) continue;
          const [pointer, count] = live.splice(each.which % live.length, 1)[0] as [number, number];
          resource.deallocate(pointer, count, origin);
        }
        for (const [pointer, count] of live) resource.deallocate(pointer, count, origin);
      });
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      this.counts.outOfMemory++;
    }
  }

  #capture(resource: GraphMemoryResource, steps: readonly CaptureStep[], options: Step & { readonly do: 'capture' }): void {
    const origin = this.#streams[0] as Stream;
    const capture = new CaptureRun(this.#streams, resource, this.counts, {
      nextValue: () => (this.#value = (this.#value % 250) + 1),
      hostFunction: () => void this.#hostRuns++,
    });
    let graph: Graph;
    const used = options.less === 0 ? steps : steps.slice(0, -options.less);
    try {
      graph = resource.capture(
        origin,
        () => {
          for (const each of used) capture.step(each);
          if (origin.captureStatus !== 'active') throw new Failure('the capture is not valid any more');
          if (!options.unjoined) capture.joinAll();
        },
        { name: `${options.name}` },
      );
    } catch (error) {
      capture.ended();
      for (const each of this.#streams) if (each.captureStatus !== 'none') throw new Failure('a stream is still captured');
      this.#judge(error, options.unjoined, capture);
      return;
    }
    capture.ended();
    const exec = graph.instantiate();
    const { effects, allocations } = capture;
    const outputs = allocations.filter(({ freed }) => freed < 0);
    const captured: CapturedGraph = { graph, exec, effects, execEffects: effects, allocations, outputs, execUses: undefined };
    captured.execUses = captured;
    this.#graphs.push(captured);
  }

  /** Whether a capture may fail like that. */
  #judge(error: unknown, isUnjoined: boolean, { hasFailed, isPartlyUnseen }: CaptureRun): void {
    this.counts.failedCaptures++;
    if (error instanceof OutOfMemoryError) this.counts.outOfMemory++;
    else if (error instanceof CisternError && error.code === 'ERR_CISTERN_PLAN_DEVIATION') this.counts.deviations++;
    // Memory of a stream that joined unseen may need an event, which cannot be recorded there.
    else if (error instanceof CisternError && error.code === 'ERR_CISTERN_CAPTURING' && isPartlyUnseen) return;
    else if (!(hasFailed && error === CaptureRun.failure) && !(isUnjoined && `${error}`.includes('UNJOINED'))) throw error;
  }
}

function endOf({ graph, exec }: CapturedGraph): void {
  graph?.dispose();
  exec?.dispose();
}

/** What the captures of a program have in common. */
interface ProgramState {
  readonly nextValue: () => number;
  /** Is called by every host function of a graph. */
  readonly hostFunction: () => void;
}

/** One capture, and its model. */
class CaptureRun {
  static readonly failure = new Error('on purpose');
  readonly effects: Effect[] = [];
  readonly allocations: ModelAllocation[] = [];
  hasFailed = false;
  readonly #order = new OrderModel(0);
  readonly #events: { readonly event: Event; readonly past: Past }[] = [];
  readonly #unseen: Event[] = [];
  readonly #beside: [number, number][] = [];
  readonly #children: Child[] = [];
  readonly #streams: readonly Stream[];
  readonly #resource: GraphMemoryResource;
  readonly #counts: GraphProgramCounts;
  readonly #program: ProgramState;

  constructor(streams: readonly Stream[], resource: GraphMemoryResource, counts: GraphProgramCounts, program: ProgramState) {
    this.#streams = streams;
    this.#resource = resource;
    this.#counts = counts;
    this.#program = program;
  }

  step(each: CaptureStep): void {
    switch (each.do) {
      case 'allocate':
        this.#allocate(each.bytes, this.#joined(each.stream), each.alignment, each.isKept);
        break;
      case 'free':
        this.#free(each.which, this.#joined(each.stream), each.isOrdered);
        break;
      case 'set':
        this.#use(each.which, this.#joined(each.stream), (allocation, on) => this.#set(allocation, on));
        break;
      case 'copy':
        this.#copy(each.from, each.to, this.#joined(each.stream));
        break;
      case 'order':
        if (each.isSeen) this.#makeOrder(this.#joined(each.from), each.to);
        else this.#makeUnseenOrder(this.#joined(each.from), each.to);
        break;
      case 'record':
        this.#record(this.#joined(each.stream));
        break;
      case 'wait': {
        const known = this.#events[each.event % Math.max(this.#events.length, 1)];
        if (known === undefined) break;
        (this.#streams[each.stream] as Stream).wait(known.event);
        this.#order.join(each.stream, known.past);
        break;
      }
      case 'buffer':
        this.#buffer(this.#joined(each.stream), each.bytes, each.isDropped);
        break;
      case 'host':
        this.#hostFunction(this.#streams[this.#joined(each.stream)] as Stream, this.effects);
        break;
      case 'child':
        this.#child(each, this.#joined(each.stream));
        break;
      case 'beside': {
        const on = this.#outside();
        if (on !== undefined) this.#allocateBeside(each.bytes, on);
        break;
      }
      case 'free-beside':
        if (this.#outside() !== undefined) this.freeBeside(1);
        break;
      case 'fail':
        this.hasFailed = true;
        throw CaptureRun.failure;
    }
  }

  /** Whether cistern does not know of every edge. */
  get isPartlyUnseen(): boolean {
    return this.#unseen.length > 0;
  }

  /** The origin waits for every stream that has joined. */
  joinAll(): void {
    for (const on of [...this.#order.past.keys()]) if (on !== 0) this.#makeOrder(on, 0);
  }

  /** Frees what is left beside the capture, and ends its events: not before the capture has ended. */
  ended(): void {
    this.freeBeside();
    for (const event of [...this.#events.map((each) => each.event), ...this.#unseen]) event.dispose();
    for (const { graph } of this.#children) graph.dispose();
  }

  freeBeside(most = Number.POSITIVE_INFINITY): void {
    const on = this.#outside() ?? (this.#streams[3] as Stream);
    for (const [pointer, count] of this.#beside.splice(0, most)) this.#resource.deallocate(pointer, count, on);
  }

  #allocateBeside(count: number, on: Stream): void {
    this.#beside.push([this.#resource.allocate(count, on), count]);
  }

  /** A stream that is not captured. */
  #outside(): Stream | undefined {
    return this.#outsiders()[0];
  }

  #outsiders(): Stream[] {
    return this.#streams.filter((each) => each.captureStatus === 'none');
  }

  #joined(wanted: number): number {
    return this.#order.past.has(wanted) ? wanted : 0;
  }

  #record(on: number): { event: Event; past: Past } {
    const event = new Event();
    event.record(this.#streams[on] as Stream);
    const recorded = { event, past: this.#order.past.get(on) as Past };
    this.#events.push(recorded);
    return recorded;
  }

  #makeOrder(from: number, to: number): void {
    if (from === to) return;
    const { event, past } = this.#record(from);
    (this.#streams[to] as Stream).wait(event);
    this.#order.join(to, past);
  }

  /** The same, as another library does it: cistern hears of neither the event nor the wait. */
  #makeUnseenOrder(from: number, to: number): void {
    if (from === to) return;
    const event = new Event();
    this.#unseen.push(event);
    this.#counts.unseenEdges++;
    [mailbox[0], mailbox[1], mailbox[2]] = [event.handle, (this.#streams[from] as Stream).handle, 0];
    native().recordEvent();
    check('record an event unseen');
    [mailbox[0], mailbox[1], mailbox[2]] = [(this.#streams[to] as Stream).handle, event.handle, 0];
    native().waitEvent();
    check('wait for an event unseen');
    this.#order.join(to, this.#order.past.get(from) as Past);
  }

  #allocate(count: number, on: number, alignment: number, isKept: boolean): void {
    const by = isKept ? this.#resource.kept : this.#resource;
    const pointer = by.allocate(count, this.#streams[on] as Stream, alignment);
    if (pointer % alignment !== 0) throw new Failure(`0x${pointer.toString(16)} is not aligned to ${alignment}`);
    const requested = this.#order.point(on);
    this.#counts.allocations++;
    let hasReused = false;
    let isOfOther = false;
    for (const before of this.allocations) {
      if (before.pointer + before.bytes <= pointer || pointer + count <= before.pointer) continue;
      if (isKept || before.isKept) throw new Failure('kept memory was handed out twice');
      if (before.freed < 0) throw new Failure('memory in use was handed out');
      if (!this.#order.has(on, before.freed)) throw new Failure('memory was handed out to a stream that does not come after its free');
      if (!this.#order.has(on, before.requested))
        throw new Failure('memory was handed out to a stream that does not come after its request');
      hasReused = true;
      if (before.stream !== on) isOfOther = true;
    }
    if (hasReused) this.#counts.reuses++;
    if (isOfOther) this.#counts.reusesOfOthers++;
    this.allocations.push({ pointer, bytes: count, stream: on, isKept, requested, freed: -1, uses: 0n, isWritten: false });
  }

  /** An allocation that is live. */
  #live(which: number): ModelAllocation | undefined {
    const live = this.allocations.filter(({ freed }) => freed < 0);
    return live[which % Math.max(live.length, 1)];
  }

  #free(which: number, on: number, isOrdered: boolean): void {
    const allocation = this.#live(which);
    if (allocation === undefined || allocation.isKept) return;
    // A free comes after every use; after the request only if the program makes it so.
    if (isOrdered) this.#makeOrder(allocation.stream, on);
    if (((this.#order.past.get(on) as Past) & allocation.uses) !== allocation.uses) return;
    this.#resource.deallocate(allocation.pointer, allocation.bytes, this.#streams[on] as Stream);
    allocation.freed = this.#order.point(on);
  }

  /** A use comes after the request and every use before. */
  #use(which: number, on: number, use: (allocation: ModelAllocation, on: number) => void): void {
    const allocation = this.#live(which);
    if (allocation === undefined || !this.#comesAfter(allocation, on)) return;
    use(allocation, on);
  }

  #comesAfter({ requested, uses }: ModelAllocation, on: number): boolean {
    return this.#order.has(on, requested) && ((this.#order.past.get(on) as Past) & uses) === uses;
  }

  #set(allocation: ModelAllocation, on: number): void {
    const value = this.#program.nextValue();
    const { pointer, bytes: count } = allocation;
    set(pointer, value, 1, count, this.#streams[on] as Stream);
    allocation.uses |= 1n << BigInt(this.#order.point(on));
    allocation.isWritten = true;
    this.effects.push({ kind: 'set', pointer, bytes: count, value });
  }

  #copy(from: number, to: number, on: number): void {
    const source = this.#live(from);
    const target = this.#live(to);
    if (source === undefined || target === undefined || source === target || !source.isWritten) return;
    if (!this.#comesAfter(source, on) || !this.#comesAfter(target, on)) return;
    const count = Math.min(source.bytes, target.bytes);
    copy(target.pointer, source.pointer, count, this.#streams[on] as Stream);
    const point = 1n << BigInt(this.#order.point(on));
    source.uses |= point;
    target.uses |= point;
    target.isWritten ||= count === target.bytes;
    this.effects.push({ kind: 'copy', from: source.pointer, to: target.pointer, bytes: count });
  }

  #hostFunction(on: Stream, effects: Effect[]): void {
    on.launchHostFunction(this.#program.hostFunction);
    effects.push({ kind: 'host' });
  }

  #child(shape: ChildShape, on: number): void {
    const { isAgain, targets, isDisposed } = shape;
    const known = this.#children[(targets[0] as number) % Math.max(this.#children.length, 1)];
    const child = isAgain ? known : this.#captureChild(shape, on);
    if (child === undefined) return;
    // Memory that was freed since may be another allocation's by now.
    if (![...child.uses].every((allocation) => allocation.freed < 0 && this.#comesAfter(allocation, on))) return;
    (this.#streams[on] as Stream).addChildGraph(child.graph);
    const point = 1n << BigInt(this.#order.point(on));
    for (const allocation of child.uses) allocation.uses |= point;
    for (const allocation of child.writes) allocation.isWritten = true;
    this.effects.push(...child.effects);
    this.#counts.children++;
    if (child.isParent) this.#counts.parents++;
    if (isAgain || !isDisposed) return;
    this.#children.pop();
    child.graph.dispose();
  }

  /** Captures a graph on streams that have not joined, of what a stream that has joined may use. */
  #captureChild({ targets, source, hasHostFunction, isParent }: ChildShape, on: number): Child | undefined {
    const [first, second] = this.#outsiders();
    const isUsable = (each: ModelAllocation | undefined) => each !== undefined && this.#comesAfter(each, on);
    const written = [...new Set(targets.map((which) => this.#live(which)))].filter(isUsable) as ModelAllocation[];
    const [to] = written;
    if (first === undefined || to === undefined) return undefined;
    const inner = isParent ? this.#children.at(-1) : undefined;
    const effects: Effect[] = [...(inner?.effects ?? [])];
    const read = this.#live(source);
    const from = isUsable(read) && read?.isWritten && read !== to ? read : undefined;
    const events: Event[] = [];
    const order = (earlier: Stream, later: Stream) => {
      const event = new Event();
      events.push(event);
      event.record(earlier);
      later.wait(event);
    };
    const graph = first.capture(() => {
      if (inner !== undefined) first.addChildGraph(inner.graph);
      if (from !== undefined) {
        const count = Math.min(from.bytes, to.bytes);
        copy(to.pointer, from.pointer, count, first);
        effects.push({ kind: 'copy', from: from.pointer, to: to.pointer, bytes: count });
      }
      if (hasHostFunction) this.#hostFunction(first, effects);
      const forks = second !== undefined && written.length > 1;
      if (forks) order(first, second);
      for (const [i, { pointer, bytes: count }] of written.entries()) {
        const value = this.#program.nextValue();
        set(pointer, value, 1, count, forks && i === 1 ? second : first);
        effects.push({ kind: 'set', pointer, bytes: count, value });
      }
      if (forks) order(second, first);
    });
    for (const event of events) event.dispose();
    const uses = new Set([...(inner?.uses ?? []), ...written, ...(from === undefined ? [] : [from])]);
    const child = { graph, effects, uses, writes: new Set([...(inner?.writes ?? []), ...written]), isParent: inner !== undefined };
    this.#children.push(child);
    return child;
  }

  #buffer(on: number, count: number, isDropped: boolean): void {
    const owner = this.#streams[on] as Stream;
    const buffer = new DeviceBuffer(count, { resource: this.#resource, stream: owner });
    const requested = this.#order.point(on);
    const allocation = { pointer: buffer.ptr, bytes: count, stream: on, isKept: false, requested, freed: -1, uses: 0n, isWritten: false };
    for (const before of this.allocations) {
      if (before.pointer + before.bytes <= buffer.ptr || buffer.ptr + count <= before.pointer) continue;
      if (before.freed < 0 || !this.#order.has(on, before.freed)) throw new Failure('a buffer has memory in use');
    }
    this.#set(allocation, on);
    // A buffer that is dropped is freed when the collector finds it: until then nobody has its memory.
    if (isDropped) return;
    buffer.dispose();
    allocation.freed = this.#order.point(on);
    this.allocations.push(allocation);
  }
}

/** After this many programs the event loop has a turn, so that what is no longer referenced is given back. */
const turn = 64;

/**
 * Runs random programs until one fails. Returns the failure and what was done.
 * @param path starts at one program, whose path an earlier run with the same seed printed
 * @param shrinks whether to look for a smaller program that fails
 */
export async function proveGraphs(
  programs: number,
  seed: number,
  path = '',
  shrinks = true,
): Promise<{ counts: GraphProgramCounts; failure: string | undefined }> {
  const runner = new GraphProgramRunner();
  const property = fc.asyncProperty(graphPrograms(), async (program) => {
    runner.run(program);
    if (runner.counts.programs % turn === 0) await setImmediate();
  });
  const details = await fc.check(property, { numRuns: programs, seed, path, endOnFailure: !shrinks });
  if (!details.failed) return { counts: runner.counts, failure: undefined };
  const error = details.errorInstance instanceof Error ? details.errorInstance.stack : String(details.errorInstance);
  const found = `${JSON.stringify(details.counterexample)}\nseed ${seed}, path ${details.counterexamplePath}`;
  return { counts: runner.counts, failure: `${error}\n${found}` };
}
