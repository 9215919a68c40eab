import { disposeLayers, layersOf } from '../adaptors/layers.js';
import { ArgumentRangeError, ArgumentTypeError } from '../basics/errors.js';
import { assertOptions, optionNames } from '../basics/validation.js';
import { type Device, deviceOption } from '../driver/device.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../driver/workers/local-object.js';
import { assertMemoryResource, type DeallocationEvents, type MemoryResource, type MemoryResourceAdaptor } from '../memory-resource.js';
import type { KindArguments, ResourceKind } from '../resource-kind.js';
import { PlainMemoryResource } from '../resources/plain-memory-resource.js';
import { formatSpecification } from './format-specification.js';
import { resourceKind } from './kinds-by-name.js';
import { parseSpecification } from './parse-specification.js';
import { PathPlace, type Place, TextPlace } from './place.js';
import { resolveShares } from './resolve-shares.js';
import type { Specification, SpecificationValue } from './specification.js';

/** Options of {@link createResource} and {@link createResourceStack}. */
export interface CreateResourceOptions {
  /**
   * The device whose memory to use.
   * @defaultValue the first device
   */
  readonly device?: Device | undefined;
}

const createOptions = optionNames<CreateResourceOptions>({ device: true });

/** Options of {@link ResourceStack.of}. */
export interface ResourceStackOptions {
  /**
   * The human-readable name; the specification, if the stack was created from one.
   * @defaultValue the name of the resource's class
   */
  readonly name?: string | undefined;
  /**
   * The resources to dispose, in this order: each before those it is built on.
   * @defaultValue all layers
   */
  readonly owned?: readonly MemoryResource[] | undefined;
  /**
   * The deallocation policy of the layer that keeps memory.
   * @defaultValue null, for a stack that keeps none
   */
  readonly deallocationEvents?: DeallocationEvents | null | undefined;
  /**
   * Bytes that the leaves already counted before the stack was built on them, on behalf of equal
   * resources.
   * @defaultValue 0
   */
  readonly foreignReservedBytes?: number | undefined;
}

const stackOptions = optionNames<ResourceStackOptions>({ deallocationEvents: true, foreignReservedBytes: true, name: true, owned: true });

/**
 * Resources that are created and disposed together. A single resource does not own its upstream,
 * but a stack owns all of its layers, on every branch.
 *
 * Each layer is disposed before those that it is built on. Resources that an adaptor creates for
 * itself, such as bins, are layers, too: the adaptor is disposed first and disposes them, and
 * disposing them again does nothing.
 * @example
 * ```ts
 * using stack = createResourceStack('limiting(pool(cuda), limitBytes=8GiB)');
 * using stream = new Stream();
 * using buffer = new DeviceBuffer(4 * MiB, { resource: stack.resource, stream });
 * ```
 */
