import { Command } from 'commander';
import type { OptionDefinition, ResourceKind } from '../../resource-kind.js';
import { everyKind } from '../every-kind.js';
import { jsonOption } from './options.js';
import type { Terminal } from './terminal.js';

const examples = `
Examples:
  $ cistern resources
  $ cistern resources --json
`;

/** `cistern resources`: lists the kinds that `--resource` of `cistern replay` understands. */
export function resourcesCommand(terminal: Terminal): Command {
  return new Command('resources')
    .addOption(jsonOption())
    .addHelpText('after', examples)
    .action(({ json }: { json?: boolean }) => {
      const text = json === true ? `${JSON.stringify(everyKind.map(toJson), undefined, 2)}\n` : toText(terminal);
      terminal.stdout.write(text);
    });
}

function toJson({ name, summary, role, example, options }: ResourceKind): object {
  return {
    name,
    summary,
    role,
    takesUpstream: role !== 'upstream',
    example,
    options: Object.entries(options).map(([option, definition]) => ({ name: option, required: false, ...definition })),
  };
}

function toText(terminal: Terminal): string {
  const { stdout } = terminal;
  const sections = everyKind.map((kind) => {
    const title = `${stdout.bold(kind.name)}${kind.role === 'upstream' ? '' : '(upstream, …)'}: ${kind.summary}`;
    const options = Object.entries(kind.options).map(([name, definition]) => ({
      ...definition,
      text: `${name}=${placeholder(definition)}`,
    }));
    const width = Math.max(...options.map(({ text }) => text.length));
    const lines = options.map(({ text, summary, required, default: byDefault }) => {
      const note = required === true ? 'required' : `default: ${byDefault ?? 'none'}`;
      return `  ${text.padEnd(width)}  ${summary} (${note})`;
    });
    return [title, ...lines, `  for example: ${kind.example}`].join('\n');
  });
  return `${sections.join('\n\n')}\n`;
}

function placeholder({ type, words }: OptionDefinition): string {
  if (type === 'sizes') return '[size, …]';
  return words === undefined ? type : words.join('|');
}
