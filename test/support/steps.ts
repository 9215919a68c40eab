import { memoryAccesses } from './counted-index-module.js';

const walks = ['indexOf', 'find', 'findIndex', 'entries', 'filter', 'some', 'reduce', Symbol.iterator] as const;

/**
 * Counts the reads of elements of every `Int32Array` created while it is active, the accesses to
 * memory of free-space indexes (in a test file that uses `counted-index-module.ts`), and the lengths
 * of arrays that are walked: the cost of something, measured without a clock. A call of an array
 * method counts the array's length; reading an element of a plain array does not count.
 */
export class StepCounter implements Disposable {
  #steps = 0;
  readonly #originals: readonly (readonly [object: object, name: PropertyKey, value: unknown])[];

  constructor() {
    this.#originals = [
      [globalThis, 'Int32Array', Int32Array],
      ...walks.map((name) => [Array.prototype, name, Array.prototype[name]] as const),
    ];
    Reflect.set(globalThis, 'Int32Array', this.#countingClass());
    for (const name of walks) this.#countWalks(name, Array.prototype[name] as (...args: unknown[]) => unknown);
  }

  /** The number of steps that something takes. */
  during(run: () => void): number {
    const before = this.#steps + memoryAccesses();
    run();
    return this.#steps + memoryAccesses() - before;
  }

  [Symbol.dispose](): void {
    for (const [object, name, value] of this.#originals) Reflect.set(object, name, value);
  }

  #countWalks(name: (typeof walks)[number], original: (...args: unknown[]) => unknown): void {
    const count = (steps: number) => {
      this.#steps += steps;
    };
    Reflect.set(Array.prototype, name, function (this: unknown[], ...args: unknown[]): unknown {
      count(this.length);
      return original.apply(this, args);
    });
  }

  #countingClass(): Int32ArrayConstructor {
    return new Proxy(Int32Array, { construct: (target, args) => this.#counting(Reflect.construct(target, args) as Int32Array) });
  }

  #counting(array: Int32Array): Int32Array {
    const proxy: Int32Array = new Proxy(array, {
      get: (target, key) => {
        const value: unknown = Reflect.get(target, key, target);
        this.#steps += typeof value === 'function' ? target.length : 1;
        if (typeof value !== 'function') return value;
        return (...args: unknown[]): unknown => {
          const result: unknown = value.apply(target, args);
          return result === target ? proxy : result;
        };
      },
      set: (target, key, value) => Reflect.set(target, key, value, target),
    });
    return proxy;
  }
}
