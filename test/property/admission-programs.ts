/**
 * Random programs that reserve, grow, allocate, retry, free, give back, abort, dispose and drop, against a model that
 * states the rules as plainly as possible: it sorts and searches everything at every step. Which dropped grant
 * the collector finds at which moment, it is told; that it finds all of them, it demands.
 */

import { setImmediate as nextTurn } from 'node:timers/promises';
import { NotAdmittedError, OutOfMemoryError, reclaimUnreachableBuffers, Stream } from '../../src/index.js';
import { AdmissionQueue, type Holder } from '../../src/serving/admission/admission-queue.js';
import { AdmittingResourceAdaptor, type Grant } from '../../src/serving/index.js';
import { Random } from '../../src/tools/testing/random.js';
import { SpyResource } from '../support/spy-resource.js';

interface ModelHolder {
  readonly number: number;
  readonly priority: number;
  promised: number;
  used: number;
  isEnded: boolean;
}

interface ModelRequest {
  readonly id: number;
  readonly bytes: number;
  readonly priority: number;
  readonly holder: ModelHolder | undefined;
  readonly grows: boolean;
  readonly retries?: ModelRetry;
  overtaken: number;
}

/** An allocation of one unit that is promised, and that the upstream does not serve at first. */
interface ModelRetry {
  /** How many more attempts the upstream refuses. */
  failures: number;
  /** Whether it was promised the whole limit, which it returns before its next attempt. */
  hasAll: boolean;
  /** Whether that attempt is the last: it has the whole limit, or it was refused. */
  isLast: boolean;
}

type ModelOutcome = 'admitted' | 'deadlock' | 'ended' | 'aborted' | 'too-large' | 'served' | 'unserved';

class Model {
  readonly holders: ModelHolder[] = [];
  readonly outcomes = new Map<number, ModelOutcome>();
  /** By the request that was admitted. */
  readonly byRequest = new Map<number, ModelHolder>();
  outside = 0;
  admissions = 0;
  /** Holders are numbered over all programs. */
  holdersMade = 0;
  waiting: ModelRequest[] = [];
  /** In the order in which they began. */
  retries: ModelRequest[] = [];

  constructor(
    readonly limit: number,
    readonly maximumOvertakes: number,
  ) {}

  get committed(): number {
    return this.outside + this.holders.reduce((sum, { promised, used, isEnded }) => sum + (isEnded ? used : promised), 0);
  }

  ask(request: Omit<ModelRequest, 'overtaken'>): void {
    if (request.bytes > this.limit - (request.grows ? (request.holder as ModelHolder).promised : 0))
      this.outcomes.set(request.id, 'too-large');
    else {
      const waiting = { ...request, overtaken: 0 };
      this.waiting.push(waiting);
      if (request.retries !== undefined) this.retries.push(waiting);
    }
    this.settle();
  }

  finish(request: ModelRequest, outcome: ModelOutcome): void {
    this.waiting = this.waiting.filter((each) => each !== request);
    this.retries = this.retries.filter((each) => each !== request);
    this.outcomes.set(request.id, outcome);
  }

  end(holder: ModelHolder): void {
    for (const request of [...this.waiting, ...this.retries]) if (request.holder === holder) this.finish(request, 'ended');
    holder.isEnded = true;
    this.settle();
  }

  settle(): void {
    for (;;) {
      const order = [...this.waiting].sort(
        (a, b) => Number(b.holder !== undefined) - Number(a.holder !== undefined) || b.priority - a.priority || a.id - b.id,
      );
      const next = order.find(
        ({ bytes, holder }, i) =>
          bytes <= this.limit - this.committed &&
          (holder !== undefined || order.slice(0, i).every(({ overtaken }) => overtaken < this.maximumOvertakes)),
      );
      if (next !== undefined) this.#admit(next, order.slice(0, order.indexOf(next)));
      else if (!this.#refuseOne(order)) return;
    }
  }

  /** Lets retries try again: those that are admitted, and, if memory was freed, all. */
  tryAgain(hasFreed: boolean): void {
    for (const request of this.retries) {
      const [holder, retry] = [request.holder as ModelHolder, request.retries as ModelRetry];
      if (!this.retries.includes(request) || !(retry.isLast || hasFreed)) continue;
      if (retry.hasAll) {
        holder.promised -= Math.min(request.bytes, holder.promised - holder.used);
        this.settle();
      }
      const isServed = holder.used < holder.promised && retry.failures === 0;
      if (isServed) holder.used += unit;
      if (isServed || retry.isLast || holder.used === holder.promised) this.finish(request, isServed ? 'served' : 'unserved');
      else retry.failures--;
      this.settle();
    }
  }

  #admit(request: ModelRequest, earlier: readonly ModelRequest[]): void {
    this.admissions++;
    if (request.holder === undefined) for (const each of earlier) each.overtaken++;
    if (request.grows) (request.holder as ModelHolder).promised += request.bytes;
    if (request.retries !== undefined) {
      this.waiting = this.waiting.filter((each) => each !== request);
      request.retries.hasAll = true;
      request.retries.isLast = true;
      return;
    }
    this.finish(request, 'admitted');
    if (request.grows) return;
    const number = ++this.holdersMade;
    const holder = { number, priority: request.priority, promised: request.bytes, used: 0, isEnded: false };
    this.holders.push(holder);
    this.byRequest.set(request.id, holder);
  }

