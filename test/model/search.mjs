/**
 * Visits every state that a model can reach, and reports the first fault.
 *
 * A model's `stepsFrom` yields each step that is possible in a state, with the state after it, or with `undefined` if the step is a fault. States
 * are plain data: two with the same JSON are one.
 */

/**
 * @param {object} initial
 * @param {(state: any) => Iterable<readonly [name: string, next: object | undefined]>} stepsFrom may change its own copies only
 * @param {(path: readonly string[], state: any) => void} [visit] called for each state, with the steps that lead there
 * @returns {{ states: number, steps: number, fault: readonly string[] | undefined }}
 */
export function search(initial, stepsFrom, visit) {
  const first = JSON.stringify(initial);
  /** By state: the state before it and the step from there. */
  const reached = new Map([[first, undefined]]);
  const queue = [first];
  let steps = 0;
  for (const key of queue) {
    visit?.(pathTo(key, reached), JSON.parse(key));
    for (const [name, next] of stepsFrom(JSON.parse(key))) {
      steps++;
      if (next === undefined) return { states: reached.size, steps, fault: [...pathTo(key, reached), name] };
      const nextKey = JSON.stringify(next);
      if (reached.has(nextKey)) continue;
      reached.set(nextKey, [key, name]);
      queue.push(nextKey);
    }
  }
  return { states: reached.size, steps, fault: undefined };
}

function pathTo(key, reached) {
  const path = [];
  for (let at = reached.get(key); at !== undefined; at = reached.get(at[0])) path.unshift(at[1]);
  return path;
}

/** A copy of a state. */
export const clone = (state) => JSON.parse(JSON.stringify(state));
