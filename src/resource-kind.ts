import type { Device } from './driver/device.js';
import type { MemoryResource, MemoryResourceAdaptor, ReservingMemoryResource } from './memory-resource.js';

/** What a resource does with freed memory. */
export type KindRole =
  /** A leaf, whose memory comes from the driver. */
  | 'upstream'
  /** An adaptor that keeps freed memory. */
  | 'pooling'
  /** An adaptor that passes on every free. */
  | 'pass-through';

/** The type of an option's value. */
export type OptionType = 'size' | 'sizes' | 'integer' | 'number' | 'boolean' | 'word' | 'text' | 'resource';

/** An option of a kind of resource. */
export interface OptionDefinition {
  readonly type: OptionType;
  /** A short, human-readable description. */
  readonly summary: string;
  /** The default, as human-readable text. */
  readonly default?: string | undefined;
  /** @defaultValue false */
  readonly required?: boolean | undefined;
  /** The allowed values, for the type `word`. */
  readonly words?: readonly string[] | undefined;
  /**
   * Whether the resource takes a share, such as `50%`, as text, because it is not one of the stack's own memory, or may change. Others get
   * the bytes.
   * @defaultValue false
   */
  readonly takesShare?: boolean | undefined;
  /** What the resource does with the file, if the option is the path of one. */
  readonly file?: 'read' | 'appended' | 'overwritten' | undefined;
}

/**
 * A kind of resource that a specification can name. It is declared next to its class, and listed in
 * `resourceKinds`.
 */
export interface ResourceKind {
  readonly name: string;
  /** A short, human-readable description. */
  readonly summary: string;
  readonly role: KindRole;
  /**
   * The options by name, in the order of listings. They have the names of the constructor's options
   * and parameters.
   */
  readonly options: Readonly<Record<string, OptionDefinition>>;
  /** An example specification. */
  readonly example: string;
  /** @internal The option that limits the memory of a resource, if there is one. */
  readonly maximum?: string | undefined;
  /** @internal Constructs the resource from values that were checked against `options`. */
  create(input: KindArguments<never>): MemoryResource;
}

/** What a kind constructs its resource from. */
export interface KindArguments<Values> {
  /** The resource below; a leaf has none. */
  readonly upstream: MemoryResource;
  readonly device: Device;
  /** Constructs the resource below again, for another device. */
  readonly upstreamOf: (device: Device) => MemoryResource;
  readonly options: Values;
}

type Definitions = Readonly<Record<string, OptionDefinition>>;

/** The type of an option's value in a resource's constructor. */
type OptionValue<D extends OptionDefinition> = D extends { type: 'word'; words: readonly (infer Word)[] }
  ? Word
  : D['type'] extends 'size' | 'integer' | 'number'
    ? number
    : D['type'] extends 'sizes'
      ? readonly number[]
      : D['type'] extends 'boolean'
        ? boolean
        : D['type'] extends 'resource'
          ? MemoryResource
          : string;

type RequiredNames<D extends Definitions> = { [Name in keyof D]: D[Name] extends { required: true } ? Name : never }[keyof D];

/** The values of the options: required ones, and optional ones. */
type Values<D extends Definitions> = { readonly [Name in RequiredNames<D>]: OptionValue<D[Name]> } & {
  readonly [Name in Exclude<keyof D, RequiredNames<D>>]?: OptionValue<D[Name]>;
};

const eventWords = ['eager', 'deferred', 'off'] as const;

type AdaptorRole = Exclude<KindRole, 'upstream'>;

const eventsSummaries: Readonly<Record<AdaptorRole, string>> = {
  pooling: 'what it does at a free so that another stream can use the memory',
  'pass-through': 'what it requests from the resources below at every free',
};

const eventsDefaults: Readonly<Record<AdaptorRole, string>> = {
  pooling: 'eager',
  'pass-through': 'their own policies',
};

interface EventsDefinition extends OptionDefinition {
  readonly type: 'word';
  readonly words: typeof eventWords;
}

/** The option that every adaptor has. */
function eventsOption(role: AdaptorRole): EventsDefinition {
  return { type: 'word', words: eventWords, summary: eventsSummaries[role], default: eventsDefaults[role] };
}

/**
 * Declares the kind of a leaf resource: its name in specifications, its options, and how it is
 * constructed.
 */
/* @__NO_SIDE_EFFECTS__ */
export function defineUpstream<const D extends Definitions>(definition: {
  readonly name: string;
  readonly summary: string;
  readonly options: D;
  readonly example: string;
  readonly create: (input: { readonly device: Device; readonly options: Values<D> }) => ReservingMemoryResource;
}): ResourceKind {
  return { ...definition, role: 'upstream' };
}

/**
 * Declares the kind of an adaptor: its name in specifications, its options other than
 * `deallocationEvents`, and how it is constructed.
 *
 * The tests construct every kind from its `example`, which should therefore take a few MiB at most,
 * and set any limit to 64 MiB. An example on `cuda` is also tested on `cuda-async`.
 */
/* @__NO_SIDE_EFFECTS__ */
export function defineAdaptor<const D extends Definitions>(definition: {
  readonly name: string;
  readonly role: AdaptorRole;
  readonly summary: string;
  readonly options: D;
  /** The option that limits the memory of the resource, in a replay too. */
  readonly maximum?: keyof D & string;
  readonly example: string;
  readonly create: (input: KindArguments<Values<D & { deallocationEvents: EventsDefinition }>>) => MemoryResource;
  /**
   * The default of `deallocationEvents`.
   * @defaultValue the default of its role
   */
  readonly eventsDefault?: string;
}): ResourceKind {
  const { eventsDefault, ...kind } = definition;
  const events = eventsOption(kind.role);
  const deallocationEvents = { ...events, default: eventsDefault ?? (events.default as string) };
  return { ...kind, options: { ...kind.options, deallocationEvents } };
}

/**
 * The name that specifications use for a resource of this class: `cuda-async` for a
 * `CudaAsyncMemoryResource`. It is derived from the name of the class, for classes of your own, too.
 * cistern's classes declare theirs as a static `name`, which bundlers that shorten names keep. (If
 * `defineAdaptor` set a symbol on the class instead, the call would have a side effect, and every
 * bundle would contain every adaptor.)
 */
export function kindOf(resource: MemoryResource): string {
  const name = (resource.constructor?.name ?? '').replace(/(Memory)?Resource(Adaptor)?$/, '');
  return name.replace(/(?<=[a-z0-9])(?=[A-Z])/g, '-').toLowerCase() || 'resource';
}

/** The kinds of a resource and of those below it, as in a specification: `limiting(pool(cuda))`. */
export function stackName(resource: MemoryResource): string {
  const { upstream } = resource as Partial<MemoryResourceAdaptor>;
  return upstream === undefined ? kindOf(resource) : `${kindOf(resource)}(${stackName(upstream)})`;
}
