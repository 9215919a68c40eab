import { fileURLToPath } from 'node:url';
import { ownFile, packageRoot, packageVersion } from './root.js';

/** A registered symbol, so that every copy of cistern in the process has the same one. */
const copyOf = Symbol.for('cistern.copy');

/** `0.1.0 in /app/node_modules/cistern/`: one copy of cistern. */
let ownCopy: string | undefined;

/** Marks objects of a class for other copies of cistern in the process. */
export function markCopy(marked: { readonly prototype: object }): void {
  Object.defineProperty(marked.prototype, copyOf, { get: describeOwnCopy });
}

/**
 * A clause about an object that another copy of cistern made; an empty string for anything else.
 * Native handles and the order of streams belong to one copy, so the other cannot use the object.
 */
export function otherCopyHint(value: object): string {
  const copy: unknown = Reflect.get(value, copyOf);
  if (typeof copy !== 'string' || copy === describeOwnCopy()) return '';
  const advice = 'install one copy for both: a library declares cistern as a peer dependency';
  return ` of another copy of cistern (that copy is ${copy}, this one ${describeOwnCopy()}; ${advice})`;
}

function describeOwnCopy(): string {
  ownCopy ??= `${packageVersion()} in ${ownFile.startsWith('file:') ? fileURLToPath(packageRoot) : ownFile}`;
  return ownCopy;
}
