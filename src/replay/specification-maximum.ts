import { ArgumentRangeError } from '../errors.js';
import type { DeallocationEvents } from '../memory-resource.js';
import { resourceKind } from '../specification/kinds-by-name.js';
import type { Specification, SpecificationValue } from '../specification/specification.js';

/** The option that says how much a resource may hold or hand out, for the kinds that have one. */
const maximumOptions: Readonly<Record<string, string>> = {
  pool: 'max',
  arena: 'size',
  'fixed-size': 'max',
  monotonic: 'max',
  limiting: 'limit',
};

/** A layer of a specification that can have a maximum. */
export interface MaximumLayer {
  readonly kind: string;
  /** The name of the option. */
  readonly option: string;
  /** Its value in bytes, where it is set. */
  readonly bytes: number | undefined;
  /** What it takes at once, where that is set. */
  readonly initialBytes: number | undefined;
  /** The whole specification with another value for it, and for other options of the layer. */
  readonly replaced: (bytes: number, others?: Readonly<Record<string, SpecificationValue>>) => Specification;
}

/** Every layer that can have a maximum, the outermost first, along the upstreams; what options lead to is not looked at. */
export function maximumLayers(specification: Specification): MaximumLayer[] {
  const { kind, upstream, options = {} } = specification;
  const option = maximumOptions[kind];
  const own: MaximumLayer[] =
    option === undefined
      ? []
      : [
          {
            kind,
            option,
            bytes: options[option] as number | undefined,
            initialBytes: options['initial'] as number | undefined,
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

/** How a stack comes to its memory: block by block as it needs more, or all that it may have when it is made. */
export type MemoryTaking = 'as-needed' | 'at-once';

/**
 * A specification with a maximum for all the memory that it takes: that of the innermost resource that can have one, else a limit around the
 * leaf. Where there are branches, a limit around the whole. An arena takes all of it at once; a pool can, unless the specification says
 * already what it takes at once, and comes in both ways.
 * @throws ArgumentRangeError where it has a maximum already.
 */
export function withMaxima(specification: Specification): ReadonlyMap<MemoryTaking, (bytes: number) => Specification> {
  assertNoMaximum(specification);
  if (hasBranches(specification)) return new Map([['as-needed', (bytes) => limited(specification, bytes)]]);
  const innermost = maximumLayers(specification).at(-1);
  if (innermost === undefined) return new Map([['as-needed', (bytes) => limitedLeaf(specification, bytes)]]);
  const { kind, initialBytes, replaced } = innermost;
  if (kind === 'arena') return new Map([['at-once', (bytes) => replaced(bytes)]]);
  const maxima = new Map<MemoryTaking, (bytes: number) => Specification>([['as-needed', (bytes) => replaced(bytes)]]);
  if (kind === 'pool' && initialBytes === undefined) maxima.set('at-once', (bytes) => replaced(bytes, { initial: bytes }));
  return maxima;
}

/** The same with another policy: in the layer that decides on it, or in the outermost one that keeps memory. `undefined` where none does. */
export function withPolicy(specification: Specification, events: DeallocationEvents): Specification | undefined {
  return (
    replaceFirst(specification, ({ options }) => options?.['events'] !== undefined, { events }) ??
    replaceFirst(specification, isPooling, { events })
  );
}

/** The same with another initial size of the outermost pool. `undefined` where there is no pool. */
export function withInitial(specification: Specification, bytes: number): Specification | undefined {
  return replaceFirst(specification, ({ kind }) => kind === 'pool', { initial: bytes });
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

/** @throws ArgumentRangeError where a specification has a maximum. */
export function assertNoMaximum({ kind, upstream, options = {} }: Specification): void {
  const option = maximumOptions[kind];
  if (option !== undefined && options[option] !== undefined) {
    const cure = kind === 'limiting' ? 'leave limiting out' : `leave ${option} out`;
    throw new ArgumentRangeError(`${kind} has a maximum already, which is what is searched for: ${cure}`, 'ERR_INVALID_ARG_VALUE');
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
  return { kind: 'limiting', upstream, options: { limit: bytes } };
}
