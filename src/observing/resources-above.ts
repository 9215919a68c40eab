/**
 * The resources above another one that must be notified. Does not keep them alive, and lists the last added
 * ones first, because a resource is created after those that it takes memory from.
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