  #refuseOne(order: readonly ModelRequest[]): boolean {
    const holding = this.holders.filter(({ promised, isEnded }) => promised > 0 && !isEnded);
    const waits = (holder: ModelHolder) => order.some((request) => request.holder === holder);
    if (holding.length === 0 || !holding.every(waits)) return false;
    const [victim] = [...holding].sort((a, b) => a.priority - b.priority || b.number - a.number);
    const refused = order.find(({ holder }) => holder === victim) as ModelRequest;
    if (refused.retries === undefined) {
      this.finish(refused, 'deadlock');
    } else {
      this.waiting = this.waiting.filter((each) => each !== refused);
      refused.retries.isLast = true;
    }
    return true;
  }
}

/** What programs did. */
export type AdmissionCounts = Record<
  'programs' | ModelOutcome | 'overtaken' | 'allocations' | 'refusedAllocations' | 'dropped' | 'collections',
  number
>;

const unit = 256;
const units = 16;
const steps = 60;

/** Runs programs with successive seeds. @throws the first fault, with its seed. */
export async function proveAdmission(programs: number, seed: number): Promise<AdmissionCounts> {
  const counts: AdmissionCounts = {
    programs: 0,
    admitted: 0,
    deadlock: 0,
    ended: 0,
    aborted: 0,
    'too-large': 0,
    served: 0,
    unserved: 0,
    overtaken: 0,
    allocations: 0,
    refusedAllocations: 0,
    dropped: 0,
    collections: 0,
  };
  using stream = new Stream();
  const end = AdmissionQueue.prototype.end;
  try {
    for (let i = 0; i < programs; i++) {
      const program = new AdmissionProgram(new Random(seed + i), stream, counts);
      AdmissionQueue.prototype.end = function (holder: Holder) {
        program.noteEnd(holder);
        end.call(this, holder);
      };
      try {
        await program.run();
      } catch (error) {
        throw new Error(`seed ${seed + i}: ${error instanceof Error ? error.message : error}`, { cause: error });
      }
      counts.programs++;
    }
  } finally {
    AdmissionQueue.prototype.end = end;
  }
  return counts;
}

interface Live {
  readonly pointer: number;
  readonly bytes: number;
  readonly holder: ModelHolder | undefined;
}

interface Held {
  readonly id: number;
  readonly grant: Grant;
  readonly holder: ModelHolder;
}

/** Holders of earlier programs. */
let holdersBefore = 0;

class AdmissionProgram {
  readonly #model: Model;
  readonly #upstream = new SpyResource();
  readonly #resource: AdmittingResourceAdaptor;
  readonly #outcomes = new Map<number, string>();
  readonly #controllers = new Map<number, AbortController>();
  /** The grants that the program has, by their requests. */
  readonly #granted = new Map<number, Grant>();
  /** The holders of grants that nobody refers to, until the collector has found them. */
  readonly #dropped = new Set<ModelHolder>();
  readonly #live: Live[] = [];
  #requests = 0;

  constructor(
    readonly random: Random,
    readonly stream: Stream,
    readonly counts: AdmissionCounts,
  ) {
    const maximumOvertakes = random.below(4);
    this.#model = new Model(units * unit, maximumOvertakes);
    this.#resource = new AdmittingResourceAdaptor(this.#upstream, { limitBytes: units * unit, maximumOvertakes });
  }

