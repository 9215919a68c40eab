import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { Output } from '../../src/tools/cli/output.js';
import { createProgram } from '../../src/tools/cli/program.js';

const pages = [
  'README.md',
  'examples/README.md',
  ...['docs', 'docs/guides'].flatMap((folder) => readdirSync(folder).map((name) => `${folder}/${name}`)),
];

/** The commands in a page's blocks for a shell, as words; what comes after a pipe or a comment is another matter. */
function commandsOf(page: string): string[][] {
  const blocks = [...readFileSync(page, 'utf8').matchAll(/^```sh\n(.*?)^```/gms)].map(([, block = '']) => block.replace(/\\\n/g, ' '));
  return blocks
    .flatMap((block) => block.split('\n'))
    .flatMap((line) => /^(?:\w+=\S+ )*(?:npx )?cistern (.*)$/.exec(line)?.[1] ?? [])
    .map((line) => [...line.replace(/ (?:#|[|&>]).*/, '').matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain = '']) => quoted ?? plain));
}

const terminal = { stdout: new Output(process.stdout), stderr: new Output(process.stderr) };
const program = await createProgram(terminal, () => {});

test.each(pages.filter((page) => page.endsWith('.md') && commandsOf(page).length > 0))(
  'every command in %s has its arguments, and options that there are',
  (page) => {
    const faults = commandsOf(page).flatMap(([name = '', ...words]) => {
      const command = program.commands.find((each) => each.name() === name);
      if (command === undefined) return name.startsWith('-') ? [] : [`there is no cistern ${name}`];
      // What another program gets is none of the command's.
      const passed = words.indexOf('--');
      const { operands, unknown } = command.parseOptions(passed < 0 ? words : words.slice(0, passed));
      const required = passed < 0 ? command.registeredArguments.filter((argument) => argument.required).length : 0;
      if (operands.length < required) return [`cistern ${[name, ...words].join(' ')} lacks an argument`];
      return unknown.length > 0 && name !== 'watch' && name !== 'run' ? [`cistern ${name} has no option ${unknown[0]}`] : [];
    });
    expect(faults).toEqual([]);
  },
);

test.each([
  ['test/sweep/run-sweep.mjs', ['from']],
  ['test/property/run-prove.mjs', []],
])('%s --help has every option', (file, own) => {
  const options = [...readFileSync(file, 'utf8').matchAll(/^ {4}(\w+): \{ type: /gm)].map(([, name]) => name as string);
  const { status, stdout } = spawnSync(process.execPath, [file, '--help'], { encoding: 'utf8' });
  expect(status).toBe(0);
  expect(options.length).toBeGreaterThan(2);
  const missing = options.filter((name) => !new RegExp(`--${name}\\b`).test(stdout));
  expect(missing).toEqual([...own, 'help']);
});
