import { neverEnds, type ReportRun } from '../formats/report/report-run.js';

/** A function in a call tree, below the function that called it. */
export interface CallNode {
  /** `function (file:line:column)`, as in the stack. */
  readonly name: string;
  /** The index of the caller's node. The root is node 0, its own caller. */
  readonly parent: number;
  /** 0 for the root. */
  readonly depth: number;
}

/** The stacks of a log, merged where they begin with the same calls. */
export class CallTree {
  /** The root first, and each node before the nodes it calls. */
  readonly nodes: readonly CallNode[];
  /** The node of the innermost call of each stack in the log. */
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

  /** The weight of each node including everything that it calls, from the weight of each stack. */
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

/**
 * The measures of a stack: bytes allocated, those never freed, number of allocations, or bytes live
 * after a change.
 */
export type StackMeasure = { readonly kind: 'allocated' | 'held' | 'count' } | { readonly kind: 'live'; readonly change: number };

/**
 * The weight of each stack: of the allocations in `mask` made from change `from` up to, but not
 * including, `to`. For `live`, of those live after the change, whenever they were made.
 */
export function weighStacks(run: ReportRun, mask: Uint8Array, measure: StackMeasure, from: number, to: number): Float64Array {
  const weights = new Float64Array(run.stacks.length);
  const { spans } = run;
  for (let span = 0; span < spans.count; span++) {
    if (mask[span] !== 1) continue;
    const start = spans.starts[span] as number;
    const isMeant =
      measure.kind === 'live' ? start <= measure.change && (spans.ends[span] as number) > measure.change : start >= from && start < to;
    if (!isMeant || (measure.kind === 'held' && spans.ends[span] !== neverEnds)) continue;
    const stack = spans.stackOf[span] as number;
    weights[stack] = (weights[stack] as number) + (measure.kind === 'count' ? 1 : (spans.bytes[span] as number));
  }
  return weights;
}
