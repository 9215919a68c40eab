import { describe, expect, test } from 'vitest';
import { ArgumentRangeError, ArgumentTypeError } from '../../../src/basics/errors.js';
import { native } from '../../../src/driver/native.js';
import { withAccount } from '../../../src/tools/outside/index.js';

// What it does under `cistern run` is tested in run-outside.test.ts.
describe('withAccount without cistern run', () => {
  test('calls the function, and returns what it returns', async () => {
    expect(withAccount('model', () => 7)).toBe(7);
    expect(await withAccount('model', async () => 8)).toBe(8);
    expect(() =>
      withAccount('model', () => {
        throw new RangeError('thrown');
      }),
    ).toThrow(new RangeError('thrown'));
  });

  test('refuses what is no name or no function', () => {
    let calls = 0;
    const count = () => calls++;
    expect(() => withAccount('', count)).toThrow(ArgumentTypeError);
    expect(() => withAccount(7 as never, count)).toThrow('name must be a non-empty string, got 7');
    expect(() => withAccount('n'.repeat(128), count)).toThrow(ArgumentRangeError);
    expect(() => withAccount('ä'.repeat(64), count)).toThrow(ArgumentRangeError);
    expect(() => withAccount('a\0b', count)).toThrow('no zeros');
    expect(() => withAccount('a', undefined as never)).toThrow(ArgumentTypeError);
    expect(calls).toBe(0);
    expect(withAccount('n'.repeat(127), count)).toBe(0);
  });

  test('the addon finds nothing to tell', () => {
    expect(native().enterAccountOutside('model')).toBe(0);
    expect(() => native().leaveAccountOutside(0)).not.toThrow();
  });
});
