import { readFileSync } from 'node:fs';
import { expect, test, vi } from 'vitest';
import { assertOptions, type OptionNames } from '../../src/basics/validation.js';
import {
  CudaMemoryResource,
  createResource,
  createResourceStack,
  Device,
  formatSpecification,
  type MemoryResource,
  type OptionType,
  parseSpecification,
  type ResourceKind,
  type Specification,
} from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { exampleOf } from '../support/kind-stacks.js';
import * as cistern from '../support/package.js';

vi.mock(import('../../src/basics/validation.js'), async (original) => {
  const validation = await original();
  return { ...validation, assertOptions: vi.fn(validation.assertOptions) };
});

const page = readFileSync(new URL('../../docs/adaptors.md', import.meta.url), 'utf8');

test.each(everyKind.map((kind) => [kind.name, kind] as const))('%s is created from its example', (name, kind) => {
  expect(formatSpecification(parseSpecification(kind.example))).toBe(kind.example);
  expect(parseSpecification(kind.example).kind).toBe(name);
  using stack = createResourceStack(exampleOf(kind));
  const type = stack.resource.constructor;
  const words = name.replace(/(?:^|-)(.)/g, (_, letter: string) => letter.toUpperCase());
  expect([`${words}MemoryResource`, `${words}ResourceAdaptor`]).toContain(type.name);
  expect(cistern).toHaveProperty(type.name, type);
  if (kind.role !== 'upstream') expect(page, 'docs/adaptors.md has it in a table').toContain(`\n| \`${name}\` | \`${type.name}\` | `);
});

/** Values that a specification refuses for an option of a type; constructors refuse them too. */
const wrongValues: Readonly<Record<OptionType, readonly unknown[]>> = {
  size: [-1, 0.5, Number.NaN, 'x', null],
  sizes: ['x', [-1], 5, null],
  integer: [0.5, '3', null],
  number: [Number.NaN, 'x', null],
  boolean: ['yes', 1, null],
  word: ['nothing', 5],
  text: [5, null],
  resource: [5, null],
};

test.each(everyKind.map((kind) => [kind.name, kind] as const))('the constructor of %s refuses what a specification does', (_, kind) => {
  const upstream = new CudaMemoryResource();
  const { options: given = {} } = exampleOf(kind);
  const isResource = (name: string) => kind.options[name]?.type === 'resource';
  const valid = Object.fromEntries(
    Object.entries(given).map(([name, value]) => [name, isResource(name) ? new CudaMemoryResource() : value]),
  );
  for (const [option, { type }] of Object.entries(kind.options)) {
    // A path of a plan is read before there is a constructor to refuse it.
    if (option === 'plan') continue;
    for (const wrong of wrongValues[type]) {
      const code = expect.stringMatching(/^ERR_(INVALID_ARG_(TYPE|VALUE)|OUT_OF_RANGE)$/);
      const options = { ...valid, [option]: wrong } as never;
      const create = () => kind.create({ upstream, device: Device.get(), upstreamOf: () => upstream, options });
      expect(create, `${option}: ${String(wrong)}`).toThrow(expect.objectContaining({ code }));
    }
  }
});

test('no two kinds have the same name', () => {
  expect(new Set(everyKind.map(({ name }) => name)).size).toBe(everyKind.length);
});

/** Options of constructors that no specification has: functions, objects, and what a kind itself gives. */
const onlyForPrograms: Readonly<Record<string, readonly string[]>> = {
  reclaiming: ['onOutOfMemory', 'stages'],
  planned: ['planner', 'planningMilliseconds', 'recordedPasses', 'repeats', 'replanAfter'],
  // Captures are made by calls, so a plan of them is too.
  graph: ['deviations', 'planner', 'planningMilliseconds'],
  sanitizing: ['onViolation'],
  prefetch: ['location'],
  logging: ['stream'],
  recording: ['recording'],
};

/** Further examples, for constructors whose options depend on one of them. */
const furtherExamples: Readonly<Record<string, readonly string[]>> = {
  rounding: ['rounding(cuda, kind=divisions, divisions=2)', 'rounding(cuda, kind=top-bits)'],
};

/** The names that a kind's constructor takes: its parameters, and the options that it checks. */
function namesOfConstructor(kind: ResourceKind, { upstream, options = {} }: Specification): Set<string> {
  const devices = Array.from({ length: Device.count() }, (_, index) => Device.get(index));
  const below = devices.map((device) => createResource(upstream ?? { kind: 'cuda' }, { device }));
  const upstreamOf = ({ index }: Device) => below[index];
  const isResource = (value: unknown) => typeof value === 'object' && value !== null && 'kind' in value;
  const values = Object.entries(options).map(([name, value]) => [
    name,
    isResource(value) ? createResource(value as unknown as Specification) : value,
  ]);
  vi.mocked(assertOptions).mockClear();
  const input = { upstream: below[0], upstreamOf, device: devices[0], options: Object.fromEntries(values) };
  using resource = kind.create(input as never) as MemoryResource & Disposable;
  // Resources that the constructor makes check theirs later.
  const checked = vi.mocked(assertOptions).mock.calls[0]?.[1] as OptionNames;
  const [, parameters = ''] = /\bconstructor\(([^)]*?)\boptions\b/.exec(String(resource.constructor)) as RegExpExecArray;
  const names = new Set([...checked.keys(), ...(parameters.match(/\w+/g) ?? [])]);
  for (const given of ['device', 'upstream', 'resources']) names.delete(given);
  return names;
}

test.each(everyKind.map((kind) => [kind.name, kind] as const))('%s has the options of its constructor', (name, kind) => {
  const examples = [exampleOf(kind), ...(furtherExamples[name] ?? []).map((text) => parseSpecification(text))];
  const names = examples.flatMap((example) => [...namesOfConstructor(kind, example)]);
  expect(new Set([...Object.keys(kind.options), ...(onlyForPrograms[name] ?? [])])).toEqual(new Set(names));
});
