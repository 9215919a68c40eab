import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Locator, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  configureSoftwareDevice,
  currentBackend,
  Device,
  DeviceBuffer,
  formatBytes,
  ManagedMemoryResource,
  MiB,
  Stream,
} from '../../src/index.js';
import { Recording, RecordingResourceAdaptor } from '../../src/recording/index.js';
import { type RecordedRun, readRecordedRun } from '../../src/tools/formats/index.js';
import { planAllocations, plannedRun } from '../../src/tools/planning/index.js';
import { readAllocationLog } from '../../src/tools/replay/index.js';
import { type DiffRow, diffRuns, type WriteReportOptions, writeReport } from '../../src/tools/report/index.js';
import { arrowEtl } from '../tools/formats/logs.js';
import { RunWriter, trainingRun } from '../tools/report/runs.js';
import { accessibilityFaults, describeInBrowser, type OpenPageOptions, openPage, takeFaults } from './support.js';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'cistern-report-page-'));
});
afterAll(() => rm(folder, { recursive: true }));

let reports = 0;

/** Writes a report and opens it from its file. */
async function openReport(runs: readonly RecordedRun[], options: OpenPageOptions = {}, written: WriteReportOptions = {}): Promise<Page> {
  const path = join(folder, `${reports++}.html`);
  await writeReport(runs, path, written);
  // High enough for the whole page, because invisible parts are not drawn.
  const page = await openPage(pathToFileURL(path).href, { viewport: { width: 1280, height: 4200 }, ...options });
  await page.locator('html[data-ready]').waitFor({ state: 'attached' });
  return page;
}

/** All text in an element, shown or not. */
async function textOf(element: Locator): Promise<string> {
  return (await element.textContent()) ?? '';
}

/** The value of a card in the summary. */
function card(page: Page, name: string): Promise<string> {
  return textOf(page.locator('.cards > div', { has: page.getByText(name, { exact: true }) }).locator('strong'));
}

/** One of the answers at the top of the page. */
function answer(page: Page, name: 'held' | 'peak' | 'unused' | 'fits'): Locator {
  return page.locator('.panel', { has: page.locator(`#answer-${name}`) });
}

/** A number that differs between two pictures of a map. */
function picture(page: Page, map = 0): Promise<number> {
  return page
    .locator('.map canvas:first-child')
    .nth(map)
    .evaluate((canvas) => {
      const { width, height } = canvas as HTMLCanvasElement;
      // Read from a copy, because a browser moves a canvas elsewhere once it is read.
      const copy = new OffscreenCanvas(width, height).getContext('2d', { willReadFrequently: true }) as OffscreenCanvasRenderingContext2D;
      copy.drawImage(canvas as HTMLCanvasElement, 0, 0);
      const { data } = copy.getImageData(0, 0, width, height);
      return data.reduce((sum, value, i) => (sum + value * ((i % 8191) + 1)) % 2147483647, 0);
    });
}

/** The number of bytes in a text like `3 MiB`. */
function bytesOf(text: string): number {
  const [value, unit] = text.split(' ');
  return Number(value) * 1024 ** ['B', 'KiB', 'MiB', 'GiB'].indexOf(unit as string);
}

const selectedTime = (page: Page): Promise<string> => textOf(page.locator('#selected-time'));
const rows = (page: Page): Locator => page.locator('#allocations tbody tr');
const found = (page: Page): Promise<string> => textOf(page.locator('.pager p'));
const details = (page: Page): Locator => page.locator('#map-details');

async function focusMap(page: Page): Promise<Locator> {
  const map = page.locator('.map').first();
  await map.scrollIntoViewIfNeeded();
  await map.focus();
  return map;
}

const shared = new URL('../../../shared/traces/', import.meta.url);
const traces = ['arrow-etl', 'torch-ddp-training', 'torch-owlv2-inference', 'torch-sglang-capture'];

