import { describe, expect, test } from 'vitest';
import { ByteNumbers } from './byte-numbers.js';
import { anyInput, run } from './packed-logs.js';

/** `npm run fuzz -- packed-logs` tries far more, for as long as one wants. */
describe('logs that are changed inside, and packed again', () => {
  test('are read, or refused in a short line', async () => {
    const numbers = new ByteNumbers(Buffer.from('packed logs'));
    for (let i = 0; i < 200; i++) {
      const input = anyInput(numbers);
      await expect(run(input), input.toString('latin1')).resolves.toBeUndefined();
    }
  });
});
