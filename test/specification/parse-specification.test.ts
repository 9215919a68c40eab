import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  type BinningMemoryResource,
  createResourceStack,
  Device,
  formatSpecification,
  GiB,
  LimitingResourceAdaptor,
  MiB,
  parseSpecification,
  type Specification,
  SpecificationError,
} from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';

/** The specification without the positions in the text. */
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
  test('nests like the constructor calls', () => {
    expect(bare(parseSpecification('limiting(pool(cuda-async, initialBytes=1GiB, deallocationEvents=deferred), limitBytes=8GiB)'))).toEqual(
      {
        kind: 'limiting',
        upstream: {
          kind: 'pool',
          upstream: { kind: 'cuda-async', options: {} },
          options: { initialBytes: GiB, deallocationEvents: 'deferred' },
        },
        options: { limitBytes: 8 * GiB },
      },
    );
  });

  test.each([
    ['  pool ( cuda( ) ,initialBytes = 1.5 GiB )  ', 'pool(cuda, initialBytes=1536MiB)'],
    ['pool(deallocationEvents=off, cuda, initialBytes=1000)', 'pool(cuda, initialBytes=1000, deallocationEvents=off)'],
    ['pool(cuda, initialBytes=0)', 'pool(cuda, initialBytes=0)'],
    ['cuda-async( initialBytes=1 )', 'cuda-async(initialBytes=1)'],
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

  test('accepts the option deallocationEvents on every adaptor', () => {
    for (const { name, role, options } of everyKind) {
      if (role === 'upstream') continue;
      const required = Object.entries(options).filter(([, { required }]) => required === true);
      const examples = {
        size: '1MiB',
        sizes: '[1MiB]',
        integer: '1',
        number: '1',
        boolean: 'true',
        text: 'x',
        resource: 'host',
      };
      const values = required.map(([option, { type, words }]) => `${option}=${type === 'word' ? words?.[0] : examples[type]}`);
      const parts = ['host', ...values, 'deallocationEvents=off'];
      expect(parseSpecification(`${name}(${parts.join(', ')})`).options).toMatchObject({ deallocationEvents: 'off' });
    }
  });

  test('knows its position in the text', () => {
    const text = 'limiting( pool(cuda), limitBytes=8GiB)';
    const { range, upstream } = parseSpecification(text);
    expect(text.slice(...(range as [number, number]))).toBe(text);
    expect(text.slice(...((upstream as Specification).range as [number, number]))).toBe('pool(cuda)');
  });

  test('is read back unchanged from its canonical text', () => {
    const sizes = fc.oneof(
      fc.nat(),
      fc.nat({ max: 1000 }).map((count) => count * MiB),
      fc.maxSafeNat(),
    );
    const deallocationEvents = fc.constantFrom('eager', 'deferred', 'off');
    const { specification } = fc.letrec<{ specification: Specification }>((tie) => ({
      specification: fc.oneof(
        { maxDepth: 8 },
        fc.record({ kind: fc.constantFrom('cuda', 'managed', 'host'), options: fc.constant({}) }),
        fc.record({
          kind: fc.constant('cuda-async'),
          options: fc.record({ initialBytes: sizes, releaseThresholdBytes: sizes }, { requiredKeys: [] }),
        }),
        fc.record({
          kind: fc.constant('pool'),
          upstream: tie('specification'),
          options: fc.record({ initialBytes: sizes, maximumBytes: sizes, deallocationEvents }, { requiredKeys: [] }),
        }),
        fc.record({ kind: fc.constant('limiting'), upstream: tie('specification'), options: fc.record({ limitBytes: sizes }) }),
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
  const kinds = `kinds: ${everyKind.map(({ name }) => name).join(', ')}`;

  test.each([
    ['', 0, 1, `a resource kind is expected here; ${kinds}`],
    ['   ', 3, 1, `a resource kind is expected here; ${kinds}`],
    ['poool(cuda)', 0, 5, `there is no resource kind "poool", did you mean pool?; ${kinds}`],
    ['pool(cuda-asnyc)', 5, 10, `there is no resource kind "cuda-asnyc", did you mean cuda-async?; ${kinds}`],
    ['xyzzy', 0, 5, `there is no resource kind "xyzzy"; ${kinds}`],
    [
      'pool(cuda, inital=1GiB)',
      11,
      6,
      'there is no option of pool "inital", did you mean initialBytes?; options: initialBytes, maximumBytes, growth, name, idleMilliseconds, keepBytes, deallocationEvents',
    ],
    [
      'pool(cuda, constructor=1)',
      11,
      11,
      'there is no option of pool "constructor"; options: initialBytes, maximumBytes, growth, name, idleMilliseconds, keepBytes, deallocationEvents',
    ],
    ['pool(cuda, initialBytes=1XB)', 24, 3, 'initialBytes must be a size such as 512MiB or 50%, got "1XB"'],
    ['pool(cuda, initialBytes=2gib)', 24, 4, 'initialBytes must be a size such as 512MiB or 50%, got "2gib", did you mean 2GiB?'],
    ['pool(cuda, initialBytes=5m)', 24, 2, 'initialBytes must be a size such as 512MiB or 50%, got "5m", did you mean 5MiB?'],
    ['pool(cuda, initialBytes=-1)', 24, 2, 'initialBytes must be a size such as 512MiB or 50%, got "-1"'],
    ['pool(cuda, initialBytes=)', 24, 1, 'initialBytes must be a size such as 512MiB or 50%, got nothing'],
    [
      'pool(cuda, deallocationEvents=defered)',
      30,
      7,
      'deallocationEvents must be one of eager, deferred, off, got "defered", did you mean deferred?',
    ],
    ['pool(cuda, initialBytes=1, initialBytes=2)', 27, 12, 'the option initialBytes is given twice'],
    ['pool(cuda, host)', 11, 4, 'pool takes one upstream resource, and already has it'],
    [
      'pool(cuda, deallocationEvents)',
      11,
      18,
      'an option of pool is expected here, such as deallocationEvents=value; options: initialBytes, maximumBytes, growth, name, idleMilliseconds, keepBytes, deallocationEvents',
    ],
    [
      'pool(initialBytes, cuda)',
      5,
      12,
      'an option of pool is expected here, such as initialBytes=value; options: initialBytes, maximumBytes, growth, name, idleMilliseconds, keepBytes, deallocationEvents',
    ],
    ['cuda(host)', 5, 4, 'no argument is expected here: cuda has no options'],
    ['cuda(events=off)', 5, 6, 'there is no option of cuda "events"; cuda has no options'],
    ['virtual(host)', 8, 4, 'an option of virtual is expected here; options: reservationBytes, tag'],
    ['pool', 0, 4, 'pool needs an upstream resource, such as cuda'],
    ['limiting(pool(initialBytes=1), limitBytes=5)', 9, 4, 'pool needs an upstream resource, such as cuda'],
    ['limiting(cuda)', 0, 8, 'limiting needs the option limitBytes (a size such as 512MiB or 50%): the most bytes that may be live'],
    ['planned(cuda)', 0, 7, 'planned needs the option plan (text): the file with the plan, made by `cistern plan LOG -o FILE`'],
    ['pool(cuda', 4, 1, 'this parenthesis is not closed'],
    ['pool(cuda,)', 10, 1, 'an argument is expected after the comma'],
    ['pool(cuda initialBytes=1)', 10, 1, 'a comma or a closing parenthesis is expected here'],
    ['pool(cuda))', 10, 1, 'there is more text after the resource'],
    ['logging(cuda, file="x)', 19, 1, 'this quotation is not closed'],
    ['logging(cuda, file="x\\', 19, 1, 'this quotation is not closed'],
    [`${'pool('.repeat(100)}cuda`, 320, 4, 'more than 64 resources are nested in each other'],
  ])('%j is pointed at from %i over %i', (text, position, length, fault) => {
    const error = errorOf(text);
    expect(error.message.split('\n')[0]).toBe(fault);
    expect([error.position, error.length]).toEqual([position, length]);
  });

  test.each([
    ['pool(cuda, initial=1GiB)', 'initialBytes'],
    ['pool(cuda, max=1GiB)', 'maximumBytes'],
    ['pool(cuda, events=off)', 'deallocationEvents'],
    ['limiting(cuda, limit=1GiB)', 'limitBytes'],
    ['binning(cuda, min=10)', 'minimumExponent'],
    ['cuda-async(release-threshold=1MiB)', 'releaseThresholdBytes'],
    ['aligned(cuda, threshold=1MiB)', 'alignmentThresholdBytes'],
    ['arena(cuda, dump-file=x)', 'dumpFile'],
    ['tracking(cuda, stacks=true)', 'captureStacks'],
    ['rounding(cuda, top-bits=4)', 'bits'],
  ])('%s: did you mean %s?', (text, meant) => {
    expect(errorOf(text).message.split('\n')[0]).toContain(`, did you mean ${meant}?; options: `);
  });

  test('is shown with carets under the fault', () => {
    expect(errorOf('limiting(pool(cuda,\n\tdeallocationEvents=lazy), limitBytes=8GiB)').message).toBe(
      [
        'deallocationEvents must be one of eager, deferred, off, got "lazy"',
        '  limiting(pool(cuda,  deallocationEvents=lazy), limitBytes=8GiB)',
        '                                          ^^^^',
      ].join('\n'),
    );
  });

  test('is shown around the fault only if it is long', () => {
    const many = 'pool('.repeat(30);
    const { message, specification } = errorOf(`${many}nothing, ${'x'.repeat(100_000)}`);
    const [, shown = '', carets = ''] = message.split('\n');
    expect(shown).toMatch(/^ {2}…(\w*\()+nothing, x+…$/);
    expect(shown.length).toBeLessThan(170);
    expect(shown.slice(carets.indexOf('^'), carets.lastIndexOf('^') + 1)).toBe('nothing');
    expect(specification?.length).toBeGreaterThan(100_000);
    const whole = errorOf(`cuda${'x'.repeat(100_000)}`).message;
    expect(whole.length).toBeLessThan(1000);
    expect(whole).toMatch(/^ {2}\^{160}$/m);
  });

  test('lists the words that would have been right', () => {
    expect(errorOf('pool(cuda, deallocationEvents=lazy)').expected).toEqual(['eager', 'deferred', 'off']);
    expect(errorOf('nothing').expected).toEqual(everyKind.map(({ name }) => name));
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
      'limitBytes',
      'initialBytes',
      'deallocationEvents',
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
});

describe('a specification as an object', () => {
  /** The error for a value that came from JSON. */
  function faultOf(value: unknown): SpecificationError {
    try {
      parseSpecification(value as Specification);
    } catch (error) {
      expect(error).toBeInstanceOf(SpecificationError);
      expect(error).toMatchObject({ specification: undefined, position: undefined, length: undefined });
      return error as SpecificationError;
    }
    throw new Error(`${JSON.stringify(value)} was accepted`);
  }

  test('means the same as its text', () => {
    const json = `{
      "kind": "limiting",
      "upstream": { "kind": "pool", "upstream": { "kind": "cuda-async" }, "options": { "initialBytes": "1.5 GiB", "maximumBytes": 8589934592, "deallocationEvents": "off" } },
      "options": { "limitBytes": "8GiB" }
    }`;
    const text = 'limiting(pool(cuda-async, initialBytes=1536MiB, maximumBytes=8GiB, deallocationEvents=off), limitBytes=8GiB)';
    expect(parseSpecification(JSON.parse(json))).toEqual(bare(parseSpecification(text)));
    expect(formatSpecification(JSON.parse(json))).toBe(text);
  });

  test('may have undefined members, and those that the parser of text adds', () => {
    expect(
      parseSpecification({ kind: 'virtual', upstream: undefined, options: { reservationBytes: undefined } } as unknown as Specification),
    ).toEqual({
      kind: 'virtual',
      options: {},
    });
    expect(parseSpecification(parseSpecification('pool(cuda)'))).toEqual(bare(parseSpecification('pool(cuda)')));
  });

  test('may contain one object in two places', () => {
    const cuda = { kind: 'cuda' };
    const options = { limitBytes: 1 };
    expect(parseSpecification({ kind: 'limiting', upstream: { kind: 'limiting', upstream: cuda, options }, options })).toMatchObject({
      upstream: { upstream: cuda },
    });
  });

  const pool = { kind: 'pool', upstream: { kind: 'cuda' } };
  const kinds = `kinds: ${everyKind.map(({ name }) => name).join(', ')}`;

  test.each<[unknown, string, string]>([
    [null, '', 'a resource must be an object with a kind, such as {"kind": "cuda"}, got null'],
    [[], '', 'a resource must be an object with a kind, such as {"kind": "cuda"}, got an instance of Array'],
    [{}, 'kind', `a resource kind is expected here; ${kinds}`],
    [{ kind: 7 }, 'kind', `there is no resource kind 7; ${kinds}`],
    [{ kind: 'poool' }, 'kind', `there is no resource kind "poool", did you mean pool?; ${kinds}`],
    [
      { kind: 'pool', upsteam: {} },
      'upsteam',
      'a resource has no member "upsteam", did you mean upstream?; members: kind, upstream, options',
    ],
    [{ ...pool, 'max size': 5 }, '["max size"]', 'a resource has no member "max size"; members: kind, upstream, options'],
    [
      { ...pool, maximumBytes: 5 },
      'maximumBytes',
      'a resource has no member "maximumBytes"; maximumBytes is an option of pool, and belongs in options; members: kind, upstream, options',
    ],
    [JSON.parse('{"kind":"cuda","__proto__":{}}'), '__proto__', 'a resource has no member "__proto__"; members: kind, upstream, options'],
    [{ kind: 'pool' }, 'upstream', 'pool needs an upstream resource, such as cuda'],
    [{ kind: 'pool', upstream: 'cuda' }, 'upstream', 'a resource must be an object with a kind, such as {"kind": "cuda"}, got "cuda"'],
    [{ kind: 'pool', upstream: null }, 'upstream', 'a resource must be an object with a kind, such as {"kind": "cuda"}, got null'],
    [{ kind: 'cuda', upstream: pool }, 'upstream', 'cuda takes no upstream resource'],
    [{ kind: 'cuda', options: 3 }, 'options', 'options must be an object, got 3'],
    [{ kind: 'cuda', options: null }, 'options', 'options must be an object, got null'],
    [{ kind: 'cuda', options: ['exportable'] }, 'options', 'options must be an object, got an instance of Array'],
    [
      { ...pool, options: { deallocationEvents: null } },
      'options.deallocationEvents',
      'deallocationEvents must be one of eager, deferred, off, got null',
    ],
    [
      { ...pool, options: { deallocationEvents: 'defered' } },
      'options.deallocationEvents',
      'deallocationEvents must be one of eager, deferred, off, got "defered", did you mean deferred?',
    ],
    [
      { ...pool, options: { inital: 5 } },
      'options.inital',
      'there is no option of pool "inital", did you mean initialBytes?; options: initialBytes, maximumBytes, growth, name, idleMilliseconds, keepBytes, deallocationEvents',
    ],
    [
      { ...pool, options: JSON.parse('{"__proto__":1}') },
      'options.__proto__',
      'there is no option of pool "__proto__"; options: initialBytes, maximumBytes, growth, name, idleMilliseconds, keepBytes, deallocationEvents',
    ],
    [
      { ...pool, options: { maximumBytes: '12 parsecs' } },
      'options.maximumBytes',
      'maximumBytes must be a size such as 512MiB or 50%, got "12 parsecs"',
    ],
    [{ ...pool, options: { maximumBytes: 1.5 } }, 'options.maximumBytes', 'maximumBytes must be a size such as 512MiB or 50%, got 1.5'],
    [{ ...pool, options: { maximumBytes: -1 } }, 'options.maximumBytes', 'maximumBytes must be a size such as 512MiB or 50%, got -1'],
    [
      { ...pool, options: { maximumBytes: {} } },
      'options.maximumBytes',
      'maximumBytes must be a size such as 512MiB or 50%, got an instance of Object',
    ],
    [
      { ...pool, options: { maximumBytes: [1] } },
      'options.maximumBytes',
      'maximumBytes must be a size such as 512MiB or 50%, got an instance of Array',
    ],
    [
      { kind: 'limiting', upstream: pool },
      'options.limitBytes',
      'limiting needs the option limitBytes (a size such as 512MiB or 50%): the most bytes that may be live',
    ],
    [{ kind: 'logging', upstream: pool, options: { file: 5 } }, 'options.file', 'file must be text, got 5'],
    [
      { kind: 'cuda-async', options: { releaseThresholdBytes: true } },
      'options.releaseThresholdBytes',
      'releaseThresholdBytes must be a size such as 512MiB or 50%, got true',
    ],
  ])('%j is pointed at by %j', (value, path, fault) => {
    const atRoot = faultOf(value);
    expect([atRoot.path, atRoot.message]).toEqual([path, path === '' ? fault : `at ${path}: ${fault}`]);
    const within = faultOf({ kind: 'statistics', upstream: value });
    const innerPath = path === '' ? 'upstream' : path.startsWith('[') ? `upstream${path}` : `upstream.${path}`;
    expect([within.path, within.message]).toEqual([innerPath, `at ${innerPath}: ${fault}`]);
  });

  test('lists the words that would have been right', () => {
    expect(faultOf({ ...pool, options: { deallocationEvents: 1 } }).expected).toEqual(['eager', 'deferred', 'off']);
    expect(faultOf({ kind: 'cuda', Kind: 1 }).expected).toEqual(['kind', 'upstream', 'options']);
    expect(faultOf({ kind: 'limiting', upstream: pool }).expected).toEqual(['limitBytes']);
    expect(faultOf({ kind: 'x' }).expected).toEqual(everyKind.map(({ name }) => name));
  });

  test('may not contain itself, nor more than 64 others', () => {
    const cycle = { kind: 'pool', upstream: { kind: 'statistics', upstream: undefined as unknown } };
    cycle.upstream.upstream = cycle;
    expect(faultOf(cycle).message).toBe('at upstream.upstream: a resource cannot contain itself');
    const nested = (depth: number): object => (depth === 1 ? { kind: 'cuda' } : { kind: 'pool', upstream: nested(depth - 1) });
    expect(formatSpecification(nested(64) as Specification)).toContain('pool(cuda)');
    expect(faultOf(nested(65)).message).toMatch(/: more than 64 resources are nested in each other$/);
  });

  test('is refused whatever it is, and never with another error', () => {
    const names = fc.constantFrom('kind', 'upstream', 'options', 'deallocationEvents', 'limitBytes', 'maximumBytes', 'range', '__proto__');
    const leaves = fc.oneof(
      fc.constantFrom<unknown>('pool', 'cuda', 'limiting', 'off', '1GiB', undefined, null),
      fc.integer(),
      fc.double(),
      fc.boolean(),
      fc.string(),
    );
    const { value } = fc.letrec<{ value: unknown }>((tie) => ({
      value: fc.oneof({ maxDepth: 4 }, leaves, fc.dictionary(names, tie('value')), fc.array(tie('value'), { maxLength: 2 })),
    }));
    const resource = fc.record({ kind: leaves, upstream: value, options: value }, { requiredKeys: ['kind'] });
    fc.assert(
      fc.property(fc.oneof(value, resource), (candidate) => {
        fc.pre(typeof candidate !== 'string');
        let checked: Specification;
        try {
          checked = parseSpecification(candidate as Specification);
        } catch (error) {
          expect(error).toBeInstanceOf(SpecificationError);
          return;
        }
        expect(parseSpecification(checked)).toEqual(checked);
      }),
      { numRuns: 2000 },
    );
  });
});

describe('a share of the memory of the device', () => {
  test.each([
    ['pool(cuda, maximumBytes=50%)', 'pool(cuda, maximumBytes=50%)'],
    ['pool(cuda, initialBytes= 12.50 %, maximumBytes=100%)', 'pool(cuda, initialBytes=12.5%, maximumBytes=100%)'],
    ['binning(cuda, bins=[1%, 64KiB])', 'binning(cuda, bins=[1%, 64KiB])'],
    ['limiting(cuda, limitBytes=0.0000001%)', 'limiting(cuda, limitBytes=0.0000001%)'],
    ['limiting(cuda, limitBytes=0033.33333333333333333333%)', 'limiting(cuda, limitBytes=33.33333333333333333333%)'],
    ['pool(cuda, initialBytes=010.0%, maximumBytes=00.10 %)', 'pool(cuda, initialBytes=10%, maximumBytes=0.1%)'],
    ['fallback(cuda, fallback=limiting(pinned-host, limitBytes=5%))', 'fallback(cuda, fallback=limiting(pinned-host, limitBytes=5%))'],
  ])('is read and written again: %s', (text, written) => {
    expect(formatSpecification(parseSpecification(text))).toBe(written);
    expect(formatSpecification(JSON.parse(JSON.stringify(parseSpecification(text))))).toBe(written);
  });

  test.each(['0%', '101%', '-5%', '%', '50 percent', '5e1%'])('is not %s', (share) => {
    expect(() => parseSpecification(`pool(cuda, maximumBytes="${share}")`)).toThrow(
      /^maximumBytes must be a size such as 512MiB or 50%, got/,
    );
  });

  test('has its digits as they were written, without zeros at either end', () => {
    const shareOf = (text: string) => parseSpecification(`limiting(cuda, limitBytes=${text})`).options?.['limitBytes'];
    for (const [text, share] of [
      ['50%', '50%'],
      ['050.50 %', '50.5%'],
      ['00.0010%', '0.001%'],
      ['100.000%', '100%'],
      ['1.0%', '1%'],
    ]) {
      expect(shareOf(`"${text}"`), text).toBe(share);
    }
  });

  test('is not a count, and not a number', () => {
    expect(() => parseSpecification('fixed-size(cuda, blocksToPreallocate=50%)')).toThrow('blocksToPreallocate must be an integer');
    expect(() => parseSpecification('reclaiming(cuda, softLimitFraction=50%)')).toThrow('softLimitFraction must be a number');
  });

  test("becomes bytes of the stack's device, a multiple of 256", () => {
    const { totalBytes } = Device.get().memoryInfo();
    using stack = createResourceStack('limiting(fallback(cuda, fallback=limiting(cuda, limitBytes=1%)), limitBytes=33.3%)');
    expect(stack.name).toBe('limiting(fallback(cuda, fallback=limiting(cuda, limitBytes=1%)), limitBytes=33.3%)');
    const limits = stack.layers.flatMap((layer) => (layer instanceof LimitingResourceAdaptor ? [layer.limitBytes] : []));
    expect(limits).toEqual([0.333, 0.01].map((share) => Math.floor((totalBytes * share) / 256) * 256));
    using bins = createResourceStack({ kind: 'binning', upstream: { kind: 'cuda' }, options: { bins: ['0.001%'] } });
    expect((bins.resource as BinningMemoryResource).bins[0]?.bytes).toBe(Math.floor((totalBytes * 0.00001) / 256) * 256);
  });
});
