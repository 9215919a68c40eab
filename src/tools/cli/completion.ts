import { Argument, Command, type Option } from 'commander';
import type { Terminal } from './terminal.js';

const shells = ['bash', 'zsh', 'fish'] as const;

type Shell = (typeof shells)[number];

const examples = `
The script holds the commands, options and choices of this version: regenerate it after an upgrade.

Examples:
  $ source <(cistern completion bash)                                   # this shell; in ~/.bashrc every shell
  $ source <(cistern completion zsh)                                    # after compinit, the same in ~/.zshrc
  $ cistern completion fish > ~/.config/fish/completions/cistern.fish
`;

/** `cistern completion`: prints a script that makes a shell complete the command. */
export function completionCommand(terminal: Terminal): Command {
  const command = new Command('completion')
    .addArgument(new Argument('<shell>', 'the shell').choices(shells))
    .addHelpText('after', examples);
  return command.action((shell: Shell) => {
    terminal.stdout.write({ bash: bashScript, zsh: zshScript, fish: fishScript }[shell](describe(command.parent as Command)));
  });
}

interface CommandWords {
  readonly name: string;
  readonly description: string;
  readonly options: readonly OptionWords[];
  /** The choices of the first argument. */
  readonly choices: readonly string[];
}

interface OptionWords {
  /** `--output`, and `-o` if there is a short form. */
  readonly flags: readonly string[];
  readonly description: string;
  readonly takesValue: boolean;
  readonly choices: readonly string[];
}

function describe(program: Command): CommandWords[] {
  const help = program.createHelp();
  return help
    .visibleCommands(program)
    .filter((command) => command.name() !== 'help')
    .map((command) => ({
      name: command.name(),
      description: command.description(),
      options: help.visibleOptions(command).map(describeOption),
      choices: command.registeredArguments[0]?.argChoices ?? [],
    }));
}

function describeOption({ short, long, description, required, optional, argChoices }: Option): OptionWords {
  const flags = [short, long].filter((flag) => flag !== undefined);
  return { flags, description, takesValue: required || optional, choices: argChoices ?? [] };
}

/** If the script offers nothing, bash completes file names. */
function bashScript(commands: readonly CommandWords[]): string {
  const names = commands.map(({ name }) => name).join(' ');
  const cases = commands.map(({ name, options, choices }) => {
    const values = options.filter(({ takesValue }) => takesValue);
    const byOption = values.map((option) => `        ${option.flags.join('|')}) words="${option.choices.join(' ')}" ;;`);
    const flags = options.flatMap((option) => option.flags).join(' ');
    return `    ${name})
      case "$previous" in
${byOption.join('\n')}
        *) if [[ $current == -* ]]; then words="${flags}"; else words="${choices.join(' ')}"; fi ;;
      esac
      ;;`;
  });
  return `# bash completion of cistern
_cistern() {
  local current="\${COMP_WORDS[COMP_CWORD]}" previous="\${COMP_WORDS[COMP_CWORD-1]}" words=""
  # Bash takes --option=value apart.
  [[ $current == = ]] && current=""
  [[ $previous == = ]] && previous="\${COMP_WORDS[COMP_CWORD-2]}"
  case "$COMP_CWORD:\${COMP_WORDS[1]}" in
    1:*) words="${names} --help --version" ;;
${cases.map((text) => text.replace(/^( {4})/, '$1*:')).join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _cistern cistern
`;
}

function zshScript(commands: readonly CommandWords[]): string {
  const text = (words: string) => words.replace(/[\\[\]:]/g, '\\$&').replaceAll("'", "'\\''");
  const values = (choices: readonly string[]) => (choices.length === 0 ? '_files' : `(${choices.join(' ')})`);
  const specification = ({ flags, description, takesValue, choices }: OptionWords) =>
    flags.map((flag) => `'*${flag}[${text(description)}]${takesValue ? `:value:${values(choices)}` : ''}'`).join(' ');
  const cases = commands.map(
    ({ name, options, choices }) =>
      `        ${name}) _arguments ${[...options.map(specification), `'*:argument:${values(choices)}'`].join(' ')} ;;`,
  );
  return `#compdef cistern
_cistern() {
  local context state state_descr line
  typeset -A opt_args
  local -a commands=(${commands.map(({ name, description }) => `'${name}:${text(description)}'`).join(' ')})
  _arguments -C '(- *)--help[display help for command]' '(- *)--version[output the version number]' '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $words[1] in
${cases.join('\n')}
      esac
      ;;
  esac
}
compdef _cistern cistern
`;
}

function fishScript(commands: readonly CommandWords[]): string {
  const quoted = (words: string) => `'${words.replace(/[\\']/g, '\\$&')}'`;
  const lines = [
    '# fish completion of cistern',
    'complete -c cistern -e',
    "complete -c cistern -n __fish_use_subcommand -f -a '--help --version'",
  ];
  for (const { name, description, options, choices } of commands) {
    lines.push(`complete -c cistern -n __fish_use_subcommand -f -a ${name} -d ${quoted(description)}`);
    const line = `complete -c cistern -n '__fish_seen_subcommand_from ${name}'`;
    if (choices.length > 0) lines.push(`${line} -f -a ${quoted(choices.join(' '))}`);
    for (const option of options) {
      const flags = option.flags.map((flag) => (flag.startsWith('--') ? `-l ${flag.slice(2)}` : `-s ${flag.slice(1)}`)).join(' ');
      const value = !option.takesValue ? '' : option.choices.length === 0 ? ' -r -F' : ` -x -a ${quoted(option.choices.join(' '))}`;
      lines.push(`${line} ${flags}${value} -d ${quoted(option.description)}`);
    }
  }
  return `${lines.join('\n')}\n`;
}
