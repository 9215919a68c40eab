import { formatValue } from '../basics/errors.js';
import { suggestion } from '../basics/nearest-word.js';
import { PathPlace, type Place } from './place.js';
import type { Specification, SpecificationValue } from './specification.js';
import { checkComplete, checkDepth, checkValue, findKind, findOption } from './specification-rules.js';

/**
 * The members of a resource. `range`, which `parseSpecification` adds when it reads text, is also
 * accepted.
 */
const keys: readonly string[] = ['kind', 'upstream', 'options'];

/**
 * Checks an object, such as one read from JSON, against the known kinds.
 * @returns the same object without undefined members, with every size in bytes
 * @throws SpecificationError with the path of the first error.
 */
export function checkSpecification(value: unknown): Specification {
  return checkResource(value, new PathPlace(), []);
}

/** @param around the objects that hold this one, outermost first */
function checkResource(value: unknown, place: Place, around: readonly unknown[]): Specification {
  if (!isObject(value)) place.fail(`a resource must be an object with a kind, such as {"kind": "cuda"}, got ${formatValue(value)}`);
  if (around.includes(value)) place.fail('a resource cannot contain itself');
  checkDepth(around.length + 1, place);
  const kind = findKind(value['kind'], place.at('kind'));
  for (const key of Object.keys(value)) {
    if (keys.includes(key) || key === 'range') continue;
    const hint = Object.hasOwn(kind.options, key) ? `; ${key} is an option of ${kind.name}, and belongs in options` : suggestion(key, keys);
    place.at(key).fail(`a resource has no member ${formatValue(key)}${hint}; members: ${keys.join(', ')}`, keys);
  }

  const { upstream, options = {} } = value as { readonly upstream?: unknown; readonly options?: unknown };
  const optionsPlace: Place = place.at('options');
  if (kind.role === 'upstream' && upstream !== undefined) place.at('upstream').fail(`${kind.name} takes no upstream resource`);
  if (!isObject(options)) optionsPlace.fail(`options must be an object, got ${formatValue(options)}`);
  const within = [...around, value];
  const checkedUpstream = upstream === undefined ? undefined : checkResource(upstream, place.at('upstream'), within);
  const checkedOptions: Record<string, SpecificationValue> = {};
  for (const [name, option] of Object.entries(options)) {
    const at = optionsPlace.at(name);
    const definition = findOption(kind, name, at);
    if (option === undefined) continue;
    checkedOptions[name] = definition.type === 'resource' ? checkResource(option, at, within) : checkValue(definition, name, option, at);
  }
  const checked = {
    kind: kind.name,
    ...(checkedUpstream === undefined ? {} : { upstream: checkedUpstream }),
    options: checkedOptions,
  };
  checkComplete(kind, checked, place);
  return checked;
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
