import { GiB, KiB, MiB } from '../basics/units.js';
import type { OptionType } from '../resource-kind.js';
import { checkSpecification } from './check-specification.js';
import { resourceKind } from './kinds-by-name.js';
import type { Specification, SpecificationValue } from './specification.js';

const sizeUnits = [
  ['TiB', 1024 * GiB],
  ['GiB', GiB],
  ['MiB', MiB],
  ['KiB', KiB],
] as const;

/**
 * The text of a specification in one canonical form: one space after a comma, the upstream first,
 * options in the order in which their kind lists them, sizes in the largest binary unit that makes
 * them whole. `parseSpecification` reads it back unchanged.
 * @throws SpecificationError with the path of the first error.
 */
export function formatSpecification(specification: Specification): string {
  return format(checkSpecification(specification));
}

function format({ kind, upstream, options = {} }: Specification): string {
  const texts = Object.entries(resourceKind(kind)?.options ?? {}).flatMap(([name, { type }]) => {
    const value = options[name];
    return value === undefined ? [] : [`${name}=${formatOptionValue(value, type)}`];
  });
  if (upstream !== undefined) texts.unshift(format(upstream));
  return texts.length === 0 ? kind : `${kind}(${texts.join(', ')})`;
}

function formatOptionValue(value: SpecificationValue, type: OptionType): string {
  if (typeof value === 'string') return /^[^\s,()"'\\]+$/.test(value) ? value : `"${value.replace(/["\\]/g, '\\$&')}"`;
  if (typeof value !== 'object') return type === 'size' ? formatSize(value as number) : String(value);
  return 'kind' in value ? format(value) : `[${value.map((size) => (typeof size === 'string' ? size : formatSize(size))).join(', ')}]`;
}

function formatSize(bytes: number): string {
  const unit = bytes === 0 ? undefined : sizeUnits.find(([, size]) => bytes % size === 0);
  return unit === undefined ? String(bytes) : `${bytes / unit[1]}${unit[0]}`;
}
