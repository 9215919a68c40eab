import type { ReportRun } from './report-run.js';

/** A function in a tree of calls, below the function that called it. */
export interface CallNode {
  /** `function (file:line:column)`, as the stack has it. */
  readonly name: string;
  /** The index of the caller's node; that of the root is 0, its own. */
  readonly parent: number;
  /** 0 for the root. */
  readonly depth: number;
}

/** The stacks of a log, put together where they begin with the same calls. */
export class CallTree {
  /** The root first, and every node before what it calls. */
  readonly nodes: readonly CallNode[];
  /** For each stack of the log the node of its innermost call. */
  readonly #nodeOf: Uint32Array;

  constructor(stacks: readonly string[]) {
    const nodes: CallNode[] = [{ name: 'all', parent: 0, depth: 0 }];
    const children: Map<string, number>[] = [new Map()];
    this.#nodeOf = Uint32Array.from(stacks, (stack, index) => {
      const lines = index === 0 ? ['(no stack)'] : stack.split('\n').filter((line) => line !== '');
      let node = 0;
      for (const name of lines.reverse()) {
        const known = (children[node] as Map<string, number>).get(name);
        if (known === undefined) {
          nodes.push({ name, parent: node, depth: (nodes[node] as CallNode).depth + 1 });
          children.push(new Map());
          (children[node] as Map<string, number>).set(name, nodes.length - 1);
          node = nodes.length - 1;
        } else node = known;
      }
      return node;
    });
    this.nodes = nodes;
  }

  /** What each node and all that it calls weigh, given what each stack weighs. */
  weigh(stackWeights: Float64Array): Float64Array {
    const weights = new Float64Array(this.nodes.length);
    for (let stack = 0; stack < stackWeights.length; stack++) {
      const node = this.#nodeOf[stack] as number;
      weights[node] = (weights[node] as number) + (stackWeights[stack] as number);
    }
    for (let node = weights.length - 1; node > 0; node--) {
      const { parent } = this.nodes[node] as CallNode;
      weights[parent] = (weights[parent] as number) + (weights[node] as number);
    }
    return weights;
  }
}

/** What stacks can be weighed by: all bytes that were allocated, how often, or the bytes that are live after a change. */
export type StackMeasure = { readonly kind: 'allocated' } | { readonly kind: 'count' } | { readonly kind: 'live'; readonly change: number };

/** What the allocations in `mask` that begin from change `from` up to but not including `to` weigh, for each stack; of live ones, all. */
export function weighStacks(run: ReportRun, mask: Uint8Array, measure: StackMeasure, from: number, to: number): Float64Array {
  const weights = new Float64Array(run.stacks.length);
  const { spans } = run;
  for (let span = 0; span < spans.count; span++) {
    if (mask[span] !== 1) continue;
    const start = spans.starts[span] as number;
    const isMeant =
      measure.kind === 'live' ? start <= measure.change && (spans.ends[span] as number) > measure.change : start >= from && start < to;
    if (!isMeant) continue;
    const stack = spans.stackOf[span] as number;
    weights[stack] = (weights[stack] as number) + (measure.kind === 'count' ? 1 : (spans.bytes[span] as number));
  }
  return weights;
}
