import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

/** The files that docs/files.md names, by the folders in its headings. A heading below another one names folders within it. */
function namedFiles(): string[] {
  let folder = '';
  let places: string[] = [];
  return readFileSync('docs/files.md', 'utf8')
    .split('\n')
    .flatMap((line) => {
      const [, level, title = ''] = /^(##+) (.*)/.exec(line) ?? [];
      if (level !== undefined) {
        const folders = [...title.matchAll(/`([\w/-]+\/)`/g)].map(([, each]) => each as string);
        if (level === '##') folder = folders[0] ?? '';
        places = level === '##' || folders[0] === 'assembly/' ? folders : folders.map((each) => folder + each);
        return [];
      }
      const [, file] = /^\| `([\w-]+\.ts)` \| \S/.exec(line) ?? [];
      return file === undefined ? [] : [`${places.join()}${file}`];
    });
}

test('docs/files.md has each file of src/ and assembly/, once', () => {
  const files = ['src', 'assembly'].flatMap((folder) =>
    readdirSync(folder, { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith('.ts'))
      .map((file) => `${folder}/${file.replaceAll('\\', '/')}`),
  );
  expect(namedFiles().sort()).toEqual(files.sort());
});
