/**
 * The objects of a kind that the garbage collector has not collected, without keeping them alive. The weak
 * references are swept whenever their number has doubled, because a program may create any number of
 * objects without disposing one.
 */
export class LiveInstances<T extends object> {
  readonly #references = new Set<WeakRef<T>>();
  #sweepSize = minimumSweepSize;

  /** Returns the reference to pass to `delete`. */
  add(instance: T): WeakRef<T> {
    if (this.#references.size >= this.#sweepSize) this.#sweepSize = Math.max(minimumSweepSize, 2 * this.all().length);
    const reference = new WeakRef(instance);
    this.#references.add(reference);
    return reference;
  }

  delete(reference: WeakRef<T>): void {
    this.#references.delete(reference);
  }

  /** In the order in which they were added. */
  all(): T[] {
    const live: T[] = [];
    for (const reference of this.#references) {
      const instance = reference.deref();
      if (instance === undefined) this.#references.delete(reference);
      else live.push(instance);
    }
    return live;
  }
}

const minimumSweepSize = 64;
