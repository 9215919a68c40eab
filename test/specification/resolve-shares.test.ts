import { expect, test } from 'vitest';
import { budgetBytes } from '../../src/budget/memory-budget.js';
import { Device } from '../../src/driver/device.js';
import { parseSpecification } from '../../src/specification/parse-specification.js';
import { resolveShares } from '../../src/specification/resolve-shares.js';
import '../../src/tools/every-kind.js';

const device = Device.get();

function optionsOf(text: string): unknown {
  return resolveShares(parseSpecification(text), device).options;
}

test.each([
  ['cuda', 'device'],
  ['pinned-host', 'pinned-host'],
] as const)('a share in a stack on %s is one of its memory', (leaf, kind) => {
  expect(optionsOf(`limiting(${leaf}, limitBytes=50%)`)).toEqual({ limitBytes: Math.floor(budgetBytes(kind, device) / 2) });
});

test('a share of memory that is not of the stack is left to the resource', () => {
  expect(optionsOf('spilling(cuda, host=pinned-host, folder=/tmp, hostBytes=50%)')).toMatchObject({ hostBytes: '50%' });
});
