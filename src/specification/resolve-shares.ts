import { parseShare, shareOf } from '../basics/units.js';
import { budgetBytes } from '../budget/memory-budget.js';
import type { Device, MemoryKind } from '../driver/device.js';
import type { OptionDefinition } from '../resource-kind.js';
import { resourceKind } from './kinds-by-name.js';
import type { Specification, SpecificationValue } from './specification.js';

/**
 * A checked specification with every share, such as `50%`, replaced by that share of what the process may use of
 * the memory that the stack is built on, in bytes.
 */
export function resolveShares(specification: Specification, device: Device): Specification {
  const { kind, upstream, options = {} } = specification;
  const definitions = resourceKind(kind)?.options ?? {};
  const memoryKind = memoryKindOf(specification);
  const resolved = Object.entries(options).map(([name, value]) => [name, resolveValue(value, definitions[name], memoryKind, device)]);
  return {
    ...specification,
    ...(upstream === undefined ? {} : { upstream: resolveShares(upstream, device) }),
    options: Object.fromEntries(resolved) as Record<string, SpecificationValue>,
  };
}

/** The kind of memory of the leaf. */
function memoryKindOf({ kind, upstream }: Specification): MemoryKind {
  if (upstream !== undefined) return memoryKindOf(upstream);
  if (kind.startsWith('pinned')) return 'pinned-host';
  if (kind.startsWith('managed')) return 'managed';
  return kind === 'host' ? 'host' : 'device';
}

function resolveValue(
  value: SpecificationValue,
  option: OptionDefinition | undefined,
  memoryKind: MemoryKind,
  device: Device,
): SpecificationValue {
  if (typeof value === 'string') return option?.type === 'size' && !option.takesShare ? bytesOf(value, memoryKind, device) : value;
  if (typeof value !== 'object') return value;
  if ('kind' in value) return resolveShares(value, device);
  return value.map((size) => (typeof size === 'string' ? bytesOf(size, memoryKind, device) : size));
}

function bytesOf(share: string, memoryKind: MemoryKind, device: Device): number {
  return shareOf(budgetBytes(memoryKind, device), parseShare(share) as number);
}