describeInBrowser('the report of a real trace', () => {
  const path = (name: string) => (name === 'arrow-etl' ? arrowEtl : new URL(`${name}.csv.gz`, shared).pathname);

  for (const name of traces) {
    const isThere = name === 'arrow-etl' || existsSync(shared);
    test.skipIf(!isThere)(
      `${name} opens from its file and shows the figures of the log${isThere ? '' : ' (the folder of traces is not here)'}`,
      async () => {
        const page = await openReport([await readRecordedRun(path(name))]);
        const log = await readAllocationLog(path(name));
        expect(await card(page, 'Peak live')).toBe(formatBytes(log.peakLiveBytes));
        expect(await card(page, 'Allocations')).toBe(log.allocationCount.toLocaleString('en-US'));
        expect(await card(page, 'Never freed')).toBe(log.unfreedCount.toLocaleString('en-US'));
        // These logs do not say what was reserved.
        expect(await page.getByText('Fragmentation', { exact: false }).filter({ visible: true }).count()).toBe(0);
        expect(await textOf(answer(page, 'held'))).toContain(formatBytes(log.unfreedBytes));
        const before = await picture(page);
        const map = await focusMap(page);
        await map.press('+');
        await expect.poll(() => picture(page)).not.toBe(before);
        await map.press('ArrowRight');
        await expect.poll(() => textOf(details(page))).toContain('Lifetime');
        expect(takeFaults()).toEqual([]);
      },
    );
  }
});

/** The cells of a row that shows a change. */
function changeOf(before: number, after: number, countBefore: number, countAfter: number): string[] {
  const sign = (change: number) => (change < 0 ? '−' : '+');
  const change = after - before;
  const more = countAfter - countBefore;
  return [
    formatBytes(before),
    formatBytes(after),
    change === 0 ? 'none' : `${sign(change)}${formatBytes(Math.abs(change))}`,
    change === 0 || before === 0 ? '' : `${sign(change)}${(Math.abs(change / before) * 100).toFixed(1)} %`,
    `${countAfter}${more === 0 ? '' : ` (${sign(more)}${Math.abs(more)})`}`,
  ];
}

const peakChange = ({ before, after }: DiffRow) => Math.abs(after.peakBytes - before.peakBytes);

