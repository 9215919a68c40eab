import { type Device, deviceOption } from '../driver/device.js';
import { ArgumentRangeError, ArgumentTypeError, SpecificationError } from '../errors.js';
import type { DeallocationEvents, MemoryResource, MemoryResourceAdaptor } from '../memory-resource.js';
import { PlainMemoryResource } from '../resources/plain-memory-resource.js';
import { formatSpecification } from './format-specification.js';
import { parseSpecification } from './parse-specification.js';
import type { KindArguments, ResourceKind } from './resource-kind.js';
import { resourceKind } from './resource-kinds.js';
import type { Specification } from './specification.js';

/** Options of {@link createResource} and {@link createResourceStack}. */
export interface CreateResourceOptions {
  /**
   * Where the memory is.
   * @defaultValue the first device
   */
  readonly device?: Device;
}

/** What {@link ResourceStack} is made of. */
export interface ResourceStackParts {
  /** What people call it; a specification where there is one. */
  readonly name: string;
  /** The resources from the outermost to the leaf, each the upstream of the one before. */
  readonly layers: readonly MemoryResource[];
  /**
   * Everything to be disposed, in this order.
   * @defaultValue `layers`
   */
  readonly owned?: readonly MemoryResource[];
  /**
   * What the layer that keeps memory does about events.
   * @defaultValue null, for a stack that keeps none
   */
  readonly deallocationEvents?: DeallocationEvents | null;
  /**
   * Bytes that the leaf counted before the stack was built on it, for other resources that are equal to it.
   * @defaultValue 0
   */
  readonly foreignReservedBytes?: number;
}

/**
 * Resources that were made together and end together. A resource alone does not own its upstream; a stack owns all of its layers.
 * @example
 * ```ts
 * using stack = createResourceStack('limiting(pool(cuda), limit=8GiB)');
 * using stream = new Stream();
 * using buffer = new DeviceBuffer(4 * MiB, { resource: stack.resource, stream });
 * ```
 */
export class ResourceStack implements Disposable {
  readonly name: string;
  /** From the outermost to the leaf. */
  readonly layers: readonly MemoryResource[];
  /** The policy in force at the outermost layer that keeps freed memory, or null where none does. */
  readonly deallocationEvents: DeallocationEvents | null;
  /** Bytes that the leaf counted before the stack was built on it, for other resources that are equal to it. */
  readonly foreignReservedBytes: number;
  readonly #owned: readonly MemoryResource[];

  constructor(parts: ResourceStackParts) {
    if (parts.layers.length === 0) throw new ArgumentRangeError('layers must hold a resource, got none');
    this.name = parts.name;
    this.layers = Object.freeze([...parts.layers]);
    this.deallocationEvents = parts.deallocationEvents ?? null;
    this.foreignReservedBytes = parts.foreignReservedBytes ?? 0;
    this.#owned = parts.owned ?? this.layers;
  }

  /** A stack of a resource that exists and everything below it, which the stack owns from now on. */
  static of(resource: MemoryResource, parts: Partial<Omit<ResourceStackParts, 'layers'>> = {}): ResourceStack {
    const layers = [resource];
    for (let layer = resource; 'upstream' in layer; ) {
      layer = (layer as MemoryResourceAdaptor).upstream;
      layers.push(layer);
    }
    return new ResourceStack({ name: resource.constructor.name, ...parts, layers });
  }

  /** The outermost resource. */
  get resource(): MemoryResource {
    return this.layers[0] as MemoryResource;
  }

  /** The resource that has no upstream. */
  get leaf(): MemoryResource {
    return this.layers.at(-1) as MemoryResource;
  }

