/**
 * Writes the report of a log and opens it in a browser. Measures how long it takes to write, how
 * large it is, when the page first shows anything and when it is complete, and how long frames take
 * while zooming on the map.
 */
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { parameters, report } from '../support/processes.mjs';

/**
 * @typedef {object} ReportParameters
 * @property {string} trace the path of the log
 * @property {string | undefined} chromium the path of the browser, if there is one
 * @property {number} repeat
 */

const { trace, chromium, repeat } = /** @type {ReportParameters} */ (parameters());

/** Turns of the wheel, in and out again. */
const turns = 20;

const cistern = await loadCistern();
const folder = mkdtempSync(join(tmpdir(), 'cistern-bench-report-'));
try {
  const file = join(folder, 'report.html');
  const run = await cistern.readRecordedRun(trace);
  const write = [];
  for (let i = 0; i < repeat; i++) {
    const started = performance.now();
    await cistern.writeReport([run], file);
    write.push(performance.now() - started);
  }
  const pages = chromium === undefined ? [] : await look(file, chromium);
  const figuresIn = (/** @type {keyof Page} */ key) => (pages.length === 0 ? undefined : figuresOf(pages.map((page) => page[key])));
  report({
    events: run.eventCount,
    bytes: statSync(file).size,
    writeMilliseconds: figuresOf(write),
    firstPaintMilliseconds: figuresIn('firstPaint'),
    openMilliseconds: figuresIn('open'),
    longestFrameMilliseconds: figuresIn('longestFrame'),
    medianFrameMilliseconds: figuresIn('medianFrame'),
  });
} finally {
  rmSync(folder, { recursive: true });
}

/**
 * @typedef {object} Page
 * @property {number} firstPaint
 * @property {number} open
 * @property {number} longestFrame
 * @property {number} medianFrame
 */

/**
 * Opens the page several times.
 * @param {string} file @param {string} executablePath
 * @returns {Promise<Page[]>}
 */
async function look(file, executablePath) {
  const playwright = await import('playwright-core');
  // A container's root user has no sandbox.
  const browser = await playwright.chromium.launch({ executablePath, args: process.getuid?.() === 0 ? ['--no-sandbox'] : [] });
  try {
    const pages = [];
    for (let i = 0; i < repeat; i++) {
      const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
      await page.goto(pathToFileURL(file).href);
      await page.locator('html[data-ready]').waitFor({ state: 'attached' });
      // Work that the page continues after it is readable, such as finding holes.
      await page.waitForTimeout(1500);
      const { firstPaint, open } = await page.evaluate(() => ({
        firstPaint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? Number.NaN,
        open: performance.getEntriesByName('report ready')[0]?.startTime ?? Number.NaN,
      }));
      const map = page.locator('.map');
      await map.scrollIntoViewIfNeeded();
      await map.focus();
      const box = /** @type {{ x: number, y: number, width: number, height: number }} */ (await map.boundingBox());
      await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
      await page.evaluate(() => {
        /** @type {number[]} */
        const frames = [];
        Object.assign(globalThis, { frames });
        let last = performance.now();
        const next = (/** @type {number} */ now) => {
          frames.push(now - last);
          last = now;
          requestAnimationFrame(next);
        };
        requestAnimationFrame(next);
      });
      for (let turn = 0; turn < 2 * turns; turn++) {
        await page.mouse.wheel(0, turn < turns ? -150 : 150);
        await page.waitForTimeout(16);
      }
      const frames = await page.evaluate(() => /** @type {any} */ (globalThis).frames.slice(1));
      const { median, maximum } = figuresOf(frames);
      pages.push({ firstPaint, open, longestFrame: maximum, medianFrame: median });
      await page.close();
    }
    return pages;
  } finally {
    await browser.close();
  }
}
