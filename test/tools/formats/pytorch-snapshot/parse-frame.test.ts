import fc from 'fast-check';
import { expect, test } from 'vitest';
import { parseFrame } from '../../../../src/tools/formats/pytorch-snapshot/convert-to-snapshot.js';

/** What the lines mean; the square of their length in steps. */
function parseByPattern(line: string): ReturnType<typeof parseFrame> {
  const [, name = line, filename = '', number = '0'] = /^(.*) \((.*?):(\d+)(?::\d+)?\)$/.exec(line) ?? [];
  return { name, filename, number: Number(number) };
}

test('the line of a call is taken apart as the pattern would', () => {
  const part = fc.constantFrom('f', ' (', '(', ':', '1', '23', ':4', ')', ' ', '/a.js', 'async ');
  fc.assert(
    fc.property(fc.array(part, { maxLength: 12 }), fc.boolean(), (parts, isClosed) => {
      const line = `${parts.join('')}${isClosed ? ')' : ''}`;
      expect(parseFrame(line)).toEqual(parseByPattern(line));
    }),
    { numRuns: 2000 },
  );
});

test('digits that are no number of a line belong to the name', () => {
  for (const digits of ['9007199254740993', '1'.repeat(400)]) {
    const line = `f (a.js:${digits})`;
    expect(parseFrame(line)).toEqual({ name: line, filename: '', number: 0 });
  }
});
