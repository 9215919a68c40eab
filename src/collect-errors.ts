/** Does something with each of several things, whatever happens. Returns what was thrown. */
export function attemptEach<T>(things: Iterable<T>, action: (thing: T) => void): unknown[] {
  const errors: unknown[] = [];
  for (const thing of things) {
    try {
      action(thing);
    } catch (error) {
      errors.push(error);
    }
  }
  return errors;
}

/** Throws the first of several errors, if there is one. */
export function throwFirst(errors: readonly unknown[]): void {
  if (errors.length > 0) throw errors[0];
}
