// Looks at pages of docs/api with a browser, as a site of two versions has them, every other one wide in light colours and the rest
// narrow in dark ones: axe-core finds nothing, and no page is wider than the screen. They are of each kind, and those that people read first.
//   --all   each page in both views
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { argv, exit } from 'node:process';
import { fileURLToPath, pathToFileURL } from 'node:url';
import axe from 'axe-core';
import { chromium } from 'playwright-core';
import { chromiumOptions, noChromium } from './find-chromium.mjs';
import { joinVersions } from './site-versions.mjs';

const pages = [
  ...['index', 'modules', 'hierarchy', 'modules/cistern', 'modules/cistern_serving'],
  ...['classes/cistern.PoolMemoryResource', 'classes/cistern.DeviceBuffer', 'interfaces/cistern.MemoryResource'],
  ...['functions/cistern.createResource', 'functions/cistern_report.diffRuns', 'types/cistern.DeallocationEvents', 'variables/cistern.MiB'],
  ...['documents/Tutorial', 'documents/Stream-ordered_memory', 'documents/Installing,_devices_and_settings', 'documents/Architecture'],
  ...['documents/Commands', 'documents/Errors', 'documents/Looking_at_a_run', 'documents/Coming_from_RMM,_PyTorch,_CuPy_or_tf.js'],
];

const views = [
  { colorScheme: 'light', viewport: { width: 1280, height: 900 } },
  { colorScheme: 'dark', viewport: { width: 390, height: 900 } },
];

/** A module's name in typedoc's sidebar is a link within what unfolds the module. Both work with keys. */
const excluded = ['#tsd-nav-container summary'];
/** The sidebar is the same on all pages, and takes longer than the rest of most: it is looked at on the first. */
const sidebar = ['#tsd-nav-container'];

const options = chromiumOptions();
if (options === undefined) {
  console.log(`the pages were not looked at: ${noChromium}`);
  exit(0);
}
const site = mkdtempSync(join(tmpdir(), 'cistern-site-'));
const made = fileURLToPath(new URL('../docs/api', import.meta.url));
joinVersions(site, [
  ['next', made],
  ['0.1.0', made],
]);
const browser = await chromium.launch(options);
const faults = [];
await Promise.all(views.map((view, i) => lookAt(view, argv.includes('--all') ? pages : pages.filter((_, j) => j % views.length === i))));
await browser.close();
rmSync(site, { recursive: true });
for (const fault of faults) console.error(fault);
console.log(`${pages.length} pages, ${faults.length} faults`);
exit(faults.length === 0 ? 0 : 1);

async function lookAt({ colorScheme, viewport }, pages) {
  const context = await browser.newContext({ colorScheme, viewport });
  const page = await context.newPage();
  for (const name of pages) {
    await page.goto(pathToFileURL(join(site, 'next', `${name}.html`)).href);
    if ((await page.getByLabel('Version').count()) !== 1) faults.push(`${name}: nothing offers the other versions`);
    await page.evaluate(axe.source);
    const { violations, width } = await page.evaluate(
      async (exclude) => ({
        violations: (await globalThis.axe.run({ exclude })).violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`),
        width: document.documentElement.scrollWidth,
      }),
      name === pages[0] ? excluded : sidebar,
    );
    const view = `${name} (${colorScheme}, ${viewport.width} px)`;
    faults.push(...violations.map((violation) => `${view}: ${violation}`));
    if (width > viewport.width) faults.push(`${view}: it is ${width} px wide`);
  }
  await context.close();
}
