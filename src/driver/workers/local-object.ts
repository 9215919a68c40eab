/**
 * Objects bound to this environment cannot be cloned, but can be inspected.
 */
import { formatPointer } from '../../basics/errors.js';

/** The name of the method with which `console.log` and `util.inspect` show an object. */
export const inspected: unique symbol = Symbol.for('nodejs.util.inspect.custom');

/** What Node passes to it: `util.inspect` is the last. */
export type Inspection = readonly [depth: number, options: object, inspect: (value: unknown, options: object) => string];

/** An object that is shown as text without quotes. */
class Plain {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  [inspected](): string {
    return this.#text;
  }
}

/**
 * The value of a property that makes an object refuse to be cloned: see {@link refuseCloning}. The message of the
 * error is this value, followed by "could not be cloned".
 */
export const cannotBeCloned: unique symbol = Symbol('an object of cistern');

/** Replaced at the first object, so that importing cistern does not load `node:worker_threads`. */
let refuse = (object: object): void => {
  const { markAsUncloneable } = (
    Number.parseInt(process.versions.node, 10) < 22 ? {} : process.getBuiltinModule('node:worker_threads')
  ) as { readonly markAsUncloneable?: (object: object) => void };
  refuse =
    markAsUncloneable ??
    ((each: { cannotBeCloned?: symbol }) => {
      each.cannotBeCloned = cannotBeCloned;
    });
  refuse(object);
};

/**
 * Makes `structuredClone` and `postMessage` throw a `DataCloneError` for an object, because a clone
 * would not have the native state. Before Node 22.10, the only way is a property that cannot be
 * cloned. A class with many objects declares such a property itself, which takes no time: `readonly
 * cannotBeCloned = cannotBeCloned`.
 */
export function refuseCloning(object: object): void {
  refuse(object);
}

/**
 * Shows an object as the name of its class and some fields, without those that are undefined, and without
 * `isDisposed` before it is. Must not need the driver, so that an object can be inspected in any state.
 */
export function inspectObject(object: object, fields: object, [depth, options, inspect]: Inspection): string {
  const name = object.constructor.name;
  if (depth < 0) return `[${name}]`;
  const shown = Object.entries(fields).filter(([field, value]) => value !== undefined && !(field === 'isDisposed' && value === false));
  return `${name} ${inspect(Object.fromEntries(shown), options)}`;
}

/** An object that shows a pointer in hexadecimal. */
export function inspectedPointer(pointer: number): object {
  return new Plain(formatPointer(pointer));
}
