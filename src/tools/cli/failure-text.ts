import { formatBytes, formatCount } from '../../basics/units.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import type { FailureAlternative, FailureExplanation, FailureReason } from '../replay/explain-failure.js';
import { describeStreams } from './options.js';
import { type Output, visibleInLine } from './output.js';
import { escapeMarkdown, formatHeading, formatTable } from './table.js';

const reasonTexts: Readonly<Record<FailureReason, string>> = {
  maximum: 'The live bytes and the request together exceed the limit: no allocator could have served it.',
  rounding: 'The live bytes and the request fit into the limit, but no longer once they are rounded up.',
  fragmentation: 'Enough memory was free, but no free block was large enough.',
  'held-back': 'Memory was held back for other streams; the host waited for them, but even then there was not enough.',
  reserved: 'Too little memory was free, and the resource could not take another block from its upstream.',
};

const changeTexts: Readonly<Record<FailureAlternative['change'], string>> = {
  events: 'another policy',
  maximum: 'a larger maximum',
  initial: 'all at once',
};

/** The text that explains why a replay ran out of memory. */
export function failureText(explanation: FailureExplanation, log: AllocationLog, format: 'table' | 'markdown', stream: Output): string {
  const { resource, failure, reasons, live, kept, alternatives } = explanation;
  const plain = (text: string) => (format === 'markdown' ? escapeMarkdown(text) : text);
  const section = (heading: string, columns: readonly string[], rows: readonly (readonly string[])[], rightFrom: number) => {
    const aligned = columns.map((title, i) => ({ title, align: i < rightFrom ? ('left' as const) : ('right' as const) }));
    return formatHeading(heading, format, stream) + formatTable(aligned, rows, format, stream);
  };
  const asked = `${formatBytes(failure.bytes)} (${failure.bytes} bytes) on stream ${failure.stream}`;
  const sections = [
    formatHeading(`${resource}: out of memory at line ${failure.line}`, format, stream) +
      plain(
        `${visibleInLine(`${log.source}, line ${failure.line} (event ${formatCount(failure.event)}), ${describeStreams(explanation.streams)}: ${asked}`)}\n${failure.message}\n`,
      ),
    reasons.map((reason) => `${plain(reasonTexts[reason])}\n`).join(''),
    section(
      `Live: ${formatBytes(live.bytes)} in ${formatCount(live.count)} allocations`,
      ['stream', 'live', 'allocations'],
      live.streams.map(({ stream: name, bytes, count }) => [name, formatBytes(bytes), formatCount(count)]),
      1,
    ),
    section(
      'Largest live allocations',
      ['stream', 'thread', 'bytes', 'line'],
      live.largest.map(({ stream: name, thread, bytes, line }) => [name, thread, formatBytes(bytes), String(line)]),
      2,
    ),
  ];
  if (kept.length > 0) {
    sections.push(
      section(
        'Kept',
        ['layer', 'reserved', 'blocks', 'allocated', 'free', 'largest free', 'held back before'],
        kept.map((state) => [
          state.layer,
          formatBytes(state.reservedBytes),
          formatCount(state.upstreamBlocks),
          formatBytes(state.allocatedBytes),
          formatBytes(state.freeBytes),
          formatBytes(state.largestFreeBytes),
          formatBytes(state.heldBackBytes),
        ]),
        1,
      ),
    );
  }
  if (alternatives.length > 0) {
    sections.push(
      section(
        'Alternatives tried',
        ['change', 'resource', 'this request', 'the log'],
        alternatives.map((alternative) => [
          changeTexts[alternative.change],
          alternative.resource,
          alternative.survives ? 'served' : 'failed',
          alternative.failure === null ? 'completed' : `failed at line ${alternative.failure.line}`,
        ]),
        4,
      ),
    );
  }
  return sections.join('\n');
}
