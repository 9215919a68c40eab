import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

const folder = '.github/workflows';
const workflows = readdirSync(folder).map((name) => readFileSync(`${folder}/${name}`, 'utf8'));

test('name the commit of every action, and its version', () => {
  const uses = workflows.flatMap((text) => [...text.matchAll(/uses: (.*)$/gm)].map(([, action]) => action as string));
  expect(uses).not.toEqual([]);
  expect(uses.filter((action) => !/^[\w-]+\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/.test(action))).toEqual([]);
  // One commit for each action, so that no file is forgotten in an update.
  expect(new Set(uses).size).toBe(new Set(uses.map((action) => action.split('@')[0])).size);
});

test('run every step of npm run check', () => {
  const { stderr } = spawnSync(process.execPath, ['scripts/check.mjs', 'none'], { encoding: 'utf8' });
  const steps = /the steps are (.*), and quick/.exec(stderr)?.[1]?.split(', ') ?? [];
  expect(steps).toContain('lint');
  const jobs = [...readFileSync(`${folder}/ci.yml`, 'utf8').matchAll(/^ {10}- ([\w -]+)$/gm)].flatMap(([, names]) =>
    (names as string).split(' '),
  );
  // The other jobs run the tests.
  expect(jobs.toSorted()).toEqual(steps.filter((step) => step !== 'tests').toSorted());
});
