/**
 * Random tasks that hold grants of several resources, some within others, and wait for more of any of them. The model shares
 * nothing with cistern: it keeps for each task what it has and where it waits, and asks from scratch who could ever go on.
 *
 * What is checked: no task waits when it could not be served by those who go on; nobody is refused who could be; all tasks end.
 */

import { setImmediate as nextTurn } from 'node:timers/promises';
import { NotAdmittedError } from '../../src/index.js';
import { AdmittingResourceAdaptor, type Grant } from '../../src/serving/index.js';
import { Random } from '../../src/tools/testing/random.js';
import { SpyResource } from '../support/spy-resource.js';

const unit = 256;
const units = 8;

interface Owned {
  readonly queue: number;
  readonly priority: number;
  /** In the order of admission. */
  readonly age: number;
  readonly grant: Grant;
}

class Task {
  readonly held: Owned[] = [];
  /** The resource that it waits for. */
  waitsFor: number | undefined;

  /** The one whose age and priority count. */
  get oldest(): Owned | undefined {
    return this.held.filter(({ grant }) => grant.bytes > 0).sort((a, b) => a.age - b.age)[0];
  }
}

export interface RingCounts {
  programs: number;
  tasks: number;
  waits: number;
  refused: number;
  nested: number;
}

export async function proveRings(programs: number, seed: number): Promise<RingCounts> {
  const counts = { programs: 0, tasks: 0, waits: 0, refused: 0, nested: 0 };
  for (let i = 0; i < programs; i++) {
    try {
      await new RingProgram(new Random(seed + i), counts).run();
    } catch (error) {
      throw new Error(`seed ${seed + i}: ${error instanceof Error ? error.message : error}`, { cause: error });
    }
    counts.programs++;
  }
  return counts;
}

class RingProgram {
  readonly #rooms: readonly AdmittingResourceAdaptor[];
  readonly #tasks: Task[] = [];
  #admitted = 0;

  constructor(
    readonly random: Random,
    readonly counts: RingCounts,
  ) {
    this.#rooms = Array.from(
      { length: 1 + random.below(4) },
      () => new AdmittingResourceAdaptor(new SpyResource(), { limitBytes: units * unit }),
    );
  }

  async run(): Promise<void> {
    const tasks = Array.from({ length: 2 + this.random.below(5) }, () => this.#task());
    let ended = 0;
    for (const task of tasks) void task.then(() => ended++);
    for (let turn = 0; ended < tasks.length; turn++) {
      await nextTurn();
      this.#check();
      if (turn > 10_000) throw new Error(`${tasks.length - ended} of ${tasks.length} tasks do not end`);
    }
    await Promise.all(tasks);
    for (const room of this.#rooms) {
      room.validate();
      if (room.statistics().committedBytes !== 0) throw new Error('bytes are left');
      room.dispose();
    }
  }

  async #task(): Promise<void> {
    const task = new Task();
    this.#tasks.push(task);
    this.counts.tasks++;
    await this.#goOn(task, 1 + this.random.below(4));
    this.#tasks.splice(this.#tasks.indexOf(task), 1);
  }

  /** Takes something, goes on in its scope, and gives it back. */
  async #goOn(task: Task, steps: number): Promise<void> {
    for (let pause = this.random.below(3); pause > 0; pause--) await nextTurn();
    if (steps === 0) return;
    const queue = this.random.below(this.#rooms.length);
    const priority = this.random.below(2);
    const bytes = this.random.below(units) * unit;
    const growing = task.held.at(-1);
    if (growing !== undefined && this.random.below(4) === 0) {
      await this.#waiting(task, growing.queue, () => growing.grant.grow(Math.min(bytes, units * unit - growing.grant.bytes)));
      return this.#goOn(task, steps - 1);
    }
    const grant = await this.#waiting(task, queue, () => (this.#rooms[queue] as AdmittingResourceAdaptor).reserve(bytes, { priority }));
    if (grant === undefined) return this.#goOn(task, steps - 1);
    if (task.held.length > 0) this.counts.nested++;
    task.held.push({ queue, priority, age: ++this.#admitted, grant });
    await grant.run(() => this.#goOn(task, steps - 1));
    task.held.splice(
      task.held.findIndex((each) => each.grant === grant),
      1,
    );
    this.#deciding(() => grant.dispose());
  }

  /** What the call resolves with; undefined if it is refused. */
  async #waiting<T>(task: Task, queue: number, call: () => Promise<T>): Promise<T | undefined> {
    // The outcome is decided in the turn of this or another call, and told later: so the model looks when it is told.
    task.waitsFor = queue;
    this.counts.waits++;
    try {
      return await this.#deciding(call);
    } catch (error) {
      if (!(error instanceof NotAdmittedError) || error.reason !== 'deadlock') throw error;
      this.counts.refused++;
      if (task.oldest === undefined) throw new Error('a task that holds nothing was refused');
      return undefined;
    } finally {
      task.waitsFor = undefined;
    }
  }

  /** Makes a call that may refuse somebody: only if there is no other way. */
  #deciding<T>(call: () => T): T {
    const refused = () => this.#rooms.reduce((sum, room) => sum + room.statistics().refusedInDeadlock, 0);
    const before = refused();
    const result = call();
    if (refused() > before && !this.#isStuck()) throw new Error('a task was refused although it could have been served');
    return result;
  }

  /** Between the turns everything was decided: nobody waits in vain. */
  #check(): void {
    if (this.#isStuck()) throw new Error('tasks wait for each other');
  }

  #isStuck(): boolean {
    const dead = new Set(this.#rooms.keys());
    const goesOn = (task: Task) => task.waitsFor === undefined || !dead.has(task.waitsFor);
    for (let before = -1; before !== dead.size; ) {
      before = dead.size;
      for (const queue of dead) {
        const holders = this.#tasks.filter((task) => task.held.some((each) => each.queue === queue && each.grant.bytes > 0));
        if (holders.length === 0 || holders.some(goesOn)) dead.delete(queue);
      }
    }
    return this.#tasks.some((task) => !goesOn(task) && task.oldest !== undefined);
  }
}
