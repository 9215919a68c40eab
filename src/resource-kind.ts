import type { Device } from './driver/device.js';
import type { MemoryResource, ReservingMemoryResource } from './memory-resource.js';

/** What a resource does with memory that is freed, as far as events are concerned. */
export type KindRole =
  /** A leaf: the memory comes from the driver. */
  | 'upstream'
  /** An adaptor that keeps freed memory. */
  | 'pooling'
  /** An adaptor that passes every free on. */
  | 'pass-through';

/** What the value of an option can be. */
export type OptionType = 'size' | 'sizes' | 'integer' | 'number' | 'boolean' | 'word' | 'text' | 'resource';

/** An option of a kind of resource. */
export interface OptionDefinition {
  readonly type: OptionType;
  /** One phrase for people. */
  readonly summary: string;
  /** What holds without it, as text for people. */
  readonly default?: string;
  /** @defaultValue false */
  readonly required?: boolean;
  /** The values, for the type `word`. */
  readonly words?: readonly string[];
}

/** A kind of resource that a specification can name. It is declared beside its class, and listed in `resourceKinds`. */
export interface ResourceKind {
  readonly name: string;
  /** One phrase for people. */
  readonly summary: string;
  readonly role: KindRole;
  /** By name, in the order in which they are listed. */
  readonly options: Readonly<Record<string, OptionDefinition>>;
  /** A specification of one. */
  readonly example: string;
  /** @internal Makes the resource from values that were held against `options`. */
  create(input: KindArguments<never>): MemoryResource;
}

/** What a kind makes its resource from. */
export interface KindArguments<Values> {
  /** The resource below; a leaf has none. */
  readonly upstream: MemoryResource;
  readonly device: Device;
  readonly options: Values;
}

type Definitions = Readonly<Record<string, OptionDefinition>>;

/** The type that a resource's constructor gets for an option. */
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

/** The values of options: those that are required, and those that may be missing. */
type Values<D extends Definitions> = { readonly [Name in RequiredNames<D>]: OptionValue<D[Name]> } & {
  readonly [Name in Exclude<keyof D, RequiredNames<D>>]?: OptionValue<D[Name]>;
};

const eventWords = ['eager', 'deferred', 'off'] as const;

const eventsSummaries: Readonly<Record<KindRole, string>> = {
  upstream: 'has no effect: it keeps nothing back',
  pooling: 'what it does at a free, so that another stream can have the memory',
  'pass-through': 'what it asks of the resources below at every free',
};

const eventsDefaults: Readonly<Record<KindRole, string>> = {
  upstream: 'none',
  pooling: 'eager',
  'pass-through': 'what they do of themselves',
};

interface EventsDefinition extends OptionDefinition {
  readonly type: 'word';
  readonly words: typeof eventWords;
}

/** The option that every kind has. */
function eventsOption(role: KindRole): EventsDefinition {
  return { type: 'word', words: eventWords, summary: eventsSummaries[role], default: eventsDefaults[role] };
}

/** Declares the kind of an upstream resource: what a specification calls it, its options, and how it is made. */
/* @__NO_SIDE_EFFECTS__ */
export function defineUpstream<const D extends Definitions>(definition: {
  readonly name: string;
  readonly summary: string;
  readonly options: D;
  readonly example: string;
  readonly create: (input: { readonly device: Device; readonly options: Values<D> }) => ReservingMemoryResource;
}): ResourceKind {
  return { ...definition, role: 'upstream', options: { ...definition.options, events: eventsOption('upstream') } };
}

/**
 * Declares the kind of an adaptor: what a specification calls it, its options besides `events`, and how it is made.
 *
 * The tests make every kind from its `example`, so that should take some MiB at most, and a limit of 64 MiB where there is one. On `cuda` it is
 * tried on `cuda-async` as well.
 */
/* @__NO_SIDE_EFFECTS__ */
export function defineAdaptor<const D extends Definitions>(definition: {
  readonly name: string;
  readonly role: 'pooling' | 'pass-through';
  readonly summary: string;
  readonly options: D;
  readonly example: string;
  readonly create: (input: KindArguments<Values<D & { events: EventsDefinition }>>) => MemoryResource;
  /**
   * What `events` is without the option.
   * @defaultValue that of its role
   */
  readonly eventsDefault?: string;
}): ResourceKind {
  const { eventsDefault, ...kind } = definition;
  const events = eventsOption(kind.role);
  return { ...kind, options: { ...kind.options, events: { ...events, default: eventsDefault ?? (events.default as string) } } };
}

/** The object without its undefined fields, for constructors whose fields may be left out but not be undefined. */
export function definedFields<T extends object>(fields: T): { [Name in keyof T]?: Exclude<T[Name], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}
