/** What the objects have in common that stand for something of this environment: they cannot be cloned, and can be looked at. */
import * as workerThreads from 'node:worker_threads';
import { formatPointer } from '../errors.js';

/** Node's name of the method by which `console.log` and `util.inspect` show an object. */
export const inspected: unique symbol = Symbol.for('nodejs.util.inspect.custom');

/** What Node hands on of the options of `util.inspect`. */
export type InspectionOptions = object;

/** What Node hands to the method besides the depth and the options: `util.inspect`. */
export type Inspect = (value: unknown, options: InspectionOptions) => string;

/** As a text without quotes. */
class Plain {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  [inspected](): string {
    return this.#text;
  }
}

function cannotBeCloned(): void {}

const { markAsUncloneable } = workerThreads as { readonly markAsUncloneable?: (object: object) => void };

/**
 * Makes `structuredClone` and `postMessage` throw a `DataCloneError` for an object, whose clone would have none of what it stands for. Before Node
 * 22.10 the object gets a property for it that cannot be cloned, since there is no other way.
 */
export function refuseCloning(object: object): void {
  if (markAsUncloneable === undefined) (object as { cannotBeCloned?: () => void }).cannotBeCloned = cannotBeCloned;
  else markAsUncloneable(object);
}

/**
 * What an object is shown as: the name of its class and some fields, without those that are undefined. Nothing of it may need the driver, so
 * that whatever state an object is in, it can be looked at.
 */
export function inspectObject(object: object, fields: object, depth: number, options: InspectionOptions, inspect: Inspect): string {
  const name = object.constructor.name;
  if (depth < 0) return `[${name}]`;
  const shown = Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
  return `${name} ${inspect(shown, options)}`;
}

/** A pointer, to be shown as people know it. */
export function inspectedPointer(pointer: number): object {
  return new Plain(formatPointer(pointer));
}

/** `true`, or nothing to show. */
export function inspectedDisposal(isDisposed: boolean): true | undefined {
  return isDisposed ? true : undefined;
}
