import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { originOf, packedReadme } from '../../scripts/package.mjs';

const manifest = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string };

test('packages name the repository of the workflow that makes them', () => {
  expect(originOf({ GITHUB_SERVER_URL: 'https://example.com', GITHUB_REPOSITORY: 'some/cistern' })).toEqual({
    repository: { type: 'git', url: 'git+https://example.com/some/cistern.git' },
    bugs: { url: 'https://example.com/some/cistern/issues' },
    homepage: 'https://example.com/some/cistern#readme',
  });
});

test('packages made elsewhere name none', () => {
  expect(originOf({})).toEqual({});
  expect(originOf({ GITHUB_SERVER_URL: 'https://example.com', GITHUB_REPOSITORY: '' })).toEqual({});
});

test('nothing is published without them', () => {
  const check = (env: NodeJS.ProcessEnv) => spawnSync(process.execPath, ['scripts/package.mjs', 'check'], { encoding: 'utf8', env });
  const { status, stderr } = check({});
  expect([status, stderr]).toEqual([1, expect.stringMatching(/^package\.json lacks repository, bugs, homepage, and no workflow names/)]);
  expect(check({ GITHUB_SERVER_URL: 'https://example.com', GITHUB_REPOSITORY: 'some/cistern' }).status).toBe(0);
  // Every other job of the release waits for it.
  const jobs = readFileSync('.github/workflows/release.yml', 'utf8')
    .split(/^ {2}(?=\w+:$)/m)
    .slice(1);
  const isFirst = (job: string) => job.startsWith('check:') || /^ {4}needs: (?!\[\])/m.test(job);
  expect(jobs.filter((job) => !isFirst(job) && !/^(?:push|tags)/.test(job))).toEqual([]);
  expect(jobs.find((job) => job.startsWith('check:'))).toContain('node scripts/package.mjs check');
});

test('links of a packed README lead to files of the package, or to the repository', () => {
  const text =
    '![a picture](docs/images/a.png)\n[a\nguide](docs/a.md#part), [the licence](LICENSE), [RMM](https://example.com), [below](#below)';
  const repository = { type: 'git', url: 'git+https://example.com/some/cistern.git' };
  const { version } = manifest;
  expect(packedReadme(text, ['LICENSE'], { repository })).toBe(
    `![a picture](https://example.com/some/cistern/raw/v${version}/docs/images/a.png)\n` +
      `[a\nguide](https://example.com/some/cistern/blob/v${version}/docs/a.md#part), ` +
      '[the licence](LICENSE), [RMM](https://example.com), [below](#below)',
  );
  expect(packedReadme(text, ['LICENSE'], {})).toBe('\na\nguide, [the licence](LICENSE), [RMM](https://example.com), [below](#below)');
});
