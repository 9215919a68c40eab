/**
 * Code that is not the program's own: Node's, native libraries', and that of dependencies. Its frames are
 * skipped if there are others.
 */
const foreign = /\(node:|\(native:|node_modules\/|(?:site|dist)-packages\//;

/** The places in a program that allocate. */
export interface CallSites {
  /** The first is for allocations without a stack. */
  readonly names: readonly string[];
  /** The index of each stack's place. */
  readonly of: Uint32Array;
}

/** Finds the place of each stack of a log: the innermost frame in the program's own code. */
export function callSites(stacks: readonly string[]): CallSites {
  const names = ['no stack'];
  const indexes = new Map<string, number>();
  const of = Uint32Array.from(stacks, (stack) => {
    const site = callSiteOf(stack);
    if (site === undefined) return 0;
    const index = indexes.get(site) ?? names.push(site) - 1;
    indexes.set(site, index);
    return index;
  });
  return { names, of };
}

function callSiteOf(stack: string): string | undefined {
  const frames = stack.split('\n').filter((frame) => frame !== '');
  return frames.find((frame) => !foreign.test(frame)) ?? frames[0];
}
