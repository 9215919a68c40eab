import { expect, test } from 'vitest';
import { everyKind } from '../../../src/tools/every-kind.js';
import { runCistern } from './run-cistern.js';

test('cistern resources lists every kind with its options', async () => {
  const { code, stdout, stderr } = await runCistern(['resources']);
  expect([code, stderr]).toEqual([0, '']);
  expect(stdout).toMatch(/^pool\(upstream, …\): /m);
  expect(stdout).toMatch(/^ {2}limitBytes=size +.*\(required\)$/m);
  for (const { name, options, example } of everyKind) {
    const section = stdout.split('\n\n').find((text) => text.startsWith(`${name}:`) || text.startsWith(`${name}(`)) as string;
    for (const option of Object.keys(options)) expect(section).toContain(`\n  ${option}=`);
    expect(section.trimEnd().endsWith(`\n  for example: ${example}`)).toBe(true);
  }
});

test('cistern resources --json lists the same as data', async () => {
  const { code, stdout } = await runCistern(['resources', '--json']);
  expect(code).toBe(0);
  const kinds = JSON.parse(stdout) as { name: string }[];
  expect(kinds.map(({ name }) => name)).toEqual(everyKind.map(({ name }) => name));
  expect(kinds.find(({ name }) => name === 'limiting')).toEqual({
    name: 'limiting',
    summary: expect.any(String),
    role: 'pass-through',
    takesUpstream: true,
    example: 'limiting(cuda, limitBytes=64MiB)',
    options: [
      { name: 'limitBytes', type: 'size', required: true, summary: expect.any(String) },
      { name: 'alignment', type: 'size', required: false, default: '256', summary: expect.any(String) },
      { name: 'shared', type: 'text', required: false, default: 'none', summary: expect.any(String) },
      {
        name: 'deallocationEvents',
        type: 'word',
        words: ['eager', 'deferred', 'off'],
        required: false,
        default: expect.any(String),
        summary: expect.any(String),
      },
    ],
  });
});
