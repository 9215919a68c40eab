import { invalidValue } from '../../basics/errors.js';
import type { DeallocationEvents } from '../../memory-resource.js';
import { resourceKind } from '../../specification/kinds-by-name.js';
import type { Specification, SpecificationValue } from '../../specification/specification.js';

/** A layer of a specification that can have a maximum. */
export interface MaximumLayer {
  readonly kind: string;
  /** The name of the option. */
  readonly option: string;
  /** Its value in bytes, if set. */
  readonly bytes: number | undefined;
  /** The initial size, if set. */
  readonly initialBytes: number | undefined;
  /**
   * The whole specification with another value for the option, and for other options of the layer.
   */
  readonly replaced: (bytes: number, others?: Readonly<Record<string, SpecificationValue>>) => Specification;
}

/**
 * Every layer that can have a maximum, outermost first, along the upstreams; resources in options
 * are not visited.
 */
export function maximumLayers(specification: Specification): MaximumLayer[] {
  const { kind, upstream, options = {} } = specification;
  const option = resourceKind(kind)?.maximum;
  const own: MaximumLayer[] =
    option === undefined
      ? []
      : [
          {
            kind,
            option,
            bytes: options[option] as number | undefined,
            initialBytes: options['initialBytes'] as number | undefined,
            replaced: (bytes, others = {}) => ({ ...specification, options: { ...options, ...others, [option]: bytes } }),
          },
        ];
  const below = upstream === undefined ? [] : maximumLayers(upstream);
  return [
    ...own,
    ...below.map(
      (layer): MaximumLayer => ({
        ...layer,
        replaced: (bytes, others) => ({ ...specification, upstream: layer.replaced(bytes, others) }),
      }),
    ),
  ];
}

/**
 * How a stack takes its memory: block by block as it needs more, or all of its maximum when it is
 * constructed.
 */
export type MemoryTaking = 'as-needed' | 'at-once';

/**
 * A specification with a maximum for all the memory that it takes: the maximum of the innermost
 * resource that can have one, otherwise a limit around the leaf, or around the whole stack if there
 * are branches. An arena takes all of it at the start. A pool can do so, too, unless the
 * specification sets its initial size, so there are both variants for a pool.
 * @throws ArgumentRangeError if the specification already has a maximum.
 */
export function withMaxima(specification: Specification): ReadonlyMap<MemoryTaking, (bytes: number) => Specification> {
  assertNoMaximum(specification);
  if (hasBranches(specification)) return new Map([['as-needed', (bytes) => limited(specification, bytes)]]);
  const innermost = maximumLayers(specification).at(-1);
  if (innermost === undefined) return new Map([['as-needed', (bytes) => limitedLeaf(specification, bytes)]]);
  const { kind, initialBytes, replaced } = innermost;
  if (kind === 'arena') return new Map([['at-once', (bytes) => replaced(bytes)]]);
  const maxima = new Map<MemoryTaking, (bytes: number) => Specification>([['as-needed', (bytes) => replaced(bytes)]]);
  if (kind === 'pool' && initialBytes === undefined) maxima.set('at-once', (bytes) => replaced(bytes, { initialBytes: bytes }));
  return maxima;
}

/**
 * The specification with another policy, set in the layer that has one, or in the outermost pooling
 * resource; `undefined` if there is neither.
 */
export function withPolicy(specification: Specification, deallocationEvents: DeallocationEvents): Specification | undefined {
  return (
    replaceFirst(specification, ({ options }) => options?.['deallocationEvents'] !== undefined, { deallocationEvents }) ??
    replaceFirst(specification, isPooling, { deallocationEvents })
  );
}

/**
 * The specification with another initial size of the outermost pool; `undefined` if there is no
 * pool.
 */
export function withInitial(specification: Specification, bytes: number): Specification | undefined {
  return replaceFirst(specification, ({ kind }) => kind === 'pool', { initialBytes: bytes });
}

function replaceFirst(
  specification: Specification,
  isMeant: (layer: Specification) => boolean,
  options: Readonly<Record<string, SpecificationValue>>,
): Specification | undefined {
  if (isMeant(specification)) return { ...specification, options: { ...specification.options, ...options } };
  const below = specification.upstream === undefined ? undefined : replaceFirst(specification.upstream, isMeant, options);
  return below === undefined ? undefined : { ...specification, upstream: below };
}

function isPooling({ kind }: Specification): boolean {
  return resourceKind(kind)?.role === 'pooling';
}

/** @throws ArgumentRangeError if a specification has a maximum. */
export function assertNoMaximum({ kind, upstream, options = {} }: Specification): void {
  const option = resourceKind(kind)?.maximum;
  if (option !== undefined && options[option] !== undefined) {
    const cure = kind === 'limiting' ? 'leave limiting out' : `leave ${option} out`;
    throw invalidValue(`${kind} already has a maximum, which is what the search looks for: ${cure}`);
  }
  for (const below of [upstream, ...Object.values(options)]) if (isResource(below)) assertNoMaximum(below);
}

function hasBranches({ upstream, options = {} }: Specification): boolean {
  return Object.values(options).some(isResource) || (upstream !== undefined && hasBranches(upstream));
}

function isResource(value: SpecificationValue | undefined): value is Specification {
  return typeof value === 'object' && 'kind' in value;
}

function limitedLeaf(specification: Specification, bytes: number): Specification {
  const { upstream } = specification;
  return upstream === undefined ? limited(specification, bytes) : { ...specification, upstream: limitedLeaf(upstream, bytes) };
}

function limited(upstream: Specification, bytes: number): Specification {
  return { kind: 'limiting', upstream, options: { limitBytes: bytes } };
}
