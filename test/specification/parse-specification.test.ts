import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  formatSpecification,
  GiB,
  MiB,
  parseSpecification,
  resourceKinds,
  type Specification,
  SpecificationError,
} from '../../src/index.js';

/** The specification without the places in the text. */
function bare(specification: Specification): Specification {
  const { range: _, upstream, options, ...rest } = specification;
  return { ...rest, ...(upstream === undefined ? {} : { upstream: bare(upstream) }), options: options ?? {} };
}

function errorOf(text: string): SpecificationError {
  try {
    parseSpecification(text);
  } catch (error) {
    expect(error).toBeInstanceOf(SpecificationError);
    expect(error).toMatchObject({ code: 'ERR_CISTERN_INVALID_SPECIFICATION', specification: text });
    return error as SpecificationError;
  }
  throw new Error(`${text} was accepted`);
}

describe('a specification', () => {
  test('reads inside out, as one would construct it', () => {
    expect(bare(parseSpecification('limiting(pool(cuda-async, initial=1GiB, events=deferred), limit=8GiB)'))).toEqual({
      kind: 'limiting',
      upstream: {
        kind: 'pool',
        upstream: { kind: 'cuda-async', options: {} },
        options: { initial: GiB, events: 'deferred' },
      },
      options: { limit: 8 * GiB },
    });
  });

  test.each([
    ['  pool ( cuda( ) ,initial = 1.5 GiB )  ', 'pool(cuda, initial=1536MiB)'],
    ['pool(events=off, cuda, initial=1000)', 'pool(cuda, initial=1000, events=off)'],
    ['pool(cuda, initial=0)', 'pool(cuda, initial=0)'],
    ['cuda(events=eager)', 'cuda(events=eager)'],
    ['logging(host, file=/tmp/a-b.csv)', 'logging(host, file=/tmp/a-b.csv)'],
    ["logging(host, file='a, (b)')", 'logging(host, file="a, (b)")'],
    ['logging(host, file="a\\"b\\\\c")', 'logging(host, file="a\\"b\\\\c")'],
    ['logging(host, file=a b )', 'logging(host, file="a b")'],
    ['statistics(\n  pool(\n    cuda\n  )\n)', 'statistics(pool(cuda))'],
  ])('%j is the same as %j', (text, canonical) => {
    const specification = parseSpecification(text);
    expect(formatSpecification(specification)).toBe(canonical);
    expect(bare(parseSpecification(canonical))).toEqual(bare(specification));
  });

  test('accepts the option events on every kind', () => {
    for (const { name, role, options } of resourceKinds) {
      const required = Object.entries(options).filter(([, { required }]) => required === true);
      const values = required.map(([option, { type }]) => `${option}=${type === 'size' ? '1MiB' : 'x'}`);
      const parts = [...(role === 'upstream' ? [] : ['host']), ...values, 'events=off'];
      expect(parseSpecification(`${name}(${parts.join(', ')})`).options).toMatchObject({ events: 'off' });
    }
  });

  test('knows where the text says it', () => {
    const text = 'limiting( pool(cuda), limit=8GiB)';
    const { range, upstream } = parseSpecification(text);
    expect(text.slice(...(range as [number, number]))).toBe(text);
    expect(text.slice(...((upstream as Specification).range as [number, number]))).toBe('pool(cuda)');
  });

  test('comes back from its canonical text as it was', () => {
    const sizes = fc.oneof(
      fc.nat(),
      fc.nat({ max: 1000 }).map((count) => count * MiB),
      fc.maxSafeNat(),
    );
    const events = fc.constantFrom('eager', 'deferred', 'off');
    const { specification } = fc.letrec<{ specification: Specification }>((tie) => ({
      specification: fc.oneof(
        { maxDepth: 8 },
        fc.record({ kind: fc.constantFrom('cuda', 'managed', 'host'), options: fc.record({ events }, { requiredKeys: [] }) }),
        fc.record({
          kind: fc.constant('cuda-async'),
          options: fc.record({ initial: sizes, 'release-threshold': sizes }, { requiredKeys: [] }),
        }),
        fc.record({
          kind: fc.constant('pool'),
          upstream: tie('specification'),
          options: fc.record({ initial: sizes, max: sizes, events }, { requiredKeys: [] }),
        }),
        fc.record({ kind: fc.constant('limiting'), upstream: tie('specification'), options: fc.record({ limit: sizes }) }),
        fc.record({
          kind: fc.constant('logging'),
          upstream: tie('specification'),
          options: fc.record({ file: fc.string({ unit: 'grapheme' }) }),
        }),
      ) as fc.Arbitrary<Specification>,
    }));
    fc.assert(
      fc.property(specification, (original) => {
        const text = formatSpecification(original);
        const parsed = parseSpecification(text);
        expect(bare(parsed)).toEqual(original);
        expect(formatSpecification(parsed)).toBe(text);
      }),
    );
  });
});