describeInBrowser('the report', () => {
  test('shows a plan beside the log when it is opened', async () => {
    const run = trainingRun();
    const plan = planAllocations(run);
    const page = await openReport([run, plannedRun(run, plan)], {}, { comparedRun: 1 });
    expect(await page.locator('.map').count()).toBe(2);
    expect(await textOf(page.locator('.maps'))).toContain(`plan of ${formatBytes(plan.totalBytes)}, lower bound`);
    expect(await page.locator('#filter-compared').inputValue()).toBe('1');
    expect(await picture(page, 1)).not.toBe(await picture(page, 0));
    const figures = page
      .locator('section', { has: page.getByText('Comparison', { exact: true }) })
      .locator('tr', { hasText: 'Peak reserved' });
    expect(await textOf(figures.locator('td').last())).toBe(formatBytes(plan.totalBytes));
    expect(takeFaults()).toEqual([]);
  });

  test('shows what graphs hold, for the log that has them', async () => {
    const sums = {
      lowerBoundBytes: 2 ** 20,
      poolsBytes: 2 ** 22,
      sharedPoolBytes: 2 ** 21,
      plannedApartBytes: 2 ** 22,
      plannedBytes: 2 ** 20,
    };
    const graph = {
      name: '<b>1,0</b>',
      allocationCount: 1234,
      peakLiveBytes: 7,
      lowerBoundBytes: 256,
      poolBytes: 2 ** 21,
      plannedBytes: 256,
    };
    const page = await openReport([trainingRun()], {}, { graphs: [{ graphs: [graph], ...sums }] });
    const section = page.locator('section', { has: page.locator('#graphs-title') });
    const text = await textOf(section);
    expect(text).toContain('<b>1,0</b>');
    expect(text).toContain('1,234');
    expect(text).toMatch(/Planned, one region for all\s*1 MiB\s*1\.000/);
    expect(takeFaults()).toEqual([]);
    const without = await openReport([trainingRun()]);
    expect(await without.locator('#graphs-title').count()).toBe(0);
  });

  test('shows untrusted texts as plain text', async () => {
    const page = await openReport([trainingRun()]);
    expect(await textOf(page.locator('h1'))).toContain('</script><img src=x');
    await page.locator('#allocations-text').fill('weights.3');
    await expect.poll(() => rows(page).count()).toBe(1);
    expect(await textOf(rows(page))).toContain('weights.3 </script><b>bold</b>');
    expect(await page.locator('img, main b').count()).toBe(0);
    expect(await page.title()).toContain('</script><img');
    expect(takeFaults()).toEqual([]);
  });

  test('answers first: what was never freed, the peak, what was not used, what others need', async () => {
    const fits = [{ resource: 'arena(cuda)', fitted: 'x', smallestMaximumBytes: 192 * MiB, overheadRatio: 0.25, isComplete: true }];
    const page = await openReport([trainingRun()], {}, { fits: [fits] });
    await expect
      .poll(() => textOf(answer(page, 'unused')))
      .toMatch(/of \d+ MiB.*never used by any allocation.*taken because too little memory was free/s);
    expect(await textOf(answer(page, 'held'))).toMatch(/24 MiB in 3 allocations.*new Weights \(model\.js:31:17\)24 MiB3 ×100\.0 %/);
    expect(await textOf(answer(page, 'peak'))).toContain(await card(page, 'Peak live'));
    expect(await textOf(answer(page, 'fits'))).toMatch(/192 MiB is the least memory that can replay.*arena\(cuda\)192 MiB\+25\.0 %/);
    await page.locator('#answers-grouping').selectOption('label');
    await expect.poll(() => textOf(answer(page, 'held'))).toMatch(/weights\.11.*weights\.10.*weights\.9/);
    expect(takeFaults()).toEqual([]);
  });

  test('leads from an answer to its boxes, the stack and the curve', async () => {
    const page = await openReport([trainingRun()]);
    const before = await picture(page);
    await answer(page, 'held').getByRole('button', { name: 'new Weights' }).click();
    await expect.poll(() => textOf(page.locator('#filter-only'))).toBe('new Weights (model.js:31:17), never freed');
    await expect.poll(() => found(page)).toBe('1 to 3 of 3, 24 MiB in total');
    expect(await picture(page)).not.toBe(before);
    expect(await page.locator('#map-grouping').inputValue()).toBe('site');
    expect(await textOf(details(page))).toContain('new Weights (model.js:31:17)\nbuildLayer');
    await expect.poll(() => card(page, 'Peak live')).toBe('24 MiB');
    const sites = page.locator('section:has(#calls-title) table');
    expect(await textOf(sites)).toMatch(/Never freedAt the peakAllocatedAllocationsnew Weights \(model\.js:31:17\)24 MiB24 MiB24 MiB3$/);
    await page.locator('#reset-only').click();
    await expect.poll(() => found(page)).not.toContain('of 3,');
    await answer(page, 'peak').getByRole('button', { name: /ms$/ }).click();
    await expect.poll(() => selectedTime(page)).toMatch(/ to /);
    expect(takeFaults()).toEqual([]);
  });

  test('says that a log is empty', async () => {
    const page = await openReport([new RunWriter().finish()]);
    expect(await textOf(page.locator('section:has(#answers-title)'))).toContain('The log has no allocations');
    expect(takeFaults()).toEqual([]);
  });

  test('reads the same values at the crosshair before and after it moves back, zoomed or not', async () => {
    const page = await openReport([trainingRun()]);
    const plot = page.locator('.chart-plot').first();
    const readout = () => textOf(page.locator('.chart-legend').first());
    const box = (await plot.boundingBox()) as { x: number; y: number; width: number; height: number };
    const at = (share: number) => page.mouse.move(box.x + 84 + (box.width - 100) * share, box.y + 150, { steps: 3 });
    await at(0.3);
    const first = await readout();
    expect(first).toMatch(/ms$/);
    await page.mouse.down();
    await at(0.5);
    await page.mouse.up();
    await expect.poll(readout).not.toBe(first);
    await expect.poll(() => selectedTime(page)).toMatch(/ to /);
    await page.waitForTimeout(300);
    const zoomed = await readout();
    await at(0.4);
    await at(0.5);
    expect(await readout()).toBe(zoomed);
  });

  test('shows where a log is cut off', async () => {
    const page = await openReport([trainingRun()]);
    expect(await textOf(page.getByRole('note').first())).toBe(
      'The log is cut off at byte 4,800: the block ends early. Later events are missing here.',
    );
  });

  test('describes what is under the mouse, down to its stack', async () => {
    const page = await openReport([trainingRun()]);
    const map = await focusMap(page);
    const box = (await map.boundingBox()) as { x: number; y: number; width: number; height: number };
    expect(await textOf(details(page))).toContain('Point at an allocation');
    await page.mouse.move(box.x + box.width / 2, box.y + box.height - 29);
    const text = await textOf(details(page));
    expect(text).toContain('Labelweights.0');
    expect(text).toContain('Size4 MiB (4,194,304 bytes)');
    expect(text).toContain('new Weights (model.js:31:17)\nbuildLayer (model.js:60:11)');
    await page.mouse.move(box.x + box.width / 2, box.y + box.height - 140);
    expect(await textOf(details(page))).not.toBe(text);
    await page.mouse.move(5, 5);
    expect(await textOf(details(page))).toContain('Point at an allocation');
    expect(takeFaults()).toEqual([]);
  });

  test('moves between allocations with the keyboard, and announces each', async () => {
    const page = await openReport([trainingRun()]);
    const map = await focusMap(page);
    const said = page.locator('section:has(.map) [aria-live]');
    await map.press('ArrowRight');
    const first = await textOf(said);
    expect(first).toMatch(/^Size .*, Address 0x/);
    await map.press('ArrowRight');
    const second = await textOf(said);
    expect(second).not.toBe(first);
    await map.press('ArrowLeft');
    expect(await textOf(said)).toBe(first);
    const address = async () => Number(/Address (0x[0-9a-f]+)/.exec(await textOf(said))?.[1]);
    const before = await address();
    await map.press('ArrowDown');
    expect(await address()).toBeLessThan(before);
    await map.press('Enter');
    await expect.poll(() => selectedTime(page)).toMatch(/ to /);
    await map.press('Escape');
    expect(await selectedTime(page)).toBe('everything');
  });

  test('zooms by wheel, drag, button and key, and all views follow', async () => {
    const page = await openReport([trainingRun()]);
    const everything = { picture: await picture(page), found: await found(page), peak: await card(page, 'Peak live') };
    const map = await focusMap(page);
    const box = (await map.boundingBox()) as { x: number; y: number; width: number; height: number };

    await page.mouse.move(box.x + 700, box.y + 200);
    await page.mouse.wheel(0, -400);
    await expect.poll(() => selectedTime(page)).toMatch(/ to /);
    await expect.poll(() => picture(page)).not.toBe(everything.picture);
    await expect.poll(() => found(page)).not.toBe(everything.found);

    await page.getByRole('button', { name: 'All', exact: true }).click();
    expect(await selectedTime(page)).toBe('everything');
    await expect.poll(() => picture(page)).toBe(everything.picture);

    await page.mouse.move(box.x + 84 + 20, box.y + 60);
    await page.mouse.down();
    await page.mouse.move(box.x + 300, box.y + 200, { steps: 4 });
    await page.mouse.up();
    await expect.poll(() => selectedTime(page)).toMatch(/ to /);
    const dragged = await picture(page);
    expect(dragged).not.toBe(everything.picture);

    await page.getByRole('button', { name: 'Zoom in: addresses' }).click();
    expect(await picture(page)).not.toBe(dragged);
    const time = await selectedTime(page);
    await page.getByRole('button', { name: 'Later' }).click();
    await expect.poll(() => selectedTime(page)).not.toBe(time);
    await page.locator('#reset-time').click();

    const chart = page.locator('.chart-plot').first();
    await chart.focus();
    await chart.press('End');
    await chart.press('+');
    await chart.press('+');
    await chart.press('+');
    await expect.poll(() => selectedTime(page)).toMatch(/ to /);
    await expect.poll(() => card(page, 'Peak live')).not.toBe(everything.peak);
    await chart.press('0');
    await expect.poll(() => card(page, 'Peak live')).toBe(everything.peak);
    expect(takeFaults()).toEqual([]);
  });

  test('draws the curve up to the exact peak', async () => {
    const page = await openReport([trainingRun()]);
    const table = page.locator('section:has(#memory-title) details');
    await table.locator('summary').click();
    const cells = await table.locator('tbody td:nth-child(2)').allInnerTexts();
    const peak = await card(page, 'Peak live');
    expect(Math.max(...cells.map(bytesOf))).toBe(bytesOf(peak));
  });

  test('applies filters to all views', async () => {
    const page = await openReport([trainingRun()]);
    const before = { allocations: await card(page, 'Allocations'), picture: await picture(page), found: await found(page) };
    const flame = page.locator('.flame');
    expect(await textOf(flame)).toContain('prefetch');
    await page.locator('#filter-phase').selectOption({ label: 'step › backward' });
    await expect.poll(() => card(page, 'Allocations')).toBe('96');
    await expect.poll(() => found(page)).toContain('of 96,');
    await expect.poll(() => picture(page)).not.toBe(before.picture);
    await expect.poll(() => textOf(flame)).not.toContain('prefetch');
    await page.locator('#filter-phase').selectOption('');
    await page.locator('#filter-stream').selectOption({ label: '0x2' });
    await expect.poll(() => card(page, 'Allocations')).toBe('24');
    await expect.poll(() => textOf(flame)).toContain('prefetch');
    await page.locator('#filter-stream').selectOption('');
    await expect.poll(() => card(page, 'Allocations')).toBe(before.allocations);
    await expect.poll(() => picture(page)).toBe(before.picture);
    expect(takeFaults()).toEqual([]);
  });

  test('divides live bytes by stream, phase, size and thread, and the map by colours', async () => {
    const page = await openReport([trainingRun()]);
    const legend = page.locator('section:has(#memory-title) .chart-legend');
    for (const [choice, wanted] of [
      ['live, by stream', /stream 0x2.*stream 0x1/s],
      ['live, by phase', /backward.*forward.*no phase/s],
      ['live, by size class', /over 256 MiB.*up to 4 KiB/s],
      ['live, by thread', /thread 4712/],
      ['every layer', /statistics: live.*reserved/s],
    ] as const) {
      await page.locator('#memory-shown').selectOption({ label: choice });
      expect(await textOf(legend)).toMatch(wanted);
    }
    const byPhase = await picture(page);
    await page.locator('#map-grouping').selectOption('size');
    expect(await picture(page)).not.toBe(byPhase);
    expect(await textOf(page.locator('.legend'))).toContain('up to 4 KiB');
    expect(takeFaults()).toEqual([]);
  });

  test('shows where managed memory is, why it moved, and for whom', async ({ skip }) => {
    skip(currentBackend() !== 'software', 'a GPU does not say where managed memory is');
    configureSoftwareDevice({ totalBytes: 12 * MiB });
    const file = join(folder, 'managed.cistern');
    let handle: string;
    {
      using recording = new Recording({ file });
      using managed = new ManagedMemoryResource();
      using resource = new RecordingResourceAdaptor(managed, { recording });
      using stream = new Stream();
      handle = `0x${stream.nativeHandle.toString(16)}`;
      using weights = new DeviceBuffer(8 * MiB, { resource, stream, label: 'weights' });
      using data = new DeviceBuffer(16 * MiB, { resource, stream, label: 'data' });
      weights.to(Device.get());
      for (let step = 0; step < 3; step++) {
        for (let offset = 0; offset < data.byteLength; offset += 2 * MiB) {
          data.fill(step, { byteOffset: offset, byteLength: 2 * MiB });
          stream.synchronizeSync();
        }
      }
    }
    const page = await openReport([await readRecordedRun(file)]);
    expect(await page.locator('#filter-layer option').allTextContents()).toEqual(['managed', 'managed at device 0', 'managed at the host']);
    const moves = page.locator('section:has(#layers-title) table').nth(1);
    const cells = await moves
      .locator('tbody tr')
      .evaluateAll((rows) => rows.map((row) => [...row.children].map((each) => each.textContent)));
    expect(cells).toEqual([
      ['managed at the host', 'eviction', handle, 'data', '18', '36 MiB'],
      ['managed at device 0', 'thrash', handle, 'data', '16', '32 MiB'],
      ['managed at device 0', 'first use', handle, 'data', '8', '16 MiB'],
      ['managed at device 0', 'prefetch, first use', handle, 'weights', '4', '8 MiB'],
      ['managed at the host', 'eviction', handle, 'weights', '4', '8 MiB'],
    ]);
    await page.locator('#filter-layer').selectOption({ label: 'managed at device 0' });
    await expect.poll(() => card(page, 'Peak live')).toBe('12 MiB');
    expect(await card(page, 'Allocations')).toBe('28');
    await page.locator('#memory-shown').selectOption({ label: 'live, by label' });
    expect(await textOf(page.locator('section:has(#memory-title) .chart-legend'))).toMatch(/prefetch, first use/);
    await page.locator('#map-grouping').selectOption('label');
    expect(await textOf(page.locator('.legend'))).toContain('thrash');
    expect(await accessibilityFaults(page)).toEqual([]);
    expect(takeFaults()).toEqual([]);
  });

  test('compares two logs on its first screen, with the figures of cistern diff', async () => {
    const [before, after] = [trainingRun({ source: 'one.cistern' }), trainingRun({ steps: 3, seed: 5, source: 'two.cistern' })];
    const page = await openReport([before, after]);
    const changes = page.locator('section:has(#changes-title)');
    expect(await textOf(page.locator('h2').first())).toBe('What changed from one.cistern to two.cistern');
    const cells = async (name: RegExp, table: number) =>
      changes.locator('table').nth(table).getByRole('row', { name }).locator('td').allTextContents();
    const { by, total, rows: groups } = diffRuns(before, after);
    expect(await cells(/^Live at the peak/, 0)).toEqual(
      changeOf(total.before.peakBytes, total.after.peakBytes, total.before.peakCount, total.after.peakCount),
    );
    expect(await cells(/^Never freed/, 0)).toEqual(
      changeOf(total.before.endBytes, total.after.endBytes, total.before.endCount, total.after.endCount),
    );
    expect(await cells(/^Allocated/, 0)).toEqual(
      changeOf(total.before.allocatedBytes, total.after.allocatedBytes, total.before.allocatedCount, total.after.allocatedCount),
    );
    const grown = groups.reduce((most, row) => (peakChange(row) > peakChange(most) ? row : most));
    expect(await textOf(changes.locator('caption').nth(1))).toMatch(new RegExp(`^Live at the peak, by ${by}`));
    expect(await textOf(changes.locator('table').nth(1).locator('tbody tr').first())).toContain(grown.name);
    await page.locator('#filter-run').selectOption('1');
    await expect.poll(() => textOf(changes)).toBe('What changedChoose a log under "Compare with".');
    await page.locator('#filter-compared').selectOption('0');
    await expect.poll(() => textOf(changes.locator('h2'))).toBe('What changed from two.cistern to one.cistern');
    expect(takeFaults()).toEqual([]);
  });

  test('switches logs, and compares a second one with the first', async () => {
    const page = await openReport([trainingRun({ source: 'one.cistern' }), trainingRun({ steps: 3, seed: 5, source: 'two.cistern' })]);
    const comparison = page.locator('section:has(#compare-title)');
    expect(await textOf(comparison)).toContain('1: one.cistern (cut off)');
    const peak = await card(page, 'Peak live');
    expect(await textOf(comparison.getByRole('row', { name: /^Peak live \d/ }))).toContain(peak);
    const one = await picture(page);
    await page.locator('#filter-run').selectOption('1');
    await expect.poll(() => card(page, 'Allocations')).toBe('309');
    await expect.poll(() => picture(page)).not.toBe(one);
    await page.locator('#filter-compared').selectOption('0');
    await expect.poll(() => page.locator('.map').count()).toBe(2);
    await expect
      .poll(() => textOf(page.locator('section:has(#memory-title) .chart-legend')))
      .toMatch(/live, 2: two.cistern.*live, 1: one.cistern/s);
    const [first, second] = [await picture(page, 0), await picture(page, 1)];
    const map = await focusMap(page);
    await map.press('+');
    await expect.poll(() => picture(page, 0)).not.toBe(first);
    await expect.poll(() => picture(page, 1)).not.toBe(second);
    await page.locator('#filter-compared').selectOption('');
    await expect.poll(() => page.locator('.map').count()).toBe(1);
    expect(takeFaults()).toEqual([]);
  });

  test('lists allocations sorted and filtered, and shows a row on the map', async () => {
    const page = await openReport([trainingRun()]);
    const size = (row: number) => textOf(rows(page).nth(row).locator('th'));
    expect(bytesOf(await size(0))).toBeGreaterThanOrEqual(bytesOf(await size(1)));
    const head = page.getByRole('columnheader', { name: /^Size/ });
    expect(await head.getAttribute('aria-sort')).toBe('descending');
    await head.getByRole('button').press('Enter');
    expect(await head.getAttribute('aria-sort')).toBe('ascending');
    expect(bytesOf(await size(0))).toBeLessThan(bytesOf('1 MiB'));
    await page.locator('#allocations-minimum').fill('9 MiB');
    expect(bytesOf(await size(0))).toBeGreaterThanOrEqual(bytesOf('9 MiB'));
    await page.locator('#allocations-minimum').fill('nine');
    expect(await page.locator('#allocations-minimum').getAttribute('aria-invalid')).toBe('true');
    await page.locator('#allocations-minimum').fill('');
    await page.locator('#allocations-preset').selectOption('held');
    expect(await found(page)).toBe('1 to 3 of 3, 24 MiB in total');
    await page.locator('#allocations-text').fill('weights.10');
    expect(await found(page)).toBe('1 to 1 of 1, 8 MiB in total');
    await rows(page).first().getByRole('button').click();
    await expect.poll(() => textOf(details(page))).toContain('weights.10');
    expect(await textOf(details(page))).toContain('Freednever');
    expect(await page.evaluate(() => document.activeElement?.className)).toBe('map');
    expect(takeFaults()).toEqual([]);
  });

  test('shows call sites, zooms into them and finds them', async () => {
    const page = await openReport([trainingRun()]);
    const flame = page.locator('.flame');
    const frame = (name: string) => flame.getByRole('button', { name: new RegExp(`^${name}`) });
    // In one step: the chart is redrawn when the page has its final size.
    const width = (name: string) =>
      frame(name)
        .first()
        .evaluate((element) => element.getBoundingClientRect().width);
    await expect.poll(() => width('all')).toBeGreaterThan(0);
    const all = await width('all');
    expect(await width('forward \\(model')).toBeLessThan(all);
    await frame('forward \\(model').click();
    await expect.poll(() => width('forward \\(model')).toBe(all);
    expect(await frame('backward').count()).toBe(0);
    await page.keyboard.press('ArrowDown');
    expect(await page.evaluate(() => document.activeElement?.getAttribute('aria-label'))).toMatch(
      /^(attention|feedForward|layerNorm|embedding)/,
    );
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: 'Show all', exact: true }).last().click();
    await expect.poll(() => frame('backward').count()).toBe(1);
    await page.locator('#calls-text').fill('gradient');
    expect(await flame.locator('.match').count()).toBeGreaterThan(0);
    expect(await textOf(page.locator('section:has(#calls-title) [role=status]'))).toMatch(/^found in \d+\.\d %$/);
    const name = await frame('all').getAttribute('aria-label');
    await page.locator('#calls-measure').selectOption('live');
    await expect.poll(() => frame('all').getAttribute('aria-label')).not.toBe(name);
    expect(takeFaults()).toEqual([]);
  });

  test('follows the choice of light and dark', async () => {
    const page = await openReport([trainingRun()]);
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = { background: await background(), picture: await picture(page) };
    await page.locator('#theme').selectOption('dark');
    expect(await background()).not.toBe(light.background);
    expect(await picture(page)).not.toBe(light.picture);
    await page.locator('#theme').selectOption('');
    expect(await background()).toBe(light.background);
  });

  test('fits a narrow window', async () => {
    const page = await openReport([trainingRun()], { viewport: { width: 420, height: 900 } });
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(420);
    expect(takeFaults()).toEqual([]);
  });

  for (const colorScheme of ['light', 'dark'] as const) {
    describe(`in ${colorScheme} colours`, () => {
      test('has no faults that axe-core finds, folded or not', async () => {
        const page = await openReport([trainingRun(), trainingRun({ seed: 3, source: 'other.cistern' })], { colorScheme });
        await page.locator('#filter-compared').selectOption('1');
        await expect.poll(() => page.locator('.map').count()).toBe(2);
        for (const summary of await page.locator('details > summary').all()) await summary.click();
        const map = await focusMap(page);
        await map.press('ArrowRight');
        expect(await accessibilityFaults(page)).toEqual([]);
        expect(takeFaults()).toEqual([]);
      });
    });
  }
});
