import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { joinVersions } from '../../scripts/site-versions.mjs';
import { describeInBrowser, openPage, takeFaults } from './support.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-site-'));
afterAll(() => rmSync(folder, { recursive: true }));
const site = join(folder, 'site');

/** Pages with the header of typedoc's. Its own pages are looked at by `npm run docs`, which takes much longer. */
function pagesOf(version: string, names: readonly string[]): readonly [name: string, folder: string] {
  const out = join(folder, version);
  mkdirSync(join(out, 'functions'), { recursive: true });
  for (const name of ['index', ...names.map((each) => `functions/${each}`)])
    writeFileSync(
      join(out, `${name}.html`),
      `<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>${name}</title><link rel="icon" href="data:,"></head><body><header><button id="tsd-search-trigger">Search</button></header></body></html>`,
    );
  return [version, out];
}

describeInBrowser('the pages of two versions in one site', () => {
  let server: Server;

  beforeAll(async () => {
    joinVersions(site, [pagesOf('next', ['stays', 'arrives']), pagesOf('0.1.0', ['stays', 'leaves'])]);
    server = createServer(({ url = '' }, response) => {
      if (url.endsWith('.html')) response.setHeader('content-type', 'text/html');
      response.end(readFileSync(join(site, url)));
    }).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
  });
  afterAll(() => server.close());

  test.each(['files', 'a server'])('lead to each other, from %s', async (from) => {
    const address = from === 'files' ? pathToFileURL(site).href : `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const page = await openPage(`${address}/index.html`);
    const choice = page.getByLabel('Version');
    // A version comes before what is not released.
    await page.waitForURL(`${address}/0.1.0/index.html`);
    expect(await choice.locator('option').allTextContents()).toEqual(['next', '0.1.0']);
    await page.goto(`${address}/0.1.0/functions/stays.html#part`);
    expect(await choice.inputValue()).toBe('0.1.0');
    await choice.selectOption('next');
    await page.waitForURL(`${address}/next/functions/stays.html#part`);
    await choice.selectOption('0.1.0');
    await page.waitForURL(`${address}/0.1.0/functions/stays.html#part`);
    // What the other version lacks leads to its first page; whoever comes back finds the version of the page.
    await page.goto(`${address}/next/functions/arrives.html`);
    await choice.selectOption('0.1.0');
    await page.waitForURL(`${address}/0.1.0/index.html`);
    await page.goBack();
    await expect.poll(() => choice.inputValue()).toBe('next');
    expect(takeFaults()).toEqual([]);
    await page.context().close();
  });
});

test('a version that is no name of a folder is refused', () => {
  expect(() => joinVersions(site, [['../next', folder]])).toThrow('a version must be a name such as next or 0.1.0, got "../next"');
});
