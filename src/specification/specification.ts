/**
 * The specification of a resource stack, such as `limiting(pool(cuda), limitBytes=8GiB)`, as data.
 * `parseSpecification` makes one from text; you can also write one by hand, or read one from JSON.
 * It is checked when it is used, and errors name the path to the fault.
 * @example
 * ```ts
 * const specification: Specification = {
 *   kind: 'limiting',
 *   upstream: { kind: 'pool', upstream: { kind: 'cuda' }, options: { initialBytes: '1GiB', deallocationEvents: 'deferred' } },
 *   options: { limitBytes: 8 * GiB },
 * };
 * using stack = createResourceStack(specification);
 * ```
 */
export interface Specification {
  /** The name of a kind; see `resourceKinds`. */
  readonly kind: string;
  /** The resource below, for the kinds that take one. */
  readonly upstream?: Specification | undefined;
  /** Values by the name of their option, which is its name in the constructor. */
  readonly options?: Readonly<Record<string, SpecificationValue>> | undefined;
  /** The position in the text: the first code unit, and the one after the last. */
  readonly range?: SourceRange | undefined;
}

/**
 * The value of an option: a size, integer or number; a boolean; a word or text; a list of sizes; or
 * a resource. A size is in bytes; or text with a unit, such as `512MiB`, which `parseSpecification`
 * converts to bytes; or a share of the device's total memory, such as `50%`, which becomes bytes, a
 * multiple of 256, when a stack is created.
 */
export type SpecificationValue = number | boolean | string | readonly (number | string)[] | Specification;

/** A part of a text: the first code unit, and the one after the last. */
export type SourceRange = readonly [start: number, end: number];

/** The most resources that can be nested in each other. */
export const maximumDepth = 64;
