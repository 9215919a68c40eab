import { expect, test } from 'vitest';
import { originOf } from '../../scripts/package.mjs';

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
