/**
 * The resources above another one that want to be told something. Does not keep them alive, and lists those
 * first that were added last: a resource is made after those that it takes memory from.
 */
export class ResourcesAbove<Resource extends object> {
  #references: WeakRef<Resource>[] = [];

  add(resource: Resource): void {
    this.#references = [...this.#references.filter((each) => each.deref() !== undefined), new WeakRef(resource)];
  }

  /** Whether none was ever added. */
  get isEmpty(): boolean {
    return this.#references.length === 0;
  }

  fromTheTop(): Resource[] {
    return this.#references.flatMap((each) => each.deref() ?? []).reverse();
  }
}
