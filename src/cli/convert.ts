import { Command, Option } from 'commander';
import { type ConvertedFormat, convertedFormats, convertLog } from '../formats/convert-log.js';
import type { LogFormat } from '../formats/log-source.js';
import { formatBytes } from '../units.js';
import { type ProgressBar, progressBar } from './progress-bar.js';
import { formatCount, type Terminal, tellOfFile, warn } from './terminal.js';

const examples = `
The bytes of the input say what it is, and the name of the output what to write: .csv (RMM's log), .cistern (a recording), .json (a trace for
Perfetto or chrome://tracing), each also with .gz, or .pickle (a snapshot for PyTorch's memory viewer).

Examples:
  $ cistern convert run.cistern run.csv.gz            # for RMM's replay
  $ cistern convert trace.csv.gz trace.pickle         # for https://pytorch.org/memory_viz
  $ cistern convert snapshot.pickle snapshot.cistern
  $ cistern convert run.cistern upstream.csv --layer cuda
  $ cistern convert run.cistern trace --to chrome-trace
`;

interface ConvertCommandOptions {
  readonly from?: LogFormat;
  readonly to?: ConvertedFormat;
  readonly layer?: string;
}

/** `cistern convert`: writes a log in another format. */
export function convertCommand(terminal: Terminal): Command {
  return new Command('convert')
    .description("Write a log in another format: RMM's CSV, a recording, a snapshot for PyTorch's viewer, or a trace for Perfetto.")
    .argument('<input>', 'the path of the log')
    .argument('<output>', 'the path of the file to write')
    .addOption(
      new Option('--from <format>', 'what the input is (default: what its bytes say)').choices([
        'rmm-csv',
        'recording',
        'pytorch-snapshot',
      ]),
    )
    .addOption(new Option('--to <format>', "what to write (default: what the output's name says)").choices(convertedFormats))
    .addOption(new Option('--layer <name>', 'the layer to write, where the format holds one (default: the one nearest to the program)'))
    .addHelpText('after', examples)
    .action((input: string, output: string, options: ConvertCommandOptions) => convert(input, output, options, terminal));
}

async function convert(input: string, output: string, options: ConvertCommandOptions, terminal: Terminal): Promise<void> {
  let step: string | undefined;
  let bar: ProgressBar | undefined;
  const conversion = await convertLog(input, output, {
    ...options,
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
  if (truncation !== undefined) {
    warn(terminal, `${input} ends early, at byte ${formatCount(truncation.offset)}: ${truncation.fault}; what comes before is converted`);
  }
  const told = [
    `${output}: ${formatCount(conversion.eventCount)} events as ${conversion.format}`,
    ...omissions.map((each) => `left out: ${each}`),
  ];
  await tellOfFile(terminal, output, `${told.join('\n')}\n`);
}
