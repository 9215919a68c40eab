import { disposeLayers, layersOf } from '../adaptors/layers.js';
import { assertMemoryResource } from '../adaptors/pass-through-adaptor.js';
import { type Device, deviceOption } from '../driver/device.js';
import { type Inspect, type InspectionOptions, inspected, inspectObject, refuseCloning } from '../driver/local-object.js';
import { ArgumentRangeError, ArgumentTypeError } from '../errors.js';
import type { DeallocationEvents, MemoryResource, MemoryResourceAdaptor } from '../memory-resource.js';
import type { KindArguments, ResourceKind } from '../resource-kind.js';
import { PlainMemoryResource } from '../resources/plain-memory-resource.js';
import { assertOptions, optionNames } from '../validation.js';
import { formatSpecification } from './format-specification.js';
import { resourceKind } from './kinds-by-name.js';
import { parseSpecification } from './parse-specification.js';
import { PathPlace, type Place, TextPlace } from './place.js';
import { resolveShares } from './resolve-shares.js';
import type { Specification, SpecificationValue } from './specification.js';

/** Options of {@link createResource} and {@link createResourceStack}. */
export interface CreateResourceOptions {
  /**
   * Where the memory is.
   * @defaultValue the first device
   */
  readonly device?: Device;
}

const createOptions = optionNames<CreateResourceOptions>({ device: true });

/** Options of {@link ResourceStack.of}. */
export interface ResourceStackOptions {
  /**
   * What people call it; a specification where there is one.
   * @defaultValue the name of the resource's class
   */
  readonly name?: string;
  /**
   * Everything to be disposed, in this order: each resource before what it is built on.
   * @defaultValue all layers
   */
  readonly owned?: readonly MemoryResource[];
  /**
   * What the layer that keeps memory does about events.
   * @defaultValue null, for a stack that keeps none
   */
  readonly deallocationEvents?: DeallocationEvents | null;
  /**
   * Bytes that the leaves counted before the stack was built on them, for other resources that are equal to them.
   * @defaultValue 0
   */
  readonly foreignReservedBytes?: number;
}

const stackOptions = optionNames<ResourceStackOptions>({ deallocationEvents: true, foreignReservedBytes: true, name: true, owned: true });

/**
 * Resources that were made together and end together. A resource alone does not own what it takes memory from; a stack owns all of its
 * layers, on every branch.
 *
 * Each layer is disposed before those that it is built on. Resources that an adaptor makes for itself, such as bins, are layers as well, but
 * end with that adaptor: it comes first and disposes them, and where the stack disposes them once more that does nothing.
 * @example
 * ```ts
 * using stack = createResourceStack('limiting(pool(cuda), limit=8GiB)');
 * using stream = new Stream();
 * using buffer = new DeviceBuffer(4 * MiB, { resource: stack.resource, stream });
 * ```
 */
export class ResourceStack implements Disposable {
  readonly name: string;
  /** Every layer once, the outermost first, each before what it is built on. */
  readonly layers: readonly MemoryResource[];
  /** The policy in force at the outermost layer that keeps freed memory, or null where none does. */
  readonly deallocationEvents: DeallocationEvents | null;
  /** Bytes that the leaves counted before the stack was built on them, for other resources that are equal to them. */
  readonly foreignReservedBytes: number;
  readonly #owned: readonly MemoryResource[];

  private constructor(resource: MemoryResource, options: ResourceStackOptions) {
    this.layers = Object.freeze(layersOf(resource));
    this.name = options.name ?? resource.constructor.name;
    this.deallocationEvents = options.deallocationEvents ?? null;
    this.foreignReservedBytes = options.foreignReservedBytes ?? 0;
    this.#owned = options.owned ?? this.layers;
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(this, { name: this.name, resource: this.resource }, depth, options, inspect);
  }

  /**
   * A stack of a resource that exists and everything that it takes memory from, which the stack owns from now on.
   * @throws ArgumentTypeError for what is no memory resource.
   */
  static of(resource: MemoryResource, options: ResourceStackOptions = {}): ResourceStack {
    assertMemoryResource(resource, 'resource');
    assertOptions(options, stackOptions);
    return new ResourceStack(resource, options);
  }

  /** The outermost resource. */
  get resource(): MemoryResource {
    return this.layers[0] as MemoryResource;
  }

  /** The resources that have no upstream. */
  get leaves(): readonly MemoryResource[] {
    return this.layers.filter(isLeaf);
  }