  async run(): Promise<void> {
    for (let step = 0; step < steps; step++) {
      await this.#step();
      await this.#check();
    }
    while (this.#granted.size > 0 || this.#dropped.size > 0 || this.#live.length > 0) {
      for (const held of this.#held()) {
        this.#dispose(held);
        await this.#check();
      }
      while (this.#live.length > 0) {
        this.#free();
        await this.#check();
      }
      await this.#collect();
      await this.#check();
    }
    equal('requests that never ended', this.#model.waiting.length, 0);
    equal('bytes left', this.#resource.statistics().committedBytes, 0);
    holdersBefore += this.#model.holdersMade;
    for (const outcome of this.#model.outcomes.values()) this.counts[outcome]++;
    this.counts.overtaken += this.#resource.statistics().overtakes;
  }

  /** A grant ended. By the collector, unless the program disposes it. */
  noteEnd({ number }: Holder): void {
    for (const holder of this.#dropped) {
      if (holdersBefore + holder.number !== number) continue;
      this.#dropped.delete(holder);
      // Grants that wait are not collected, so what others have let go on has done so.
      this.#model.tryAgain(false);
      this.#model.end(holder);
    }
  }

  async #step(): Promise<void> {
    const held = this.#held();
    const some = held.length > 0 ? (held[this.random.below(held.length)] as Held) : undefined;
    const reserve = () => this.#reserve(this.random.below(8) === 0 ? some : undefined);
    const actions: readonly (() => unknown)[] = [
      reserve,
      reserve,
      () => (some === undefined ? this.#reserve(undefined) : this.#grow(some)),
      () => this.#allocate(some),
      () => this.#allocate(this.random.below(4) === 0 ? undefined : some),
      () => some !== undefined && this.#retry(some),
      () => this.#free(),
      () => this.#abort(),
      () => some !== undefined && this.#giveBack(some),
      () => some !== undefined && this.#dispose(some),
      () => some !== undefined && this.random.below(2) === 0 && this.#drop(some),
      () => this.#dropped.size > 0 && this.random.below(4) === 0 && this.#collect(),
    ];
    await actions[this.random.below(actions.length)]?.();
  }

  #held(): Held[] {
    return [...this.#granted].map(([id, grant]) => ({ id, grant, holder: this.#model.byRequest.get(id) as ModelHolder }));
  }

  #bytes(most = units): number {
    return this.random.below(most + 1) * unit;
  }

  #reserve(within: Held | undefined): void {
    const id = ++this.#requests;
    const [bytes, priority] = [this.#bytes(units + 1), this.random.below(3)];
    const controller = new AbortController();
    this.#controllers.set(id, controller);
    const reserve = () => this.#resource.reserve(bytes, { priority, signal: controller.signal });
    this.#watch(id, within === undefined ? reserve() : within.grant.run(reserve), (grant) => this.#granted.set(id, grant));
    this.#model.ask({ id, bytes, priority, holder: within?.holder, grows: false });
  }

  #grow({ grant, holder }: Held): void {
    const id = ++this.#requests;
    const bytes = this.#bytes(units / 2);
    const controller = new AbortController();
    this.#controllers.set(id, controller);
    this.#watch(id, grant.grow(bytes, { signal: controller.signal }), () => {});
    this.#model.ask({ id, bytes, priority: holder.priority, holder, grows: true });
  }

  /** Allocates a unit, which the upstream refuses once or more. */
  #retry({ grant, holder }: Held): void {
    if (holder.used === holder.promised) return;
    const id = ++this.#requests;
    const controller = new AbortController();
    this.#controllers.set(id, controller);
    let failures = 1 + this.random.below(4);
    const retries = { failures: failures - 1, hasAll: false, isLast: false };
    const attempt = () => {
      if (failures-- > 0) this.#upstream.failure = new OutOfMemoryError('in pieces', { requestedBytes: unit, availableBytes: 0, path: [] });
      try {
        return this.#resource.allocate(unit, this.stream);
      } finally {
        this.#upstream.failure = undefined;
      }
    };
    const keep = (pointer: number) => this.#live.push({ pointer, bytes: unit, holder });
    this.#watch(id, grant.retry(attempt, { signal: controller.signal }), keep, 'served');
    const { promised, priority } = holder;
    this.#model.ask({ id, bytes: this.#model.limit - promised, priority, holder, grows: true, retries });
    // Memory may have been freed before it began to wait.
    const others = this.#model.retries.filter((request) => request.id !== id);
    const own = this.#model.retries.filter((request) => request.id === id);
    this.#model.retries = own;
    this.#model.tryAgain(true);
    this.#model.retries = [...others, ...this.#model.retries];
    this.#model.tryAgain(false);
  }

