import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { originOf, packedReadme, pageOf } from '../../scripts/package.mjs';

/** What git takes as the remote `origin`, whatever the clone says. */
function remoteIs(url: string): NodeJS.ProcessEnv {
  return { GIT_CONFIG_COUNT: '1', GIT_CONFIG_KEY_0: 'remote.origin.url', GIT_CONFIG_VALUE_0: url };
}

const manifest = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string };

test('packages name the repository of the workflow that makes them', () => {
  expect(originOf({ GITHUB_SERVER_URL: 'https://example.com', GITHUB_REPOSITORY: 'some/cistern' })).toEqual({
    repository: { type: 'git', url: 'git+https://example.com/some/cistern.git' },
    bugs: { url: 'https://example.com/some/cistern/issues' },
    homepage: 'https://example.com/some/cistern#readme',
  });
});

test('packages made in a clone name the repository that it came from', () => {
  expect(originOf({}, 'git@example.com:some/cistern.git')).toEqual({
    repository: { type: 'git', url: 'git+https://example.com/some/cistern.git' },
    bugs: { url: 'https://example.com/some/cistern/issues' },
    homepage: 'https://example.com/some/cistern#readme',
  });
});

test.each([
  ['https://example.com/some/cistern.git', 'https://example.com/some/cistern'],
  ['https://user:secret@example.com/some/cistern/', 'https://example.com/some/cistern'],
  ['http://example.com:8080/some/cistern', 'http://example.com:8080/some/cistern'],
  ['git@example.com:group/some/cistern.git', 'https://example.com/group/some/cistern'],
  ['example.com:some/cistern', 'https://example.com/some/cistern'],
  ['ssh://git@example.com:2222/some/cistern.git', 'https://example.com/some/cistern'],
])('%s is the page %s', (remote, page) => {
  expect(pageOf(remote)).toBe(page);
});

test.each([
  '',
  '/srv/cistern',
  '../cistern',
  'file:///srv/cistern',
  'C:\\cistern',
  'alias:some/cistern',
  'http://localhost/some/cistern',
  'http://127.0.0.1/some/cistern',
  'https://example.com/',
  'git://example.com/some/cistern',
])('nobody else knows the remote %j', (remote) => {
  expect(pageOf(remote)).toBeUndefined();
  expect(originOf({}, remote)).toEqual({});
  expect(originOf({ GITHUB_SERVER_URL: 'https://example.com', GITHUB_REPOSITORY: '' }, remote)).toEqual({});
});

test('what is packed in a clone has the addresses of its remote', () => {
  const env = { ...process.env, GITHUB_REPOSITORY: '', ...remoteIs('https://example.com/some/cistern.git') };
  const program = `
    import { mainManifest, packedReadme } from './scripts/package.mjs';
    const { repository, homepage, bugs } = mainManifest([]);
    console.log(JSON.stringify([repository.url, homepage, bugs.url, packedReadme('[a guide](docs/a.md)', [])]));
  `;
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8', env });
  expect(stderr).toBe('');
  expect(JSON.parse(stdout)).toEqual([
    'git+https://example.com/some/cistern.git',
    'https://example.com/some/cistern#readme',
    'https://example.com/some/cistern/issues',
    `[a guide](https://example.com/some/cistern/blob/v${manifest.version}/docs/a.md)`,
  ]);
});

test('nothing is published without them', () => {
  const check = (env: NodeJS.ProcessEnv) =>
    spawnSync(process.execPath, ['scripts/package.mjs', 'check'], {
      encoding: 'utf8',
      env: { PATH: process.env['PATH'], ...remoteIs(''), ...env },
    });
  const { status, stderr } = check({});
  expect([status, stderr]).toEqual([
    1,
    expect.stringMatching(/^package\.json lacks repository, bugs, homepage, and neither a workflow nor the remote origin names/),
  ]);
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
