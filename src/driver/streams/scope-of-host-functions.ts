/**
 * The scope that a host function runs in: that of the call that launched it, and not that of whoever happens to run it while
 * waiting for something else. What scopes are is known only above this folder.
 */

/** How scopes are kept and entered. */
export interface Scopes {
  /** The current scope. */
  current(): unknown;
  /** Calls a function in a scope that `current` has returned. */
  run<T>(scope: unknown, fn: () => T): T;
}

/** Without scopes. */
let scopes: Scopes = { current: () => undefined, run: (_scope, fn) => fn() };

export function useScopes(those: Scopes): void {
  scopes = those;
}

export function currentScope(): unknown {
  return scopes.current();
}

export function runInScope<T>(scope: unknown, fn: () => T): T {
  return scopes.run(scope, fn);
}
