import { ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { type MetricLabels, type StatisticsMetric, statisticsMetrics } from './statistics-metrics.js';
import type { StatisticsSample } from './statistics-sample.js';

/** The media type of {@link prometheusText}'s result. */
export const prometheusContentType = 'text/plain; version=0.0.4; charset=utf-8';

const unitSuffixes: Readonly<Record<string, string>> = { By: '_bytes', '1': '_ratio' };

/**
 * A sample in Prometheus' text format 0.0.4. Serve it with the media type `text/plain;
 * version=0.0.4; charset=utf-8`.
 * @example
 * ```ts
 * import { createServer } from 'node:http';
 *
 * createServer((_request, response) => {
 *   response.setHeader('Content-Type', 'text/plain; version=0.0.4; charset=utf-8');
 *   response.end(prometheusText(sampleStatistics()));
 * }).listen(9464, '127.0.0.1');
 * ```
 * @throws ArgumentTypeError if it is not a sample.
 */
export function prometheusText(sample: StatisticsSample): string {
  assertSample(sample);
  const lines: string[] = [];
  for (const metric of statisticsMetrics) {
    const name = prometheusName(metric);
    const values: string[] = [];
    metric.read(sample, (value, labels) => values.push(`${name}${labelText(labels)} ${value}`));
    if (values.length > 0) lines.push(`# HELP ${name} ${metric.description}`, `# TYPE ${name} ${metric.kind}`, ...values);
  }
  return `${lines.join('\n')}\n`;
}

/** The lists of a sample that metrics are read from. */
const lists = ['resources', 'layers', 'devices', 'libraries', 'accounts', 'admissions', 'spills', 'bufferSites', 'leakSites'] as const;

function assertSample(sample: Partial<StatisticsSample> | null | undefined): void {
  if (typeof sample !== 'object' || sample === null) {
    throw new ArgumentTypeError(`sample must be what sampleStatistics() returns, got ${formatValue(sample)}`);
  }
  const missing =
    lists.find((list) => !Array.isArray(sample[list])) ?? (typeof sample.driverCalls === 'object' ? undefined : 'driverCalls');
  if (missing === undefined) return;
  throw new ArgumentTypeError(
    `sample must be what sampleStatistics() returns, got one whose ${missing} are ${formatValue(sample[missing])}`,
  );
}

/** The name that a metric has in Prometheus according to OpenTelemetry's rules. */
function prometheusName({ name, kind, unit }: StatisticsMetric): string {
  return `${name.replaceAll('.', '_')}${unitSuffixes[unit] ?? ''}${kind === 'counter' ? '_total' : ''}`;
}

function labelText(labels: MetricLabels): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escapeLabel(value)}"`);
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`;
}

function escapeLabel(value: string): string {
  return value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n');
}
