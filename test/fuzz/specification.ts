/**
 * Fuzzes the specifications of resource stacks: any text or JSON is a specification, or a
 * `SpecificationError` that points into it.
 */
import assert from 'node:assert/strict';
import { SpecificationError } from '../../src/basics/errors.js';
import { checkSpecification } from '../../src/specification/check-specification.js';
import { formatSpecification } from '../../src/specification/format-specification.js';
import { parseSpecification } from '../../src/specification/parse-specification.js';
import type { Specification } from '../../src/specification/specification.js';
import { everyKind } from '../../src/tools/every-kind.js';

export const words: readonly string[] = [
  ...new Set(everyKind.flatMap(({ name, options }) => [name, ...Object.keys(options)])),
  ...new Set(everyKind.flatMap(({ options }) => Object.values(options).flatMap(({ words = [] }) => [...words]))),
  '512MiB',
  '1.5 GiB',
  '9007199254740991',
  '[64KiB, 1MiB]',
  'true',
  '1e300',
  '{"kind":"cuda"}',
  '"upstream":',
  '"options":{',
  '"__proto__":',
  '"constructor":{"name":',
  '00000000000000000000',
  '.000000000000000001%',
];

/** Whatever the input is; the names of all kinds are most of it. */
const longestMessage = 1500;

const decoder = new TextDecoder();

/** @throws AssertionError if a specification is mishandled. */
export function run(bytes: Uint8Array): void {
  const text = decoder.decode(bytes);
  checkText(text);
  const value = fromJson(text);
  if (value !== undefined) checkObject(value.value);
}

function checkText(text: string): void {
  const specification = orError(() => parseSpecification(text));
  if (specification instanceof SpecificationError) {
    const { position = -1, length = 0, path, specification: quoted } = specification;
    assert.equal(quoted, text);
    assert.equal(path, undefined);
    assert.ok(position >= 0 && position <= text.length, `position ${position} of ${text.length}`);
    // At the end of a text, a single caret points past it.
    assert.ok(length >= 1 && position + length <= Math.max(text.length, position + 1), `position ${position}, length ${length}`);
    return;
  }
  checkRanges(specification, 0, text.length);
  checkRoundTrip(specification);
}

function checkObject(value: unknown): void {
  const specification = orError(() => checkSpecification(value));
  if (specification instanceof SpecificationError) {
    assert.equal(typeof specification.path, 'string');
    assert.equal(specification.position, undefined);
  } else {
    checkRoundTrip(specification);
  }
}

function checkRoundTrip(specification: Specification): void {
  const expected = bare(specification);
  const text = formatSpecification(specification);
  assert.deepEqual(bare(parseSpecification(text)), expected, text);
  assert.equal(formatSpecification(parseSpecification(text)), text);
  assert.deepEqual(bare(checkSpecification(JSON.parse(JSON.stringify(specification)))), expected);
}

/** Resources lie within the resource that holds them. */
function checkRanges(specification: Specification, start: number, end: number): void {
  const [from, to] = specification.range as readonly [number, number];
  assert.ok(start <= from && from < to && to <= end, `${from} to ${to} within ${start} to ${end}`);
  for (const below of [specification.upstream, ...Object.values(specification.options ?? {})]) {
    if (typeof below === 'object' && 'kind' in below) checkRanges(below, from, to);
  }
}

/** Without the positions in the text; -0 and 0 are the same option value. */
function bare(specification: Specification): unknown {
  return JSON.parse(JSON.stringify(specification, (key, value: unknown) => (key === 'range' ? undefined : value)));
}

function orError<T>(act: () => T): T | SpecificationError {
  try {
    return act();
  } catch (error) {
    if (!(error instanceof SpecificationError)) throw error;
    assert.ok(error.message.length <= longestMessage, `a message of ${error.message.length} characters`);
    return error;
  }
}

function fromJson(text: string): { readonly value: unknown } | undefined {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return undefined;
  }
}
