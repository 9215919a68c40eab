import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { expect, test } from 'vitest';
import { inFolder, outside, outsideEnvironment, outsideProgram } from '../tools/outside/outside.js';
import { accessibilityFaults, describeInBrowser, openPage, takeFaults } from './support.js';

const root = fileURLToPath(new URL('../..', import.meta.url));
const main = join(root, 'dist/tools/cli/main.js');
const index = new URL('../../dist/index.js', import.meta.url).href;

/** A server whose model is loaded by a library that knows nothing of cistern, and whose buffers are cistern's. */
const program = `
  import { createRequire } from 'node:module';
  import { once } from 'node:events';
  import { CudaMemoryResource, DeviceBuffer, MiB, PoolMemoryResource, Stream } from ${JSON.stringify(index)};
  const library = createRequire(import.meta.url)(${JSON.stringify(outside.path === undefined ? '' : outsideProgram('allocates.node'))});
  const model = [64, 32, 16].map((size) => library.allocate(size * MiB));
  const resource = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 8 * MiB });
  const buffer = new DeviceBuffer(2 * MiB, { resource, stream: new Stream() });
  const lines = process.stdin.setEncoding('utf8').iterator();
  await lines.next();
  library.free(model.shift());
  await lines.next();
  process.exit(0);
`;

/** Runs `cistern run -- cistern watch` with the program, until the test is over. */
async function watched(use: (url: string, child: ChildProcess) => Promise<void>): Promise<void> {
  await inFolder(async (folder) => {
    const file = join(folder, 'server.mjs');
    writeFileSync(file, program);
    const watch = [process.execPath, main, 'watch', '--interval', '50', file];
    const child = spawn(process.execPath, [main, 'run', '-q', '-o', join(folder, 'run.cistern'), '--', ...watch], {
      env: { ...process.env, ...outsideEnvironment(), CISTERN_DEVICE: 'cuda' },
      stdio: ['pipe', 'inherit', 'pipe'],
    });
    let errors = '';
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      errors += text;
    });
    try {
      await expect.poll(() => errors).toMatch(/ at http\S+/);
      await use(/ at (http\S+)/.exec(errors)?.[1] as string, child);
    } finally {
      child.kill();
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    }
  });
}

/** The rows of a table. */
function rowsOf(page: Page, caption: string): Promise<string[][]> {
  return page.evaluate((wanted) => {
    const table = [...document.querySelectorAll('table')].find((each) => each.caption?.textContent === wanted);
    return [...(table?.tBodies[0]?.rows ?? [])].map(({ cells }) => [...cells].map(({ textContent }) => textContent ?? ''));
  }, caption);
}

describeInBrowser('the page of a program that cistern run records', () => {
  test.skipIf(outside.path === undefined)("shows cistern's resources and everybody else's memory", () =>
    watched(async (url, child) => {
      const page = await openPage(url);
      await expect
        .poll(() => rowsOf(page, 'All libraries'))
        .toEqual([
          ['allocates.node', '112 MiB', '112 MiB', '0 B', '3'],
          ['cistern', '8 MiB', '8 MiB', '0 B', '1'],
        ]);
      expect((await rowsOf(page, 'Resources')).map((row) => row.slice(0, 2))).toEqual([['pool(cuda)', '2 MiB']]);
      const legend = page.getByRole('list', { name: /^All libraries: bytes on devices/ });
      await expect.poll(() => legend.textContent()).toMatch(/allocates\.node112 MiBcistern8 MiB/);
      child.stdin?.write('free\n');
      await expect.poll(() => rowsOf(page, 'All libraries')).toContainEqual(['allocates.node', '48 MiB', '112 MiB', '0 B', '3']);
      await expect.poll(() => legend.textContent()).toMatch(/allocates\.node48 MiB/);
      expect(await accessibilityFaults(page)).toEqual([]);
      if (process.env['CISTERN_PICTURES'])
        await page.screenshot({ path: join(process.env['CISTERN_PICTURES'], '1280.png'), fullPage: true });

      const narrow = await openPage(url, { viewport: { width: 390, height: 844 } });
      await narrow.getByText('Live', { exact: true }).waitFor();
      await expect.poll(() => rowsOf(narrow, 'All libraries')).toHaveLength(2);
      expect(await narrow.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
      if (process.env['CISTERN_PICTURES'])
        await narrow.screenshot({ path: join(process.env['CISTERN_PICTURES'], '390.png'), fullPage: true });
      expect(takeFaults()).toEqual([]);
    }),
  );
});