  #watch<T>(id: number, promise: Promise<T>, keep: (result: T) => void, outcome: ModelOutcome = 'admitted'): void {
    promise.then(
      (result) => {
        keep(result);
        this.#outcomes.set(id, outcome);
      },
      (error) => {
        if (error instanceof NotAdmittedError) this.#outcomes.set(id, error.reason);
        else if (error instanceof OutOfMemoryError) this.#outcomes.set(id, 'unserved');
        else this.#outcomes.set(id, error.code === 'ERR_CISTERN_DISPOSED' ? 'ended' : 'aborted');
      },
    );
  }

  #allocate(held: Held | undefined): void {
    const bytes = unit * (1 + this.random.below(4));
    const { holder } = held ?? {};
    const model = this.#model;
    const fits = holder === undefined ? bytes <= model.limit - model.committed : bytes <= holder.promised - holder.used;
    let pointer = 0;
    try {
      const allocate = () => this.#resource.allocate(bytes, this.stream);
      pointer = held === undefined ? allocate() : held.grant.run(allocate);
    } catch {}
    equal('whether an allocation succeeds', pointer !== 0, fits);
    if (!fits) {
      this.counts.refusedAllocations++;
      return;
    }
    this.counts.allocations++;
    this.#live.push({ pointer, bytes, holder });
    if (holder === undefined) model.outside += bytes;
    else holder.used += bytes;
    model.settle();
  }

  #free(): void {
    if (this.#live.length === 0) return;
    const [{ pointer, bytes, holder }] = this.#live.splice(this.random.below(this.#live.length), 1) as [Live];
    this.#resource.deallocate(pointer, bytes, this.stream);
    if (holder === undefined) this.#model.outside -= bytes;
    else holder.used -= bytes;
    this.#model.settle();
    this.#model.tryAgain(true);
  }

  #giveBack({ grant, holder }: Held): void {
    const bytes = this.#bytes((holder.promised - holder.used) / unit);
    grant.giveBack(bytes);
    holder.promised -= bytes;
    this.#model.settle();
  }

  #dispose({ id, grant, holder }: Held): void {
    this.#granted.delete(id);
    grant.dispose();
    this.#model.end(holder);
  }

  /** Forgets a grant. One that waits to grow is needed for that until then. */
  #drop({ id, holder }: Held): void {
    this.counts.dropped++;
    this.#granted.delete(id);
    this.#dropped.add(holder);
  }

  /** Whatever is dropped, and waits for nothing, comes back. */
  async #collect(): Promise<void> {
    this.counts.collections++;
    const isFound = () => [...this.#dropped].every((holder) => this.#model.waiting.some((request) => request.holder === holder));
    for (let turn = 0; !isFound(); turn++) {
      if (turn === 100) throw new Error(`${this.#dropped.size} dropped grants are not found`);
      reclaimUnreachableBuffers('major');
      await nextTurn();
    }
  }

  #abort(): void {
    const { waiting } = this.#model;
    if (waiting.length === 0) return;
    const request = waiting[this.random.below(waiting.length)] as ModelRequest;
    this.#controllers.get(request.id)?.abort('no stack, which would have the grants of its frames');
    this.#model.finish(request, 'aborted');
    this.#model.settle();
  }

  async #check(): Promise<void> {
    this.#model.tryAgain(false);
    await nextTurn();
    // The collector may have found grants.
    this.#model.tryAgain(false);
    this.#resource.validate();
    const { committedBytes, waiting, outsideBytes } = this.#resource.statistics();
    equal('committed bytes', committedBytes, this.#model.committed);
    equal('bytes outside', outsideBytes, this.#model.outside);
    equal('waiting requests', waiting, this.#model.waiting.length);
    if (committedBytes > units * unit) throw new Error(`${committedBytes} bytes are committed, more than the limit`);
    const sum = [...this.#granted.values()].reduce((bytes, grant) => bytes + grant.bytes, outsideBytes);
    if (sum > units * unit) throw new Error(`grants have ${sum} bytes in all, more than the limit`);
    for (const [id, outcome] of this.#model.outcomes) equal(`the outcome of request ${id}`, this.#outcomes.get(id), outcome);
    equal('requests that have ended', this.#outcomes.size, this.#model.outcomes.size);
  }
}

function equal<T>(what: string, actual: T, expected: T): void {
  if (actual !== expected) throw new Error(`${what}: ${actual}, and ${expected} in the model`);
}
