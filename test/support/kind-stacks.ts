import { formatSpecification, parseSpecification, type ResourceKind, type Specification } from '../../src/index.js';

/**
 * The stacks in which a kind is tested, made from its example: the example itself; if its leaf is
 * `cuda`, the same over `cuda-async`, which keeps stream order; and if it passes calls on to
 * `cuda`, the same over a pool, of which it requests a policy. A pooling kind has each policy
 * itself.
 */
export function stacksOf(kind: ResourceKind): string[] {
  const example = exampleOf(kind);
  if (kind.role === 'upstream') return [formatSpecification(example)];
  const stacks = leafOf(example).kind === 'cuda' ? [example, onLeaf(example, { kind: 'cuda-async' })] : [example];
  if (kind.role === 'pass-through') {
    const onPool = onLeaf(withEvents(example, 'deferred'), { kind: 'pool', upstream: { kind: 'cuda' } });
    return [...stacks, ...(example.upstream?.kind === 'cuda' ? [onPool] : [])].map(formatSpecification);
  }
  return stacks.flatMap((stack) => ['eager', 'deferred', 'off'].map((events) => formatSpecification(withEvents(stack, events))));
}

/** The example of a kind, with any file that it writes discarded. */
export function exampleOf({ example }: ResourceKind): Specification {
  const specification = parseSpecification(example);
  const { options = {} } = specification;
  return 'file' in options ? { ...specification, options: { ...options, file: '/dev/null' } } : specification;
}

export function leafOf(specification: Specification): Specification {
  return specification.upstream === undefined ? specification : leafOf(specification.upstream);
}

function onLeaf(specification: Specification, leaf: Specification): Specification {
  return specification.upstream === undefined ? leaf : { ...specification, upstream: onLeaf(specification.upstream, leaf) };
}

export function withEvents(specification: Specification, deallocationEvents: string): Specification {
  return { ...specification, options: { ...specification.options, deallocationEvents } };
}
