import axeCore from 'axe-core';
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core';
import { afterAll, afterEach, describe } from 'vitest';
import { chromiumOptions, noChromium } from '../../scripts/find-chromium.mjs';

const options = chromiumOptions();

if (options === undefined) console.warn(`skipped the browser tests: ${noChromium}`);

/** Declares tests that need a browser; without one, says so and skips them. */
export function describeInBrowser(name: string, declare: () => void): void {
  if (options !== undefined) describe(name, declare);
  else describe.skip(`${name} (${noChromium})`, declare);
}

let browser: Promise<Browser> | undefined;
const contexts: BrowserContext[] = [];
const faults: string[] = [];

/** How to open a page. */
export interface OpenPageOptions {
  readonly colorScheme?: 'light' | 'dark';
  readonly viewport?: { readonly width: number; readonly height: number };
}

/**
 * Opens a page at an address, which must be a file or on loopback. Any other request is refused and
 * counts as a fault. One browser serves a test file; each page has its own context, and is closed after
 * the test. Check {@link takeFaults} at the end of a test.
 */
export async function openPage(url: string, { colorScheme = 'light', viewport }: OpenPageOptions = {}): Promise<Page> {
  browser ??= chromium.launch(options);
  const context = await (await browser).newContext({ colorScheme, viewport: viewport ?? { width: 1280, height: 900 } });
  contexts.push(context);
  await context.route(
    (address) => !['file:', 'data:', 'blob:'].includes(address.protocol) && address.hostname !== '127.0.0.1',
    (route) => {
      faults.push(`the page asked for ${route.request().url()}`);
      return route.abort();
    },
  );
  const page = await context.newPage();
  page.on('console', (message) => {
    if (message.type() === 'error' || message.type() === 'warning') faults.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => faults.push(`error: ${error.stack ?? error.message}`));
  await page.goto(url);
  return page;
}

/**
 * The faults of the pages since the last call: errors, warnings, requests that leave this machine.
 */
export function takeFaults(): string[] {
  return faults.splice(0);
}

/** What axe-core finds wrong with the current page: the rule, and where. */
export async function accessibilityFaults(page: Page): Promise<string[]> {
  await page.evaluate(axeCore.source);
  return page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: typeof axeCore };
    const { violations } = await axe.run();
    return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ html }) => html).join(' | ')}`);
  });
}

// A page goes on drawing, and asking its server, as long as it is open.
afterEach(async () => {
  await Promise.all(contexts.splice(0).map((context) => context.close()));
});

afterAll(async () => {
  await (await browser)?.close();
});
