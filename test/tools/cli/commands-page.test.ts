import { PassThrough } from 'node:stream';
import { expect, test } from 'vitest';
import { createProgram } from '../../../src/tools/cli/program.js';
import { terminalOf } from '../../../src/tools/cli/terminal.js';

const introduction = `The package has one command, \`cistern\`: \`npx cistern\` if it is installed in a project.
\`--version\` prints its version, and \`--help\` after a command prints what follows here. Results go to
standard output, everything else to standard error. The exit status is 0 for success, 1 if what was
asked for failed, and 2 if an argument or a file is wrong.`;

test('docs/commands.md has the help of every command (vitest -u writes it)', async () => {
  const stdout = new PassThrough();
  const { commands } = await createProgram(terminalOf({ stdout, stderr: stdout }), () => {});
  const parts = commands.map((command) => {
    command.configureOutput({ ...command.configureOutput(), getOutHelpWidth: () => 100 }).outputHelp();
    // The description stands above the help.
    const help = allOf(stdout).replace(/(?<=^Usage: .*\n)\n(?:.+\n)+/, '');
    return `## ${command.name()}\n\n${command.description()}\n\n\`\`\`text\n${help.trim()}\n\`\`\`\n`;
  });
  await expect(`# Commands\n\n${introduction}\n\n${parts.join('\n')}`).toMatchFileSnapshot('../../../docs/commands.md');
});

/** What a stream has. Since Node 26, `read` returns one chunk of it. */
function allOf(stream: PassThrough): string {
  let text = '';
  for (let chunk = stream.read(); chunk !== null; chunk = stream.read()) text += chunk;
  return text;
}