  /** Disposes every layer but the leaf, from the outermost on, so that the leaf can be asked what is left. */
  disposeAdaptors(): void {
    disposeAll(this.#owned.filter((resource) => resource !== this.leaf));
  }

  /** Disposes the layers from the outermost to the leaf. Does nothing the second time. */
  [Symbol.dispose](): void {
    disposeAll(this.#owned);
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }
}

/**
 * Makes a stack of resources from its description.
 * @param specification text, or what `parseSpecification` returns; one written by hand is checked as text is
 * @throws SpecificationError for a wrong description, and for values that a resource refuses.
 * @throws OutOfMemoryError where an initial size cannot be had. Nothing that was made stays behind.
 */
export function createResourceStack(specification: string | Specification, options: CreateResourceOptions = {}): ResourceStack {
  const text = typeof specification === 'string' ? specification.trim() : formatSpecification(specification);
  return new StackBuilder(text, deviceOption(options.device)).build(parseSpecification(text));
}

/**
 * Makes the outermost resource of a stack from its description. It keeps the layers below alive; `createResourceStack` also ends them.
 * @param specification text, or what `parseSpecification` returns
 * @throws SpecificationError, OutOfMemoryError as `createResourceStack` does.
 */
export function createResource(specification: string | Specification, options: CreateResourceOptions = {}): MemoryResource {
  return createResourceStack(specification, options).resource;
}

class StackBuilder {
  readonly #text: string;
  readonly #device: Device;
  /** Everything made so far, the latest first. */
  readonly #made: MemoryResource[] = [];

  constructor(text: string, device: Device) {
    this.#text = text;
    this.#device = device;
  }

  build(specification: Specification): ResourceStack {
    try {
      const layers = this.#makeChain(specification);
      return new ResourceStack({
        name: this.#text,
        layers,
        owned: this.#made,
        deallocationEvents: policyInForce(specification),
        foreignReservedBytes: this.#foreignReservedBytes,
      });
    } catch (error) {
      disposeAll(this.#made);
      throw error;
    }
  }

  #foreignReservedBytes = 0;

  /** Makes a resource and what is below it; returns them from the outermost to the leaf. */
  #makeChain(specification: Specification): MemoryResource[] {
    const below = specification.upstream === undefined ? [] : this.#makeChain(specification.upstream);
    const values: Record<string, unknown> = {};
    for (const [name, value] of Object.entries(specification.options ?? {})) {
      values[name] = typeof value === 'object' ? this.#makeChain(value)[0] : value;
    }
    const kind = resourceKind(specification.kind) as ResourceKind;
    const resource = this.#make(kind, specification, {
      upstream: below[0] as MemoryResource,
      device: this.#device,
      options: values as never,
    });
    this.#made.unshift(resource);
    // Leaves of one kind and device share their count.
    if (below.length === 0) this.#foreignReservedBytes = resource instanceof PlainMemoryResource ? resource.reservedBytes : 0;
    return [resource, ...below];
  }

  #make(kind: ResourceKind, specification: Specification, input: KindArguments<never>): MemoryResource {
    try {
      return kind.create(input);
    } catch (error) {
      if (!(error instanceof ArgumentRangeError || error instanceof ArgumentTypeError)) throw error;
      const [start, end] = specification.range ?? [0, this.#text.length];
      throw new SpecificationError(
        `${kind.name} cannot be made: ${error.message}`,
        { specification: this.#text, position: start, length: end - start, expected: [] },
        { cause: error },
      );
    }
  }
}

/** The outermost layer that sets the option decides, and the layer that keeps memory where none above it does. */
function policyInForce(specification: Specification): DeallocationEvents | null {
  let policy: DeallocationEvents | undefined;
  for (let layer: Specification | undefined = specification; layer !== undefined; layer = layer.upstream) {
    policy ??= layer.options?.['events'] as DeallocationEvents | undefined;
    if (resourceKind(layer.kind)?.role === 'keeper') return policy ?? 'eager';
  }
  return null;
}

/** Disposes all, whatever happens, and throws the first error. */
function disposeAll(resources: readonly MemoryResource[]): void {
  const errors: unknown[] = [];
  for (const resource of resources) {
    try {
      resource[Symbol.dispose]();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
}