export class ResourceStack implements Disposable {
  readonly name: string;
  /** Every layer once, outermost first, each before those it is built on. */
  readonly layers: readonly MemoryResource[];
  /**
   * The policy in force at the outermost layer that keeps freed memory, or null if there is none.
   */
  readonly deallocationEvents: DeallocationEvents | null;
  /**
   * Bytes that the leaves already counted before the stack was built on them, on behalf of equal
   * resources.
   */
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
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { name: this.name, resource: this.resource }, inspection);
  }

  /**
   * Makes a stack from an existing resource and everything below it, which the stack owns from now
   * on.
   * @throws ArgumentTypeError if `resource` is not a memory resource.
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

  /** The resources without an upstream. */
  get leaves(): readonly MemoryResource[] {
    return this.layers.filter(isLeaf);
  }

  /**
   * Disposes every layer except the leaves, outermost first, so that you can read from the leaves
   * what is left.
   */
  disposeAdaptors(): void {
    disposeLayers(this.#owned.filter((resource) => !isLeaf(resource)));
  }

  /**
   * Disposes the layers from the outermost to the leaves. A second call does nothing, unless a
   * layer failed twice in the first call: then it tries that layer, and those that it is built on,
   * again.
   * @throws the first error of a layer, after disposing everything that can be disposed.
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
 * Creates a stack of resources from its specification.
 * @param specification text, or an object such as one read from JSON
 * @throws SpecificationError for an invalid specification, and for values that a resource refuses.
 * @throws OutOfMemoryError if an initial size cannot be allocated. Resources already created are
 * disposed.
 * @example
 * ```ts
 * const configuration = JSON.parse('{ "kind": "pool", "upstream": { "kind": "cuda" }, "options": { "initialBytes": "64MiB" } }');
 * using stack = createResourceStack(configuration);
 * ```
 */
export function createResourceStack(specification: string | Specification, options: CreateResourceOptions = {}): ResourceStack {
  assertOptions(options, createOptions);
  const text = typeof specification === 'string' ? specification.trim() : undefined;
  const parsed = parseSpecification(text ?? specification);
  const device = deviceOption(options.device);
  return new StackBuilder(text ?? formatSpecification(parsed), device).build(parsed);
}

/**
 * Creates the outermost resource of a stack from its specification. It keeps the layers below
 * alive, but you cannot dispose them; `createResourceStack` can.
 * @param specification text, or an object such as one read from JSON
 * @throws SpecificationError, OutOfMemoryError as `createResourceStack` does.
 */
export function createResource(specification: string | Specification, options: CreateResourceOptions = {}): MemoryResource {
  return createResourceStack(specification, options).resource;
}

class StackBuilder {
  readonly #text: string;
  readonly #device: Device;
  /** Every resource created, latest first. */
  readonly #made: MemoryResource[] = [];
  #foreignReservedBytes = 0;

  constructor(text: string, device: Device) {
    this.#text = text;
    this.#device = device;
  }

  build(specification: Specification): ResourceStack {
    try {
      const resource = this.#build(specification, this.#device, new PathPlace());
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

  /** Creates a resource of a device, and everything below it. */
  #build(specification: Specification, device: Device, path: Place): MemoryResource {
    const { kind, upstream, range } = specification;
    const { options = {} } = resolveShares(specification, device);
    const upstreamOf = (of: Device) => this.#build(upstream as Specification, of, path.at('upstream'));
    const below = upstream === undefined ? undefined : upstreamOf(device);
    const values: Record<string, unknown> = {};
    for (const [name, value] of Object.entries(options)) {
      values[name] = isSpecification(value) ? this.#build(value, device, path.at('options').at(name)) : value;
    }
    const place = range === undefined ? path : new TextPlace(this.#text, ...range);
    const input = { upstream: below as MemoryResource, device, upstreamOf, options: values as never };
    const resource = make(resourceKind(kind) as ResourceKind, input, place);
    // Leaves of one kind and device share their count, which includes what this stack took through
    // an earlier leaf.
    if (resource instanceof PlainMemoryResource && !this.#made.some((other) => resource.isEqual(other))) {
      this.#foreignReservedBytes += resource.reservedBytes;
    }
    this.#made.unshift(resource);
    return resource;
  }
}

/** Creates a resource. If the resource refuses a value, that is an error of the specification. */
function make(kind: ResourceKind, input: KindArguments<never>, place: Place): MemoryResource {
  try {
    return kind.create(input);
  } catch (error) {
    if (!(error instanceof ArgumentRangeError || error instanceof ArgumentTypeError)) throw error;
    return place.fail(`${kind.name} cannot be constructed: ${error.message}`, [], { cause: error });
  }
}

function isSpecification(value: SpecificationValue): value is Specification {
  return typeof value === 'object' && 'kind' in value;
}

function isLeaf(resource: MemoryResource): boolean {
  return (resource as Partial<MemoryResourceAdaptor>).upstream === undefined;
}

/**
 * The policy of the outermost layer that sets the option; if no layer above sets it, that of the
 * layer that keeps memory. If there are branches, the first that keeps memory counts, upstreams
 * before options.
 */
function policyInForce({ kind, upstream, options = {} }: Specification, above?: DeallocationEvents): DeallocationEvents | null {
  const { role, options: definitions } = resourceKind(kind) as ResourceKind;
  const policy = above ?? (options['deallocationEvents'] as DeallocationEvents | undefined);
  if (role === 'pooling') return policy ?? (definitions['deallocationEvents']?.default as DeallocationEvents);
  for (const below of [upstream, ...Object.values(options)]) {
    const found = below !== undefined && isSpecification(below) ? policyInForce(below, policy) : null;
    if (found !== null) return found;
  }
  return null;
}
