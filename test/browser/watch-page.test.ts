import { type ChildProcess, spawn } from 'node:child_process';
import type { Page } from 'playwright-core';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { HostMemoryResource, MiB, PoolMemoryResource, StatisticsResourceAdaptor, Stream } from '../../src/index.js';
import { type StatisticsServer, serveStatistics } from '../../src/tools/watch/index.js';
import { accessibilityFaults, describeInBrowser, openPage, takeFaults } from './support.js';

let server: StatisticsServer;
let stack: Disposable[];
let resource: StatisticsResourceAdaptor;
let stream: Stream;

beforeEach(async () => {
  const upstream = new HostMemoryResource();
  const pool = new PoolMemoryResource(upstream, { initialBytes: 4 * MiB });
  resource = new StatisticsResourceAdaptor(pool, { name: 'training' });
  stream = new Stream();
  stack = [stream, resource, pool, upstream];
  server = await serveStatistics({ intervalMilliseconds: 50 });
});

afterEach(async () => {
  await server.close();
  for (const disposable of stack) disposable[Symbol.dispose]();
});

/** The text of a table cell, by the table's caption, the row's head and the column's head. */
function cellText(page: Page, caption: string, row: string, column: string): Promise<string> {
  return page.evaluate(
    (wanted) => {
      const table = [...document.querySelectorAll('table')].find((candidate) => candidate.caption?.textContent === wanted.caption);
      const columns = [...(table?.tHead?.rows[0]?.cells ?? [])].map(({ textContent }) => textContent);
      const line = [...(table?.tBodies[0]?.rows ?? [])].find((candidate) => candidate.cells[0]?.textContent === wanted.row);
      return line?.cells[columns.indexOf(wanted.column)]?.textContent ?? 'no such cell';
    },
    { caption, row, column },
  );
}

