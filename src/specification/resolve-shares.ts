import { parseShare, shareOf } from '../basics/units.js';
import type { Device } from '../driver/device.js';
import type { OptionType } from '../resource-kind.js';
import { resourceKind } from './kinds-by-name.js';
import type { Specification, SpecificationValue } from './specification.js';

/**
 * A checked specification with every share, such as `50%`, replaced by that share of a device's
 * total memory in bytes.
 */
export function resolveShares(specification: Specification, device: Device): Specification {
  const { kind, upstream, options = {} } = specification;
  const definitions = resourceKind(kind)?.options ?? {};
  const resolved = Object.entries(options).map(([name, value]) => [name, resolveValue(value, definitions[name]?.type, device)]);
  return {
    ...specification,
    ...(upstream === undefined ? {} : { upstream: resolveShares(upstream, device) }),
    options: Object.fromEntries(resolved) as Record<string, SpecificationValue>,
  };
}

function resolveValue(value: SpecificationValue, type: OptionType | undefined, device: Device): SpecificationValue {
  if (typeof value === 'string') return type === 'size' ? bytesOf(value, device) : value;
  if (typeof value !== 'object') return value;
  if ('kind' in value) return resolveShares(value, device);
  return value.map((size) => (typeof size === 'string' ? bytesOf(size, device) : size));
}

function bytesOf(share: string, device: Device): number {
  return shareOf(device.memoryInfo().totalBytes, parseShare(share) as number);
}
