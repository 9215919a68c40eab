import { Command, InvalidArgumentError, Option } from 'commander';
import { formatBytes } from '../../basics/units.js';
import { defaultSocketPath } from '../../lasting/local-socket.js';
import { type KeepState, listRegions, removeRegion, setShare } from '../../lasting/manage-regions.js';
import { serveRegions } from '../../lasting/serve-regions.js';
import { jsonOption, parseSize } from './options.js';
import { type Column, formatTable } from './table.js';
import { note, type Terminal } from './terminal.js';

interface ShareOption {
  readonly name: string;
  readonly bytes: number;
}

interface KeepCommandOptions {
  readonly socket?: string | undefined;
  readonly limit?: number | undefined;
  readonly list?: true | undefined;
  readonly remove?: string | undefined;
  readonly share?: readonly ShareOption[] | undefined;
  readonly json?: true | undefined;
}

const columns = columnsOf('region', 'state', 'size', 'layout', 'processes');
const columnsOfShares = columnsOf('share', 'size', 'processes');

const examples = `
Programs use it with LastingMemoryResource of cistern/lasting. It uses no device itself: it holds descriptors of
memory that programs made. If it ends, regions end with it, except in the programs that are using them. Only processes of the same
user can connect to it. Linux only.

Exit status: 0; 1 if it cannot listen, or none answers.

Examples:
  $ cistern keep --limit 40GiB &
  $ cistern keep --list
  $ cistern keep --remove weights
  $ cistern keep --share caches=20GiB
`;

/** `cistern keep`: holds memory that outlives the processes which made it. */
export function keepCommand(terminal: Terminal): Command {
  return new Command('keep')
    .addOption(new Option('--socket <path>', 'where it listens (default: the value of CISTERN_KEEP, or a path of this user)'))
    .addOption(new Option('--limit <size>', 'the most bytes that all regions may have (default: no limit)').argParser(parseSize))
    .addOption(new Option('--list', 'print the regions of the one that runs, and do not become one').conflicts(['limit', 'remove']))
    .addOption(new Option('--remove <region>', 'end a region that no process uses').conflicts('limit'))
    .addOption(
      new Option('--share <name=size>', 'make a share, or change it, of the one that runs; repeatable')
        .argParser(parseShare)
        .conflicts(['limit', 'list', 'remove']),
    )
    .addOption(jsonOption())
    .addHelpText('after', examples)
    .action((options: KeepCommandOptions) => {
      const socket = options.socket ?? defaultSocketPath();
      if (options.list === true) {
        printState(listRegions({ socket }), options.json === true, terminal);
      } else if (options.remove !== undefined) {
        const bytes = removeRegion(options.remove, { socket });
        const text = bytes === 0 ? 'there is no such region' : `${formatBytes(bytes)} are free again`;
        terminal.stdout.write(`${options.json === true ? JSON.stringify({ bytes }) : text}\n`);
      } else if (options.share !== undefined) {
        for (const { name, bytes } of options.share) setShare(name, bytes, { socket });
        printState(listRegions({ socket }), options.json === true, terminal);
      } else {
        const { limit = Number.POSITIVE_INFINITY } = options;
        const most = Number.isFinite(limit) ? `at most ${formatBytes(limit)}` : 'without a limit';
        serveRegions(socket, limit, () => note(terminal, `keeps regions ${most}; programs connect to ${socket}`));
      }
    });
}

function printState(state: KeepState, isJson: boolean, terminal: Terminal): void {
  const limitBytes = Number.isFinite(state.limitBytes) ? state.limitBytes : null;
  if (isJson) {
    terminal.stdout.write(`${JSON.stringify({ ...state, limitBytes }, null, 2)}\n`);
    return;
  }
  const used = state.regions.reduce((sum, { bytes }) => sum + bytes, 0);
  const rows = state.regions.map(({ region, state: is, bytes, layout, processes }) => [
    ...[region, is, formatBytes(bytes), layout],
    processes.join(' ') || 'none',
  ]);
  if (rows.length > 0) terminal.stdout.write(formatTable(columns, rows, 'table', terminal.stdout));
  const shares = state.shares.map(({ share, bytes, processes }) => [share, formatBytes(bytes), processes.join(' ') || 'none']);
  if (shares.length > 0) terminal.stdout.write(formatTable(columnsOfShares, shares, 'table', terminal.stdout));
  terminal.stdout.write(`${formatBytes(used)} of ${limitBytes === null ? 'no limit' : formatBytes(limitBytes)}\n`);
}

function columnsOf(...titles: readonly string[]): readonly Column[] {
  return titles.map((title) => ({ title, align: title === 'size' ? 'right' : 'left' }));
}

function parseShare(text: string, previous: readonly ShareOption[] | undefined): readonly ShareOption[] {
  const equals = text.indexOf('=');
  if (equals < 1) throw new InvalidArgumentError('It must be a name and a size, such as caches=20GiB.');
  const size = text.slice(equals + 1);
  return [...(previous ?? []), { name: text.slice(0, equals), bytes: size === '0' ? 0 : parseSize(size) }];
}
