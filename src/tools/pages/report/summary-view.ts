import { neverEnds } from '../../formats/report/report-run.js';
import { externalFragmentation } from '../../report/fragmentation.js';
import { element } from '../common/dom.js';
import { formatBytes, formatCount, formatShare, formatTime } from '../common/format.js';
import type { ReportState, View } from './report-state.js';
import { section } from './section.js';
import { scrollable } from './tables.js';

/** What the log is, and what is wrong with it. */
export class FactsView implements View {
  readonly root = element('div');
  readonly #state: ReportState;
  readonly #damage = element('p', { class: 'damage', role: 'note' });
  readonly #facts = element('p', { class: 'muted' });
  readonly #notes = element('div');

  constructor(state: ReportState) {
    this.#state = state;
    this.root.append(this.#facts, this.#notes, this.#damage);
  }

  update(): void {
    const { run } = this.#state.model;
    const began =
      run.startedAt === undefined
        ? 'The log has no date.'
        : `It began on ${new Date(run.startedAt + run.utcOffsetMinutes * 60_000).toISOString().slice(0, 19).replace('T', ' at ')} local time.`;
    const duration = formatTime(run.durationNanoseconds, run.durationNanoseconds);
    this.#facts.textContent = `${run.source}: ${formatCount(run.eventCount)} events in ${duration}. ${began}`;
    this.#notes.replaceChildren(...run.notes.map((note) => scrollable(element('pre', { class: 'note' }, note), 'Notes of the program')));
    const notes = [];
    if (run.damage !== undefined) {
      const { offset, fault, isTruncation } = run.damage;
      notes.push(
        `${isTruncation ? 'The log is cut off' : 'The log is damaged'} at byte ${formatCount(offset)}: ${fault}. Later events are missing here.`,
      );
    }
    if (run.skippedRecordCount > 0) {
      notes.push(`${formatCount(run.skippedRecordCount)} records are missing here, because only a newer cistern knows their kind.`);
    }
    if (run.unmatchedFreeCount > 0) {
      notes.push(`${formatCount(run.unmatchedFreeCount)} frees are of memory that was allocated before the log began.`);
    }
    this.#damage.textContent = notes.join(' ');
    this.#damage.hidden = notes.length === 0;
  }
}

/** So few streams are named beside their number. */
const mostNamedStreams = 4;

/** The key figures for the selection. */
export class SummaryView implements View {
  readonly root: HTMLElement;
  readonly isPatient = true;
  readonly #state: ReportState;
  readonly #cards = element('dl', { class: 'cards' });

  constructor(state: ReportState) {
    this.#state = state;
    this.root = section('summary', 'Figures', this.#cards);
  }

  update(): void {
    const { model, range, selection } = this.#state;
    const { run, mask, live, reserved, filter } = model;
    const { from, to } = model.changesIn(range);
    const peak = model.peakIn(range);
    let allocations = 0;
    let heldCount = 0;
    let heldBytes = 0;
    const { spans } = run;
    for (let span = 0; span < spans.count; span++) {
      if (mask[span] !== 1) continue;
      const start = spans.starts[span] as number;
      if (start < from || start >= to) continue;
      allocations++;
      if (spans.ends[span] !== neverEnds) continue;
      heldCount++;
      heldBytes += spans.bytes[span] as number;
    }
    let failures = 0;
    for (let failure = 0; failure < run.failures.count; failure++) {
      const time = run.failures.times[failure] as number;
      if (run.failures.layerOf[failure] === filter.layer && time >= range.from && time <= range.to) failures++;
    }
    const reservedPeak = reserved?.indexOfMaximum(from, to) ?? -1;
    const cards: [string, string, string][] = [
      [
        'Peak live',
        peak < 0 ? '–' : formatBytes(live.values[peak] as number),
        peak < 0 ? '' : `at ${this.#state.formatTime(run.times[peak] as number)}`,
      ],
      [
        'Peak reserved',
        reservedPeak < 0 ? '–' : formatBytes(reserved?.values[reservedPeak] as number),
        reservedPeak < 0 ? 'not in the log' : this.#overPeak(reserved?.values[reservedPeak] as number, live.values[peak] as number),
      ],
      ['Allocations', formatCount(allocations), `${formatCount(to - from)} changes`],
      ['Failed', formatCount(failures), failures === 0 ? 'none' : 'see the marks ✕'],
      ['Never freed', formatCount(heldCount), heldCount === 0 ? 'none' : formatBytes(heldBytes)],
      ['Threads', formatCount(run.threads.length), ''],
      ['Streams', formatCount(run.streams.length), this.#streamNote()],
    ];
    this.#cards.replaceChildren(...cards.map((card) => this.#card(...card)));
    this.#cards.setAttribute('aria-label', selection === undefined ? 'Figures of the whole log' : 'Figures of the selected time');
    if (peak >= 0 && reserved !== undefined) this.#addFragmentation(peak);
  }

  #card(name: string, value: string, note: string): HTMLElement {
    return element('div', {}, element('dt', {}, name), element('dd', {}, element('strong', {}, value), element('span', {}, note)));
  }

  #overPeak(reserved: number, live: number): string {
    return live > 0 ? `${(reserved / live).toFixed(2)} × peak live` : '';
  }

  #streamNote(): string {
    const { streams, eventRecordCount, eventWaitCount } = this.#state.model.run;
    const names = streams.length <= mostNamedStreams ? streams.join(', ') : '';
    const events =
      eventRecordCount + eventWaitCount === 0 ? '' : `${formatCount(eventRecordCount)} events, ${formatCount(eventWaitCount)} waits`;
    return [names, events].filter((note) => note !== '').join('; ');
  }

  #addFragmentation(peak: number): void {
    const { model } = this.#state;
    const card = this.#card('Fragmentation', '…', 'at the live peak');
    this.#cards.children[1]?.after(card);
    void model.fragmentation().then(({ holes, largestHole }) => {
      const share = externalFragmentation(largestHole.values[peak] as number, holes.values[peak] as number);
      const strong = card.querySelector('strong');
      if (strong !== null) strong.textContent = formatShare(share);
    });
  }
}
