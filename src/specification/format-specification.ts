import { ArgumentTypeError, formatValue } from '../errors.js';
import { GiB, KiB, MiB } from '../units.js';
import { resourceKind } from './resource-kinds.js';
import { maximumDepth, type OptionType, type Specification, type SpecificationValue } from './specification.js';

const sizeUnits = [
  ['TiB', 1024 * GiB],
  ['GiB', GiB],
  ['MiB', MiB],
  ['KiB', KiB],
] as const;

/**
 * The text of a specification in one canonical form: one space after a comma, the upstream first, options in the order in which their kind
 * lists them, sizes in the largest binary unit that makes them whole. `parseSpecification` reads it back as it was.
 *
 * Kinds and options that do not exist are written as they are.
 * @throws ArgumentTypeError for what is no specification.
 */
export function formatSpecification(specification: Specification): string {
  return format(specification, 1);
}

function format(specification: Specification, depth: number): string {
  if (typeof specification !== 'object' || specification === null || typeof specification.kind !== 'string') {
    throw new ArgumentTypeError(`specification must be an object with a kind, got ${formatValue(specification)}`);
  }
  // Also what ends the way through an object that holds itself.
  if (depth > maximumDepth) throw new ArgumentTypeError(`specification must hold at most ${maximumDepth} resources within each other`);
  const { kind, upstream, options = {} } = specification;
  if (typeof options !== 'object' || options === null) {
    throw new ArgumentTypeError(`the options of ${kind} must be an object, got ${formatValue(options)}`);
  }
  const definitions = resourceKind(kind)?.options ?? {};
  const known = Object.keys(definitions).filter((name) => options[name] !== undefined);
  const unknown = Object.keys(options).filter((name) => !Object.hasOwn(definitions, name));
  const texts = [...known, ...unknown].map((name) => {
    const value = formatOptionValue(options[name] as SpecificationValue, definitions[name]?.type, depth);
    if (value === undefined) throw new ArgumentTypeError(`the option ${name} of ${kind} cannot be ${formatValue(options[name])}`);
    return `${name}=${value}`;
  });
  if (upstream !== undefined) texts.unshift(format(upstream, depth + 1));
  return texts.length === 0 ? kind : `${kind}(${texts.join(', ')})`;
}

function formatOptionValue(value: SpecificationValue, type: OptionType | undefined, depth: number): string | undefined {
  if (typeof value === 'number') return type === 'size' ? formatSize(value) : String(value);
  if (typeof value === 'boolean') return String(value);
  if (typeof value === 'string') return /^[^\s,()"'\\]+$/.test(value) ? value : `"${value.replace(/["\\]/g, '\\$&')}"`;
  return typeof value === 'object' && value !== null ? format(value, depth + 1) : undefined;
}

function formatSize(bytes: number): string {
  const unit = bytes === 0 ? undefined : sizeUnits.find(([, size]) => bytes % size === 0);
  return unit === undefined ? String(bytes) : `${bytes / unit[1]}${unit[0]}`;
}
