import { expect, test } from 'vitest';
import { AdmissionQueue, type Holder, type HolderOf } from '../../src/serving/admission/admission-queue.js';
import { type Bounds, brokenVariants, explore } from './admission-model.mjs';

test.each([
  { tasks: 2, limits: [2], overtakes: 1 },
  { tasks: 3, limits: [2], overtakes: 0 },
  { tasks: 2, limits: [1, 1], overtakes: 1 },
])('no wait is endless, unfair or needless: $tasks tasks, limits $limits, $overtakes overtakes', (bounds) => {
  const { fault, states } = explore(bounds);
  expect(fault).toBeUndefined();
  expect(states).toBeGreaterThan(150);
});

test.each(Object.entries(brokenVariants))('the model finds what is wrong if %s', (variant, bounds) => {
  expect(explore(bounds, variant).fault).toBeDefined();
});

/** The queues of the addon, and what the tasks of the model have of them. */
class World {
  readonly queues: readonly AdmissionQueue[];
  readonly held: (Holder | undefined)[][];
  readonly #waits: ({ readonly queue: number; readonly request: number } | undefined)[];

  constructor({ tasks, limits, overtakes }: Bounds) {
    this.queues = limits.map((limit) => new AdmissionQueue('', limit, overtakes, () => {}));
    this.held = Array.from({ length: tasks }, () => limits.map(() => undefined));
    this.#waits = Array.from({ length: tasks }, () => undefined);
  }

  step(text: string): void {
    const [, task = '', verb, queue, bytes] = /^task (\d) (withdraws|ends|asks)(?: queue (\d) for (\d))?$/.exec(text) as RegExpExecArray;
    const t = Number(task);
    if (verb === 'asks') this.#ask(t, Number(queue), Number(bytes));
    else if (verb === 'withdraws') this.#withdraw(t);
    else this.#end(t);
  }

  /** What each task has of each queue, and for which it waits. */
  get state(): unknown {
    const held = this.held.map((ofTask) => ofTask.map((holder) => holder?.promisedBytes ?? 0));
    return { held, waits: this.#waits.map((wait) => wait?.queue ?? -1) };
  }

  #ask(task: number, q: number, bytes: number): void {
    const holders = this.held[task] as (Holder | undefined)[];
    const waiters = holders.flatMap((holder, queue): HolderOf[] =>
      holder === undefined ? [] : [{ queue: this.queues[queue] as AdmissionQueue, holder }],
    );
    const holder = holders[q];
    let isSettled = false;
    const request = (this.queues[q] as AdmissionQueue).ask({
      bytes,
      priority: 0,
      holder,
      grows: holder !== undefined,
      waiters: () => waiters,
      settle: (outcome) => {
        isSettled = true;
        this.#waits[task] = undefined;
        if (outcome.kind === 'admitted') holders[q] = outcome.holder;
      },
    });
    if (!isSettled) this.#waits[task] = { queue: q, request };
  }

  #withdraw(task: number): void {
    const { queue, request } = this.#waits[task] as { readonly queue: number; readonly request: number };
    this.#waits[task] = undefined;
    (this.queues[queue] as AdmissionQueue).withdraw(request);
  }

  #end(task: number): void {
    const holders = this.held[task] as (Holder | undefined)[];
    holders.forEach((holder, q) => {
      holders[q] = undefined;
      if (holder !== undefined) (this.queues[q] as AdmissionQueue).end(holder);
    });
  }
}

test.each([
  { tasks: 2, limits: [2], overtakes: 1 },
  { tasks: 3, limits: [2], overtakes: 1 },
  { tasks: 2, limits: [1, 1], overtakes: 1 },
])('the addon is in the state of the model after every path: $tasks tasks, limits $limits', (bounds) => {
  explore(bounds, undefined, (path, { queues, tasks }) => {
    const world = new World(bounds);
    for (const step of path) world.step(step);
    const waits = tasks.map((_, t) => queues.findIndex(({ line }) => line.some(({ task }) => task === t)));
    expect(world.state, path.join('; ')).toEqual({ held: tasks.map(({ held }) => held), waits });
    for (const queue of world.queues) {
      queue.validate();
      queue.stop();
    }
  });
});
