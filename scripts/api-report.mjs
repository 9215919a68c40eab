/**
 * Writes the public interface to api/, one file for each entry of the package: `npm run api`. With
 * `--check`, which `npm run check` uses, it fails if the interface differs from api/. Reads the
 * declarations in dist/.
 */
import { mkdirSync, readFileSync } from 'node:fs';
import { argv, exit } from 'node:process';
import { fileURLToPath } from 'node:url';
import { Extractor, ExtractorConfig, ExtractorLogLevel } from '@microsoft/api-extractor';

const root = fileURLToPath(new URL('..', import.meta.url));
const manifest = JSON.parse(readFileSync(`${root}package.json`, 'utf8'));
const isCheck = argv.includes('--check');
const silent = { logLevel: ExtractorLogLevel.None };
const reportFolder = `${root}api`;
mkdirSync(reportFolder, { recursive: true });

for (const [entry, { types }] of Object.entries(manifest.exports)) {
  if (types === undefined) continue;
  const name = ['cistern', ...entry.split('/').slice(1)].join('-');
  const config = ExtractorConfig.prepare({
    packageJsonFullPath: `${root}package.json`,
    configObjectFullPath: undefined,
    configObject: {
      projectFolder: root,
      mainEntryPointFilePath: `${root}${types.slice(2)}`,
      compiler: { tsconfigFilePath: `${root}tsconfig.json` },
      apiReport: {
        enabled: true,
        reportFolder,
        reportTempFolder: `${root}build-tests/api`,
        reportFileName: name,
        includeForgottenExports: false,
      },
      newlineKind: 'lf',
      messages: {
        compilerMessageReporting: { default: silent },
        extractorMessageReporting: { default: silent },
        tsdocMessageReporting: { default: silent },
      },
    },
  });
  const { apiReportChanged } = Extractor.invoke(config, { localBuild: !isCheck, messageCallback: (message) => (message.handled = true) });
  if (isCheck && apiReportChanged) {
    console.error(`the public interface differs from api/${name}.api.md: run "npm run api" and look at the difference`);
    exit(1);
  }
}