describeInBrowser('the page of cistern watch', () => {
  test('shows what the resource does as it happens, in numbers and in charts', async () => {
    const page = await openPage(server.url);
    await page.getByText('Live', { exact: true }).waitFor();
    await expect.poll(() => cellText(page, 'Resources', 'training', 'live')).toBe('0 B');
    const pointer = resource.allocate(3 * MiB, stream);
    await expect.poll(() => cellText(page, 'Resources', 'training', 'live')).toBe('3 MiB');
    const layer = await cellText(page, 'Resources', 'training', 'built on');
    expect(await cellText(page, 'Layers that hold memory', layer.split(', ')[0] as string, 'free')).toBe('1 MiB');
    const legend = page.getByRole('list', { name: /^training: bytes/ });
    await expect.poll(() => legend.textContent()).toMatch(/live3 MiBpeak3 MiBreserved4 MiBfree1 MiB/);
    resource.deallocate(pointer, 3 * MiB, stream);
    await expect.poll(() => legend.textContent()).toMatch(/live0 Bpeak3 MiBreserved4 MiBfree4 MiB/);
    expect(takeFaults()).toEqual([]);
  });

  test('shows what happened before it was opened', async () => {
    await expect.poll(async () => (await fetch(`${server.url}sample`)).status).toBe(200);
    const pointer = resource.allocate(2 * MiB, stream);
    await new Promise((resolve) => setTimeout(resolve, 500));
    resource.deallocate(pointer, 2 * MiB, stream);
    const page = await openPage(server.url);
    const chart = page.getByRole('group', { name: /^training: bytes: chart/ });
    await chart.focus();
    await expect.poll(() => cellText(page, 'Resources', 'training', 'live')).toBe('0 B');
    await page.getByRole('button', { name: 'Pause' }).click();
    await chart.focus();
    await page.keyboard.press('Home');
    const legend = page.getByRole('list', { name: /^training: bytes/ });
    await page.keyboard.press('ArrowRight');
    const seen = [];
    for (let i = 0; i < 8; i++) {
      seen.push(await legend.textContent());
      await page.keyboard.press('ArrowRight');
    }
    expect(seen.join('\n')).toMatch(/live2 MiB/);
    expect(takeFaults()).toEqual([]);
  });

  test('can be read and controlled by keyboard', async () => {
    const page = await openPage(server.url);
    await page.getByText('Live', { exact: true }).waitFor();
    await page.keyboard.press('Tab');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Space');
    const pause = page.getByRole('button', { name: 'Pause' });
    expect(await pause.getAttribute('aria-pressed')).toBe('true');
    const live = page.getByRole('list', { name: /^training: bytes/ }).getByRole('button', { name: /^live/ });
    await live.focus();
    await page.keyboard.press('Enter');
    expect(await live.getAttribute('aria-pressed')).toBe('false');
    const chart = page.getByRole('group', { name: /^training: bytes: chart/ });
    await chart.focus();
    await page.keyboard.press('End');
    await expect.poll(() => chart.locator('xpath=..').textContent()).toMatch(/\d\d:\d\d:\d\d: live 0 B, peak 0 B, reserved 4 MiB/);
    expect(takeFaults()).toEqual([]);
  });

  test.each(['light', 'dark'] as const)('has no faults that axe-core finds in %s, and the colours of that scheme', async (colorScheme) => {
    const page = await openPage(server.url, { colorScheme });
    await expect.poll(() => cellText(page, 'Resources', 'training', 'live')).toBe('0 B');
    expect(await accessibilityFaults(page)).toEqual([]);
    const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    expect(background).toBe(colorScheme === 'light' ? 'rgb(255, 255, 255)' : 'rgb(22, 25, 29)');
    expect(takeFaults()).toEqual([]);
  });

  test('says what to do if there is no statistics adaptor', async () => {
    resource.dispose();
    const page = await openPage(server.url);
    await page.getByText('The program has not allocated anything yet').waitFor();
    expect(takeFaults()).toEqual([]);
  });

  test('names the line that leaks first, although another holds more', async () => {
    const { child, url } = await watchedProcess(`
      const stream = new Stream(), resource = new HostMemoryResource();
      globalThis.buffers = [];
      function holds() { buffers.push(new DeviceBuffer(64 * MiB, { stream, resource })); }
      function leaks() { buffers.push(new DeviceBuffer(1024, { stream, resource })); }
      holds();
      leaks();
      process.stdin.on('data', () => leaks());
    `);
    const page = await openPage(url);
    const rows = page.getByRole('region', { name: 'Lines that hold memory' }).locator('tbody tr');
    await expect
      .poll(() => rows.allTextContents())
      .toEqual([expect.stringMatching(/^holds .*none64 MiB1$/), expect.stringMatching(/^leaks .*none1 KiB1$/)]);
    child.stdin?.write('.');
    await expect
      .poll(() => rows.allTextContents())
      .toEqual([expect.stringMatching(/^leaks .*\+1 KiB2 KiB2$/), expect.stringMatching(/^holds .*none64 MiB1$/)]);
    expect(await accessibilityFaults(page)).toEqual([]);
    child.stdin?.end();
    expect(takeFaults()).toEqual([]);
  });

  test('has rows that fit a narrow screen, and a status that does not look like a button', async () => {
    const page = await openPage(server.url, { viewport: { width: 390, height: 900 } });
    await expect.poll(() => cellText(page, 'Resources', 'training', 'live')).toBe('0 B');
    const widths = await page.evaluate(() =>
      [...document.querySelectorAll('.table')].map(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth),
    );
    expect(Math.max(...widths)).toBe(0);
    const styleOf = (selector: string) => page.locator(selector).evaluate((element) => getComputedStyle(element).borderStyle);
    expect(await styleOf('#status')).toBe('none');
    expect(await styleOf('#pause')).toBe('solid');
    expect(await accessibilityFaults(page)).toEqual([]);
    expect(takeFaults()).toEqual([]);
  });

  test('says that the process ended, and its status', async () => {
    const { child, url } = await watchedProcess();
    const page = await openPage(url);
    await page.getByText('Live', { exact: true }).waitFor();
    child.stdin?.end();
    await page.getByText(/^The process ended with status 7 at \d\d:\d\d:\d\d\.$/).waitFor();
    expect(takeFaults()).toEqual([]);
  });

  test('says that the connection is lost when the process is killed', async () => {
    const { child, url } = await watchedProcess();
    const page = await openPage(url);
    await page.getByText('Live', { exact: true }).waitFor();
    child.kill('SIGKILL');
    await page.getByText(/^No connection since \d\d:\d\d:\d\d: the process has ended or is busy\.$/).waitFor();
    takeFaults();
  });
});

/** A process that serves its statistics, and exits with status 7 when its standard input ends. */
async function watchedProcess(more = ''): Promise<{ readonly child: ChildProcess; readonly url: string }> {
  const code = `
    import { DeviceBuffer, HostMemoryResource, MiB, Stream } from 'cistern';
    ${more}
    process.stdin.resume().on('end', () => { process.exitCode = 7; });
  `;
  const env = { ...process.env, CISTERN_WATCH: '1', CISTERN_WATCH_INTERVAL: '50' };
  const child = spawn(process.execPath, ['--input-type=module', '--eval', code], { env, stdio: ['pipe', 'inherit', 'pipe'] });
  const url = await new Promise<string>((resolve) => {
    child.stderr.on('data', (text) => {
      const found = /http:\S+/.exec(String(text));
      if (found !== null) resolve(found[0]);
    });
  });
  return { child, url };
}
