import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { byHand } from '../mutants/by-hand.mjs';
import { addonFaults, nativeFaults } from '../mutants/native-faults.mjs';
import { softwareGraphFaults, strictGraphFaults } from '../mutants/native-graph-faults.mjs';

/** How often a file has a text. */
function occurrences(file: string, text: string): number {
  return readFileSync(fileURLToPath(new URL(`../../${file}`, import.meta.url)), 'utf8').split(text).length - 1;
}

test.each(byHand.map(({ file, name, from }) => [name, file, from]))(
  'the place of the fault by hand "%s" is in %s once',
  (_name, file, from) => {
    expect(occurrences(file, from)).toBe(1);
  },
);

test('each file of which mutants are made, or that has equivalent ones, is there', () => {
  const names = ['run-mutants.mjs', 'equivalent.mjs'].flatMap((name) =>
    [...readFileSync(new URL(`../mutants/${name}`, import.meta.url), 'utf8').matchAll(/'((?:src|assembly)\/[^']+\.ts)'/g)].map(
      ([, file]) => file as string,
    ),
  );
  expect(names.length).toBeGreaterThan(100);
  expect([...new Set(names)].filter((name) => !existsSync(new URL(`../../${name}`, import.meta.url)))).toEqual([]);
});

test.each([nativeFaults, softwareGraphFaults, strictGraphFaults, addonFaults].flatMap((faults) => Object.entries(faults)))(
  'the places of the faults of native code in %s are there once',
  (file, faults) => {
    expect(faults.filter(({ from }) => occurrences(file, from) !== 1).map(({ fault }) => fault)).toEqual([]);
  },
);
