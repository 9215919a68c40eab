import { Command, Option } from 'commander';
import { formatValue, invalidValue } from '../../basics/errors.js';
import { formatBytes, formatCount } from '../../basics/units.js';
import { type ConvertedFormat, convertLog, formatOfName } from '../formats/convert-log.js';
import { type LogFormat, logFormats } from '../formats/log-source.js';
import { FileArgument, forceOption } from './command-files.js';
import { logArgument, logNamed } from './log-argument.js';
import { toOption } from './options.js';
import { type ProgressBar, progressBar } from './progress-bar.js';
import { type Terminal, tellOfFile, warnOfDamage } from './terminal.js';

const examples = `
The input's format is detected from its bytes. The output's name gives the format to write: .csv (RMM's
log), .cistern (a recording), .json (a trace for Perfetto or chrome://tracing), each also with .gz, or
.pickle (a snapshot for PyTorch's memory viewer).

Examples:
  $ cistern convert run.cistern run.csv.gz            # for RMM's replay
  $ cistern convert trace.csv.gz trace.pickle         # for https://pytorch.org/memory_viz
  $ cistern convert snapshot.pickle snapshot.cistern
  $ cistern convert run.cistern upstream.csv --layer cuda
  $ cistern convert run.cistern trace --to chrome-trace
  $ cistern convert report.html run.cistern           # the log that a report was made of
`;

interface ConvertCommandOptions {
  readonly from?: LogFormat | undefined;
  readonly to?: ConvertedFormat | undefined;
  readonly layer?: string | undefined;
  readonly force?: boolean | undefined;
}

/** `cistern convert`: writes a log in another format. */
export function convertCommand(terminal: Terminal): Command {
  return new Command('convert')
    .addArgument(logArgument('<input>'))
    .addArgument(new FileArgument('<output>', 'the path of the file to write', 'overwritten'))
    .addOption(new Option('--from <format>', 'the format of the input (default: detected from its bytes)').choices(logFormats))
    .addOption(toOption())
    .addOption(
      new Option('--layer <name>', 'the layer to write, if the format can hold only one (default: the one nearest to the program)'),
    )
    .addOption(forceOption())
    .addHelpText('after', examples)
    .action((input: string, output: string, options: ConvertCommandOptions) => convert(input, output, options, terminal));
}

async function convert(input: string, output: string, options: ConvertCommandOptions, terminal: Terminal): Promise<void> {
  let step: string | undefined;
  let bar: ProgressBar | undefined;
  const { source, name } = logNamed(input);
  const { force = false, ...conversionOptions } = options;
  const named = formatOfName(output);
  if (!force && options.to !== undefined && named !== undefined && named !== options.to) {
    throw invalidValue(
      `the name ${formatValue(output)} is that of ${named}, but --to says ${options.to}: leave out one of them, or use --force`,
    );
  }
  const conversion = await convertLog(source, output, {
    ...conversionOptions,
    name,
    onProgress: (progress) => {
      if (progress.step !== step) {
        bar?.stop();
        step = progress.step;
        const unit = (perSecond: number) => (step === 'reading' ? formatBytes(perSecond) : `${formatCount(perSecond)} events`);
        bar = progressBar(terminal, step, progress.total ?? progress.done, (perSecond) => `${unit(Math.round(perSecond))}/s`);
      }
      bar?.update(progress.done, '', progress.total ?? progress.done);
    },
  }).finally(() => bar?.stop());
  const { truncation, omissions } = conversion;
  if (truncation !== undefined) warnOfDamage(terminal, name, truncation, 'only the events before that are converted');
  const message = `${formatCount(conversion.eventCount)} events as ${conversion.format}`;
  await tellOfFile(
    terminal,
    output,
    message,
    omissions.map((each) => `left out: ${each}`),
  );
}
