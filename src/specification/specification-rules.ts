/**
 * The rules of a valid specification, in either form. Each rule gets the place that its error
 * points at.
 */

import { formatValue } from '../basics/errors.js';
import { suggestion } from '../basics/nearest-word.js';
import { bytesOf, parseShare, sizeMeant } from '../basics/units.js';
import type { OptionDefinition, ResourceKind } from '../resource-kind.js';
import { kindNames, resourceKind } from './kinds-by-name.js';
import type { Place } from './place.js';
import { maximumDepth, type Specification, type SpecificationValue } from './specification.js';

/** The kind with a name. */
export function findKind(name: unknown, place: Place): ResourceKind {
  const kinds = `kinds: ${kindNames.join(', ')}`;
  if (name === undefined || name === '') place.fail(`a resource kind is expected here; ${kinds}`, kindNames);
  const kind = typeof name === 'string' ? resourceKind(name) : undefined;
  if (kind === undefined) {
    place.fail(`there is no resource kind ${formatValue(name)}${suggestion(name, kindNames)}; ${kinds}`, kindNames);
  }
  return kind;
}

/** The definition of an option. */
export function findOption(kind: ResourceKind, name: string, place: Place): OptionDefinition {
  const definition = Object.hasOwn(kind.options, name) ? kind.options[name] : undefined;
  if (definition !== undefined) return definition;
  const names = Object.keys(kind.options);
  place.fail(`there is no option of ${kind.name} ${formatValue(name)}${suggestion(name, names)}; ${describeOptions(kind)}`, names);
}

/** The names of a kind's options, for an error. */
export function describeOptions({ name, options }: ResourceKind): string {
  const names = Object.keys(options);
  return names.length === 0 ? `${name} has no options` : `options: ${names.join(', ')}`;
}

/** The value of an option that is not a resource, with sizes in bytes or as a share. */
export function checkValue(
  definition: Pick<OptionDefinition, 'type' | 'words'>,
  name: string,
  value: unknown,
  place: Place,
): SpecificationValue {
  if (definition.type === 'sizes' && Array.isArray(value) && value.length > 0) {
    return value.map((item, i) => checkValue({ type: 'size' }, `an item of ${name}`, item, place.at(i)) as number | string);
  }
  const checked = readValue(definition, value);
  if (checked !== undefined) return checked;
  const { words = [] } = definition;
  const found = value === undefined ? 'nothing' : formatValue(value);
  const meant = definition.type === 'size' && typeof value === 'string' ? sizeMeant(value) : undefined;
  place.fail(`${name} must be ${describeValue(definition)}, got ${found}${suggestion(meant ?? value, meant ? [meant] : words)}`, words);
}

/** Checks that a resource has everything that its kind needs. */
export function checkComplete(kind: ResourceKind, { upstream, options }: Specification, place: Place): void {
  if (kind.role !== 'upstream' && upstream === undefined) {
    place.at('upstream').fail(`${kind.name} needs an upstream resource, such as cuda`, kindNames);
  }
  for (const [name, definition] of Object.entries(kind.options)) {
    if (definition.required === true && options?.[name] === undefined) {
      place
        .at('options')
        .at(name)
        .fail(`${kind.name} needs the option ${name} (${describeValue(definition)}): ${definition.summary}`, [name]);
    }
  }
}

/** Checks that resources are not nested too deeply. */
export function checkDepth(depth: number, place: Place): void {
  if (depth > maximumDepth) place.fail(`more than ${maximumDepth} resources are nested in each other`);
}

/**
 * A value as the resource's constructor gets it, or `undefined` if the option does not accept it.
 */
function readValue({ type, words }: Pick<OptionDefinition, 'type' | 'words'>, value: unknown): SpecificationValue | undefined {
  switch (type) {
    case 'size':
      if (typeof value === 'string') return bytesOf(value) ?? shareText(value);
      return Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : undefined;
    case 'integer':
      return Number.isSafeInteger(value) ? (value as number) : undefined;
    case 'number':
      return Number.isFinite(value) ? (value as number) : undefined;
    case 'boolean':
      return typeof value === 'boolean' ? value : undefined;
    case 'word':
      return words?.find((word) => word === value);
    case 'text':
      return typeof value === 'string' ? value : undefined;
    case 'sizes':
    case 'resource':
      return undefined;
  }
}

/**
 * A share of the device's memory in canonical form, such as `12.5%`; its bytes depend on the
 * device. The digits are kept as written, without insignificant zeros: a number could turn a small
 * share into an exponent.
 */
function shareText(text: string): string | undefined {
  if (parseShare(text) === undefined) return undefined;
  const [whole = '', fraction = ''] = text.slice(0, text.indexOf('%')).trim().split('.');
  let start = 0;
  while (start < whole.length - 1 && whole[start] === '0') start++;
  let end = fraction.length;
  while (fraction[end - 1] === '0') end--;
  return `${whole.slice(start)}${end === 0 ? '' : `.${fraction.slice(0, end)}`}%`;
}

/** A human-readable description of the option's values. */
function describeValue({ type, words }: Pick<OptionDefinition, 'type' | 'words'>): string {
  switch (type) {
    case 'size':
      return 'a size such as 512MiB or 50%';
    case 'sizes':
      return 'a list of sizes such as [64KiB, 1MiB]';
    case 'integer':
      return 'an integer';
    case 'number':
      return 'a number';
    case 'boolean':
      return 'true or false';
    case 'word':
      return `one of ${words?.join(', ')}`;
    case 'text':
      return 'text';
    case 'resource':
      return 'a resource';
  }
}
