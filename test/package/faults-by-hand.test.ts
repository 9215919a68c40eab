import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { byHand } from '../mutants/by-hand.mjs';

test.each(byHand.map(({ file, name, from }) => [name, file, from]))(
  'the place of the fault by hand "%s" is in %s once',
  (_name, file, from) => {
    const text = readFileSync(fileURLToPath(new URL(`../../${file}`, import.meta.url)), 'utf8');
    expect(text.split(from).length - 1).toBe(1);
  },
);