describe('a wrong specification', () => {
  const kinds = 'kinds: cuda, managed, cuda-async, pinned-host, host, pool, limiting, statistics, logging';

  test.each([
    ['', 0, 1, `a resource is expected here; ${kinds}`],
    ['   ', 3, 1, `a resource is expected here; ${kinds}`],
    ['poool(cuda)', 0, 5, `there is no resource kind "poool", did you mean pool?; ${kinds}`],
    ['pool(cuda-asnyc)', 5, 10, `there is no resource kind "cuda-asnyc", did you mean cuda-async?; ${kinds}`],
    ['xyzzy', 0, 5, `there is no resource kind "xyzzy"; ${kinds}`],
    ['pool(cuda, inital=1GiB)', 11, 6, 'there is no option of pool "inital", did you mean initial?; options: initial, max, events'],
    ['pool(cuda, constructor=1)', 11, 11, 'there is no option of pool "constructor"; options: initial, max, events'],
    ['pool(cuda, initial=1XB)', 19, 3, 'initial must be a size such as 512MiB, got "1XB"'],
    ['pool(cuda, initial=-1)', 19, 2, 'initial must be a size such as 512MiB, got "-1"'],
    ['pool(cuda, initial=)', 19, 1, 'initial must be a size such as 512MiB, got nothing'],
    ['pool(cuda, events=defered)', 18, 7, 'events must be one of eager, deferred, off, got "defered", did you mean deferred?'],
    ['pool(cuda, initial=1, initial=2)', 22, 7, 'the option initial is given twice'],
    ['pool(cuda, host)', 11, 4, 'pool takes one upstream resource, and has it already'],
    ['pool(cuda, events)', 11, 6, 'an option of pool is expected here, such as events=value; options: initial, max, events'],
    ['pool(initial, cuda)', 5, 7, 'an option of pool is expected here, such as initial=value; options: initial, max, events'],
    ['cuda(host)', 5, 4, 'an option of cuda is expected here; options: events'],
    ['pool', 0, 4, 'pool needs an upstream resource, such as pool(cuda)'],
    ['limiting(pool(initial=1), limit=5)', 9, 4, 'pool needs an upstream resource, such as pool(cuda)'],
    ['limiting(cuda)', 0, 8, 'limiting needs the option limit=size'],
    ['pool(cuda', 4, 1, 'this parenthesis is not closed'],
    ['pool(cuda,)', 10, 1, 'an argument is expected after the comma'],
    ['pool(cuda initial=1)', 10, 1, 'a comma or a closing parenthesis is expected here'],
    ['pool(cuda))', 10, 1, 'there is more text after the resource'],
    ['logging(cuda, file="x)', 19, 1, 'this quotation does not end'],
    ['logging(cuda, file="x\\', 19, 1, 'this quotation does not end'],
    [`${'pool('.repeat(100)}cuda`, 320, 4, 'there are more than 64 resources within each other'],
  ])('%j is pointed at from %i over %i', (text, position, length, fault) => {
    const error = errorOf(text);
    expect(error.message.split('\n')[0]).toBe(fault);
    expect([error.position, error.length]).toEqual([position, length]);
  });

  test('is shown with carets under the fault', () => {
    expect(errorOf('limiting(pool(cuda,\n\tevents=lazy), limit=8GiB)').message).toBe(
      [
        'events must be one of eager, deferred, off, got "lazy"',
        '  limiting(pool(cuda,  events=lazy), limit=8GiB)',
        '                              ^^^^',
      ].join('\n'),
    );
  });

  test('comes with the words that would have been right', () => {
    expect(errorOf('pool(cuda, events=lazy)').expected).toEqual(['eager', 'deferred', 'off']);
    expect(errorOf('nothing').expected).toEqual(resourceKinds.map(({ name }) => name));
  });

  test('is refused whatever it is, and never with another error', () => {
    const words = fc.constantFrom(
      'pool',
      'cuda',
      'limiting',
      '(',
      ')',
      ',',
      '=',
      'limit',
      'initial',
      'events',
      '1GiB',
      'off',
      '"',
      '\\',
      ' ',
      'é',
      '__proto__',
    );
    fc.assert(
      fc.property(
        fc.oneof(
          fc.array(words, { maxLength: 14 }).map((parts) => parts.join('')),
          fc.string(),
        ),
        (text) => {
          try {
            const { range } = parseSpecification(text);
            expect(range?.[1]).toBeLessThanOrEqual(text.length);
          } catch (error) {
            expect(error).toBeInstanceOf(SpecificationError);
            expect((error as SpecificationError).position).toBeLessThanOrEqual(text.length);
          }
        },
      ),
      { numRuns: 2000 },
    );
  });

  test('is refused where it is no text', () => {
    expect(() => parseSpecification(5 as unknown as string)).toThrow('specification must be a string, got 5');
  });
});

describe('a specification written by hand', () => {
  test.each<[unknown, string]>([
    [null, 'specification must be an object with a kind, got null'],
    [{ kind: 7 }, 'specification must be an object with a kind, got an instance of Object'],
    [{ kind: 'pool', upstream: 'cuda' }, 'specification must be an object with a kind, got "cuda"'],
    [{ kind: 'cuda', options: 3 }, 'the options of cuda must be an object, got 3'],
    [{ kind: 'cuda', options: { events: null } }, 'the option events of cuda cannot be null'],
  ])('%j is refused', (value, message) => {
    expect(() => formatSpecification(value as Specification)).toThrow(message);
  });

  test('may not hold itself', () => {
    const cycle = { kind: 'pool', upstream: undefined as unknown };
    cycle.upstream = cycle;
    expect(() => formatSpecification(cycle as Specification)).toThrow('at most 64 resources within each other');
  });
});
