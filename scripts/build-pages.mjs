// Builds the pages of src/tools/pages: each folder there with an index.html becomes one file,
// dist/tools/pages/<folder>.html, which contains its scripts and styles and needs no network. `node
// scripts/build-pages.mjs [folder …]` builds only these. A page may state its connections in `<html
// data-connect="'self'">`; its policy lets it run its own contents and nothing else.
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';
import { build } from 'vite';

const root = fileURLToPath(new URL('..', import.meta.url));
const pages = join(root, 'src', 'tools', 'pages');
const output = join(root, 'dist', 'tools', 'pages');

const names = argv.length > 2 ? argv.slice(2) : readdirSync(pages).filter((name) => existsSync(join(pages, name, 'index.html')));
mkdirSync(output, { recursive: true });
for (const name of names) writeFileSync(join(output, `${name}.html`), inline(await bundle(name)));

/** Vite's output for a page: the text of each file by name. */
async function bundle(name) {
  const { output: files } = await build({
    root: join(pages, name),
    configFile: false,
    logLevel: 'warn',
    build: { write: false, target: 'esnext', cssCodeSplit: false, modulePreload: false, assetsInlineLimit: () => true },
  });
  return new Map(files.map((file) => [basename(file.fileName), String(file.code ?? file.source)]));
}

/** The page with its files inlined, and a policy that allows these by their hashes. */
function inline(files) {
  const html = files.get('index.html');
  const hashes = { script: [], style: [] };
  const element = (tag, text, attributes) => {
    hashes[tag].push(`'sha256-${createHash('sha256').update(text).digest('base64')}'`);
    return `<${tag}${attributes}>${text}</${tag}>`;
  };
  const fileAt = (address) => {
    const text = files.get(basename(address));
    if (text === undefined) throw new Error(`the page refers to ${address}, which is not built with it`);
    return text;
  };
  const whole = html
    .replace(/<link rel="stylesheet"[^>]* href="([^"]+)"[^>]*>/g, (_, address) => element('style', fileAt(address), ''))
    .replace(/<script type="module"[^>]* src="([^"]+)"[^>]*><\/script>/g, (_, address) =>
      element('script', fileAt(address).replaceAll('</script', '<\\/script').replaceAll('<!--', '\\x3c!--'), ' type="module"'),
    );
  const connect = /<html[^>]* data-connect="([^"]+)"/.exec(html)?.[1] ?? "'none'";
  const policy = [
    "default-src 'none'",
    `script-src ${hashes.script.join(' ')}`,
    `style-src ${hashes.style.join(' ')}`,
    `connect-src ${connect}`,
    'img-src data: blob:',
    'worker-src blob:',
    "base-uri 'none'",
    "form-action 'none'",
  ].join('; ');
  return whole.replace('<head>', () => `<head>\n    <meta http-equiv="Content-Security-Policy" content="${policy}">`);
}