  /** Disposes every layer but the leaves, from the outermost on, so that the leaves can be asked what is left. */
  disposeAdaptors(): void {
    disposeLayers(this.#owned.filter((resource) => !isLeaf(resource)));
  }

  /**
   * Disposes the layers from the outermost to the leaves. Does nothing the second time, unless a layer failed twice the first time: then that
   * and what it is built on are tried again.
   * @throws what a layer threw first, once everything that can be was disposed.
   */
  [Symbol.dispose](): void {
    disposeLayers(this.#owned);
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }
}

/**
 * Makes a stack of resources from its description.
 * @param specification text, or an object such as one read from JSON
 * @throws SpecificationError for a wrong description, and for values that a resource refuses.
 * @throws OutOfMemoryError where an initial size cannot be had. Nothing that was made stays behind.
 * @example
 * ```ts
 * const configuration = JSON.parse('{ "kind": "pool", "upstream": { "kind": "cuda" }, "options": { "initial": "64MiB" } }');
 * using stack = createResourceStack(configuration);
 * ```
 */
export function createResourceStack(specification: string | Specification, options: CreateResourceOptions = {}): ResourceStack {
  assertOptions(options, createOptions);
  const text = typeof specification === 'string' ? specification.trim() : undefined;
  const parsed = parseSpecification(text ?? specification);
  const device = deviceOption(options.device);
  return new StackBuilder(text ?? formatSpecification(parsed), device).build(resolveShares(parsed, device));
}

/**
 * Makes the outermost resource of a stack from its description. It keeps the layers below alive; `createResourceStack` also ends them.
 * @param specification text, or an object such as one read from JSON
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
  #foreignReservedBytes = 0;

  constructor(text: string, device: Device) {
    this.#text = text;
    this.#device = device;
  }

  build(specification: Specification): ResourceStack {
    try {
      const resource = this.#build(specification, new PathPlace());
      return ResourceStack.of(resource, {
        name: this.#text,
        owned: this.#made,
        deallocationEvents: policyInForce(specification),
        foreignReservedBytes: this.#foreignReservedBytes,
      });
    } catch (error) {
      disposeLayers(this.#made);
      throw error;
    }
  }

  /** Makes a resource and everything that it takes memory from. */
  #build({ kind, upstream, options = {}, range }: Specification, path: Place): MemoryResource {
    const below = upstream === undefined ? undefined : this.#build(upstream, path.at('upstream'));
    const values: Record<string, unknown> = {};
    for (const [name, value] of Object.entries(options)) {
      values[name] = isSpecification(value) ? this.#build(value, path.at('options').at(name)) : value;
    }
    const place = range === undefined ? path : new TextPlace(this.#text, ...range);
    const input = { upstream: below as MemoryResource, device: this.#device, options: values as never };
    const resource = make(resourceKind(kind) as ResourceKind, input, place);
    // Leaves of one kind and device share their count, which holds what this stack took for an earlier one as well.
    if (resource instanceof PlainMemoryResource && !this.#made.some((other) => resource.isEqual(other))) {
      this.#foreignReservedBytes += resource.reservedBytes;
    }
    this.#made.unshift(resource);
    return resource;
  }
}

/** Makes a resource; values that it refuses are a fault of the specification. */
function make(kind: ResourceKind, input: KindArguments<never>, place: Place): MemoryResource {
  try {
    return kind.create(input);
  } catch (error) {
    if (!(error instanceof ArgumentRangeError || error instanceof ArgumentTypeError)) throw error;
    return place.fail(`${kind.name} cannot be made: ${error.message}`, [], { cause: error });
  }
}

function isSpecification(value: SpecificationValue): value is Specification {
  return typeof value === 'object' && 'kind' in value;
}

function isLeaf(resource: MemoryResource): boolean {
  return (resource as Partial<MemoryResourceAdaptor>).upstream === undefined;
}

/**
 * The outermost layer that sets the option decides, and the layer that keeps memory where none above it does. Where there are branches, the
 * first one that keeps memory counts, upstreams before options.
 */
function policyInForce({ kind, upstream, options = {} }: Specification, above?: DeallocationEvents): DeallocationEvents | null {
  const { role, options: definitions } = resourceKind(kind) as ResourceKind;
  const policy = above ?? (options['events'] as DeallocationEvents | undefined);
  if (role === 'pooling') return policy ?? (definitions['events']?.default as DeallocationEvents);
  for (const below of [upstream, ...Object.values(options)]) {
    const found = below !== undefined && isSpecification(below) ? policyInForce(below, policy) : null;
    if (found !== null) return found;
  }
  return null;
}
