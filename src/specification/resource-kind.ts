import type { Device } from '../driver/device.js';
import type { MemoryResource, ReservingMemoryResource } from '../memory-resource.js';
import type { OptionDefinition, OptionValue } from './specification.js';

/** What a resource does with memory that is freed, as far as events are concerned. */
export type KindRole =
  /** A leaf: the memory comes from the driver. */
  | 'upstream'
  /** An adaptor that keeps freed memory. */
  | 'keeper'
  /** An adaptor that passes every free on. */
  | 'pass-through';

/** What a kind makes its resource from. */
export interface KindArguments<Values> {
  /** The resource below; a leaf has none. */
  readonly upstream: MemoryResource;
  readonly device: Device;
  readonly options: Values;
}

/** A kind of resource that a specification can name. */
export interface ResourceKind {
  readonly name: string;
  /** One phrase for people. */
  readonly summary: string;
  readonly role: KindRole;
  /** By name, in the order in which they are listed. */
  readonly options: Readonly<Record<string, OptionDefinition>>;
  /** @internal Makes the resource from values that were held against `options`. */
  create(input: KindArguments<never>): MemoryResource;
}

type Definitions = Readonly<Record<string, OptionDefinition>>;
type Values<D extends Definitions> = { readonly [Name in keyof D]?: OptionValue<D[Name]> };

const eventWords = ['eager', 'deferred', 'off'] as const;

const eventsSummaries: Readonly<Record<KindRole, string>> = {
  upstream: 'has no effect: it keeps nothing back',
  keeper: 'what it does at a free, so that another stream can have the memory',
  'pass-through': 'what it asks of the resources below at every free',
};

const eventsDefaults: Readonly<Record<KindRole, string>> = {
  upstream: 'none',
  keeper: 'eager',
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

/** Defines an upstream resource. */
export function defineUpstream<const D extends Definitions>(
  name: string,
  summary: string,
  options: D,
  create: (input: { readonly device: Device; readonly options: Values<D> }) => ReservingMemoryResource,
): ResourceKind {
  return { name, summary, role: 'upstream', options: { ...options, events: eventsOption('upstream') }, create };
}

/** Defines an adaptor. `eventsDefault` is for one that does otherwise than those of its role. */
export function defineAdaptor<const D extends Definitions>(
  name: string,
  role: 'keeper' | 'pass-through',
  summary: string,
  options: D,
  create: (input: KindArguments<Values<D & { events: EventsDefinition }>>) => MemoryResource,
  eventsDefault = eventsDefaults[role],
): ResourceKind {
  return { name, summary, role, options: { ...options, events: { ...eventsOption(role), default: eventsDefault } }, create };
}

/** The object without its undefined fields, for constructors whose fields may be left out but not be undefined. */
export function definedFields<T extends object>(fields: T): { [Name in keyof T]?: Exclude<T[Name], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as never;
}
