// Checks the pages in docs/api that typedoc made: every link within the site leads to a file and an
// anchor that are there.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { exit } from 'node:process';
import { fileURLToPath } from 'node:url';

const site = fileURLToPath(new URL('../docs/api/', import.meta.url));
const pages = readdirSync(site, { recursive: true })
  .filter((name) => name.endsWith('.html'))
  .map((name) => join(site, name));
const texts = new Map(pages.map((page) => [page, readFileSync(page, 'utf8')]));
const anchors = new Map([...texts].map(([page, text]) => [page, new Set([...text.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id))]));
const faults = [];
for (const [page, text] of texts) {
  for (const [, link] of text.matchAll(/<(?:a|img|link|script)\b[^>]*? (?:href|src)="([^"]+)"/g)) {
    if (/^(?:https?|data|mailto):/.test(link)) continue;
    const [path, anchor] = decodeURIComponent(link.replaceAll('&amp;', '&')).split('#');
    const target = path === '' ? page : resolve(dirname(page), path.split('?')[0]);
    if (!existsSync(target)) faults.push(`${page}: ${link} leads to nothing`);
    else if (anchor && anchors.get(target)?.has(anchor) === false) faults.push(`${page}: ${link} leads to no anchor`);
  }
}
for (const fault of faults) console.error(fault);
console.log(`${pages.length} pages, ${faults.length} dead links`);
exit(faults.length === 0 ? 0 : 1);
