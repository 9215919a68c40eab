import { Argument, Command, InvalidArgumentError, Option } from 'commander';
import { nearestWord } from '../../basics/nearest-word.js';
import { formatCount } from '../../basics/units.js';
import { writeWhole } from '../files/write-whole.js';
import { generateLog, workloadNames } from '../replay/generate-log.js';
import { type WorkloadName, workloads } from '../replay/generate-workloads.js';
import { FileOption, forceOption } from './command-files.js';
import { integerParser } from './options.js';
import { progressBar } from './progress-bar.js';
import { type Terminal, tellOfFile } from './terminal.js';

const examples = `
Workloads:
${workloadNames.map((name) => `  ${name.padEnd(13)}${workloads[name].summary} (${formatCount(workloads[name].defaultEvents)} events)`).join('\n')}

The same seed gives the same log on every machine. Everything is freed at the end, so there are a few more events than requested.

Examples:
  $ cistern generate multi-stream -o multi-stream.csv.gz
  $ cistern generate dl-training --seed 7 --events 100000 | head
  $ cistern generate rmm-random -o random.csv && cistern replay random.csv --resource 'pool(cuda)'
`;

interface GenerateCommandOptions {
  readonly seed: number;
  readonly events?: number | undefined;
  readonly output?: string | undefined;
}

/** `cistern generate`: writes the log of an imaginary program. */
export function generateCommand(terminal: Terminal): Command {
  return new Command('generate')
    .addArgument(new Argument('<workload>', 'the kind of log').choices(workloadNames).argParser(parseWorkload))
    .addOption(new Option('--seed <n>', 'a different seed gives a different log of the same kind').argParser(integerParser(0)).default(1))
    .addOption(new Option('--events <n>', 'the approximate number of events (default: see below)').argParser(integerParser(2)))
    .addOption(
      new FileOption('-o, --output <file>', 'the file to write, as gzip if its name ends in .gz (default: standard output)', 'overwritten'),
    )
    .addOption(forceOption())
    .addHelpText('after', examples)
    .action((workload: WorkloadName, options: GenerateCommandOptions) => generate(workload, options, terminal));
}

async function generate(workload: WorkloadName, options: GenerateCommandOptions, terminal: Terminal): Promise<void> {
  const { seed, events = workloads[workload].defaultEvents, output } = options;
  if (output === undefined) {
    for await (const piece of generateLog(workload, { seed, events })) {
      await terminal.stdout.send(piece);
    }
    return;
  }
  const bar = progressBar(terminal, 'generating', events, (perSecond) => `${formatCount(Math.round(perSecond))} events/s`);
  let count = 0;
  const onProgress = (written: number) => {
    count = written;
    bar.update(Math.min(written, events), '');
  };
  try {
    await writeWhole(output, async (sink) => {
      for await (const piece of generateLog(workload, { seed, events, onProgress })) await sink.write(piece);
    });
  } finally {
    bar.stop();
  }
  await tellOfFile(terminal, output, `${formatCount(count)} events of ${workload}, seed ${seed}`);
}

function parseWorkload(text: string): WorkloadName {
  const found = workloadNames.find((name) => name === text);
  if (found !== undefined) return found;
  const nearest = nearestWord(text, workloadNames);
  const question = nearest === undefined ? '' : ` Did you mean ${nearest}?`;
  throw new InvalidArgumentError(`Workloads are ${workloadNames.join(', ')}.${question}`);
}
