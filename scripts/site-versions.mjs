// Puts the pages of several versions into one site, which needs no server and no address of its own:
//
//   node scripts/site-versions.mjs site next=docs/api 0.2.0=../v0.2.0/docs/api …
//
//   site/index.html    leads to the first version after `next`
//   site/versions.js   lists the versions, and puts the choice of one into the header of every page
//   site/next/…        the pages that `npm run docs` made, each with a link to that script
//
// The script is the same for all versions, so the pages of an old one offer newer ones, too.
import { cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';

/** @param {readonly (readonly [name: string, folder: string])[]} versions the newest first, `next` before it */
export function joinVersions(site, versions) {
  const wrong = versions.find(([name]) => !/^[\w.-]*\w$/.test(name));
  if (wrong !== undefined) throw new Error(`a version must be a name such as next or 0.1.0, got "${wrong[0]}"`);
  mkdirSync(site, { recursive: true });
  for (const [name, folder] of versions) {
    cpSync(folder, join(site, name), { recursive: true });
    const pages = readdirSync(join(site, name), { recursive: true, encoding: 'utf8' })
      .map((path) => path.replaceAll('\\', '/'))
      .filter((path) => path.endsWith('.html'));
    for (const path of pages) {
      const file = join(site, name, path);
      const script = `<script defer src="${'../'.repeat(path.split('/').length)}versions.js"></script>`;
      writeFileSync(file, readFileSync(file, 'utf8').replace('</head>', `${script}</head>`));
    }
    // A page from a file can load a script, and nothing else.
    writeFileSync(join(site, name, 'pages.js'), `globalThis.sitePages = ${JSON.stringify(pages)};\n`);
  }
  const names = versions.map(([name]) => name);
  writeFileSync(join(site, 'versions.js'), `(${offerVersions})(${JSON.stringify(names)});\n`);
  const first = `${names.find((name) => name !== 'next') ?? names[0]}/index.html`;
  writeFileSync(
    join(site, 'index.html'),
    `<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>cistern</title><meta http-equiv="refresh" content="0; url=${first}"></head><body><a href="${first}">cistern</a></body></html>\n`,
  );
}

/** Runs in the pages: a list of versions, of which another one leads to the same page there, or else to its first page. */
function offerVersions(names) {
  const site = new URL('.', document.currentScript.src).href;
  const [own, ...path] = location.href.slice(site.length).split('/');
  const [page] = path.join('/').split(/[?#]/);
  const choice = document.createElement('select');
  choice.setAttribute('aria-label', 'Version');
  choice.style.cssText = 'margin-left: auto; background: inherit; color: inherit; font: inherit; border: 1px solid; border-radius: 4px';
  choice.append(...names.map((name) => new Option(name, name, name === own, name === own)));
  choice.addEventListener('change', () => {
    globalThis.sitePages = undefined;
    const script = document.createElement('script');
    const go = () => {
      const isThere = globalThis.sitePages?.includes(decodeURI(page));
      location.assign(`${site}${choice.value}/${isThere ? page + location.hash : 'index.html'}`);
    };
    script.src = `${site}${choice.value}/pages.js`;
    script.onload = go;
    script.onerror = go;
    document.head.append(script);
  });
  // Whoever comes back finds the version of the page in the list.
  globalThis.addEventListener('pageshow', () => {
    choice.value = own;
  });
  document.querySelector('#tsd-search-trigger').before(choice);
}

if (argv[1] === fileURLToPath(import.meta.url)) {
  const [site, ...versions] = argv.slice(2);
  joinVersions(
    site,
    versions.map((each) => [each.slice(0, each.indexOf('=')), each.slice(each.indexOf('=') + 1)]),
  );
}
