/** Calls an action for each thing, even if some calls throw. Returns the errors. */
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

/** Throws the first error, if there is one. */
export function throwFirst(errors: readonly unknown[]): void {
  if (errors.length > 0) throw errors[0];
}
