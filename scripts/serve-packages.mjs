// A package registry for tests and for scripts/compatibility.mjs: it serves this repository's own
// packages to the package managers of this machine, on the loopback interface. What else they ask
// for it does not have.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { mainManifest, ownPlatform, platformManifest, platforms } from './package.mjs';

/**
 * @param {{ main: string, platform: string }} tarballs what `packMain` and `packPlatform` have made
 * @returns {Promise<{ address: string, requests: string[], close(): void }>}
 */
export async function servePackages(tarballs) {
  const contents = new Map([
    ['cistern', readFileSync(tarballs.main)],
    [`@cistern/${ownPlatform()}`, readFileSync(tarballs.platform)],
  ]);
  const requests = [];
  let address = '';
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, address).pathname).slice(1);
    requests.push(path);
    const tarball = contents.get(path.replace(/\/-\/.*$/, ''));
    if (path.includes('/-/') && tarball !== undefined) return response.end(tarball);
    const manifest = path === 'cistern' ? mainManifest() : manifestOf(path);
    if (manifest === undefined) return response.writeHead(404, { 'content-type': 'application/json' }).end('{"error":"not found"}');
    // What is for other platforms is never downloaded.
    const bytes = contents.get(path) ?? Buffer.alloc(0);
    const { name, version } = manifest;
    const dist = {
      tarball: `${address}${name}/-/package-${version}.tgz`,
      shasum: createHash('sha1').update(bytes).digest('hex'),
      integrity: `sha512-${createHash('sha512').update(bytes).digest('base64')}`,
    };
    response.writeHead(200, { 'content-type': 'application/json' });
    const times = { created: '2020-01-01T00:00:00.000Z', modified: '2020-01-01T00:00:00.000Z', [version]: '2020-01-01T00:00:00.000Z' };
    return response.end(
      JSON.stringify({
        name,
        time: times,
        'dist-tags': { latest: version },
        versions: { [version]: { ...manifest, _id: `${name}@${version}`, dist } },
      }),
    );
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  address = `http://127.0.0.1:${server.address().port}/`;
  return { address, requests, close: () => server.close() };
}

function manifestOf(path) {
  const platform = path.replace(/^@cistern\//, '');
  return Object.hasOwn(platforms, platform) ? platformManifest(platform) : undefined;
}
