import { type GroupSum, type GrowthReason, liveAfter, neverFreed, neverUsedBytes, sumGroups } from '../../report/answers.js';
import { callSites } from '../../report/call-sites.js';
import type { Extremes } from '../../report/extremes.js';
import type { Grouping } from '../../report/held-bytes.js';
import { bytes, number, words } from '../common/columns.js';
import { button, element } from '../common/dom.js';
import { formatBytes, formatCount, formatShare } from '../common/format.js';
import { groupings } from './groupings.js';
import type { ReportState, View } from './report-state.js';
import { scrollTo, sectionWithChoices } from './section.js';
import { labelledSelect, plainTable, scrollable } from './tables.js';

/** Each list shows so many groups, and sums up the rest. */
const shownGroups = 5;

const growthTexts: Readonly<Record<GrowthReason, string>> = {
  full: 'taken because too little memory was free',
  holes: 'taken although enough memory was free, because no hole was large enough',
  apart: 'taken although a hole was large enough, because it was for another stream or for other sizes',
};

/** What a person opens a report for. Each figure leads to its place in the page. */
export class AnswersView implements View {
  readonly root: HTMLElement;
  readonly isPatient = true;
  readonly #state: ReportState;
  readonly #held = panel('held', 'Never freed');
  readonly #peak = panel('peak', 'The peak, and what was live then');
  readonly #unused = panel('unused', 'Reserved but not used');
  readonly #fits = panel('fits', 'What other stacks would need');
  readonly #empty = element('p', { class: 'damage', role: 'note' });
  readonly #panels = element('div', { class: 'answers' }, this.#held.root, this.#peak.root, this.#unused.root, this.#fits.root);
  #grouping: Grouping;

  constructor(state: ReportState) {
    this.#state = state;
    this.#grouping = tellingGrouping(state);
    const { root: grouping, select } = labelledSelect('By', groupings, (value) => {
      this.#grouping = value as Grouping;
      this.update();
    });
    select.id = 'answers-grouping';
    select.value = this.#grouping;
    this.root = sectionWithChoices('answers', 'At a glance', [grouping], this.#empty, this.#panels);
  }

  update(): void {
    const { model } = this.#state;
    const { spans, failures } = model.run;
    const isEmpty = spans.count + failures.count === 0;
    this.#empty.hidden = !isEmpty;
    this.#panels.hidden = isEmpty;
    this.#empty.textContent =
      'The log has no allocations: the program allocated nothing through a recorded resource. Run it with CISTERN_LOG_FILE=run.cistern to record all of its resources.';
    if (isEmpty) return;
    this.#showHeld();
    this.#showPeak();
    this.#showUnused();
    this.#showFits();
  }

  #showHeld(): void {
    const { model, range } = this.#state;
    const { run, wholeMask } = model;
    const { from, to } = model.changesIn(range);
    const groups = sumGroups(run, neverFreed(run, wholeMask, from, to), this.#grouping);
    const bytes = groups.reduce((sum, group) => sum + group.bytes, 0);
    const count = groups.reduce((sum, group) => sum + group.count, 0);
    if (count === 0) {
      this.#held.show('0 B', 'Everything was freed.');
      return;
    }
    const what = `in ${formatCount(count)} ${count === 1 ? 'allocation' : 'allocations'}, live when the log ends`;
    this.#held.show(formatBytes(bytes), what, this.#list(groups, bytes, 'never freed'), ...this.#hintAtStacks());
  }

  #showPeak(): void {
    const { model, range } = this.#state;
    const { run, wholeMask, wholeLive } = model;
    const { from, to } = model.changesIn(range);
    const peak = wholeLive.indexOfMaximum(from, to);
    if (peak < 0 || wholeLive.values[peak] === 0) {
      this.#peak.show('0 B', 'Nothing was live.');
      return;
    }
    const bytes = wholeLive.values[peak] as number;
    const groups = sumGroups(run, liveAfter(run, wholeMask, peak), this.#grouping);
    const time = run.times[peak] as number;
    this.#peak.show(formatBytes(bytes), element('span', {}, 'live at ', this.#timeLink(time)), this.#list(groups, bytes, 'at the peak'));
  }

  #showUnused(): void {
    const { model, range } = this.#state;
    const { run, reserved, blocks, layerMask } = model;
    const { from, to } = model.changesIn(range);
    const live = model.liveOf(model.filter.layer);
    const peak = reserved === undefined ? -1 : fullest(reserved, live, from, to);
    if (reserved === undefined || blocks === undefined || peak < 0) {
      this.#unused.show(
        'not in the log',
        'The log does not contain reserved memory. Recordings from cistern do, and so do those from "cistern replay --timeline".',
      );
      return;
    }
    const held = reserved.values[peak] as number;
    const unused = Math.max(0, held - (live.values[peak] as number));
    const time = run.times[peak] as number;
    const rows: Unused[] = [];
    if (unused > 0) {
      const never = Math.min(unused, neverUsedBytes(run, layerMask, liveAfter(run, blocks, peak)));
      const showMap = () => scrollToTitle('map');
      if (never > 0)
        rows.push({ bytes: never, text: 'never used by any allocation, because blocks are larger than the requests', show: showMap });
      if (unused > never) rows.push({ bytes: unused - never, text: 'used only before or after that time', show: showMap });
    }
    const list = element('div');
    const show = (more: typeof rows) => list.replaceChildren(unusedTable([...rows, ...more]));
    show([]);
    this.#unused.show(
      formatBytes(unused),
      element(
        'span',
        {},
        `of ${formatBytes(held)} (${formatShare(held === 0 ? 0 : unused / held)}) at the highest peak of reserved and live memory, at `,
        this.#timeLink(time),
      ),
      list,
    );
    void model.growths().then((growths) => {
      if (this.#state.model !== model) return;
      const reasons = (['full', 'holes', 'apart'] as const).flatMap((reason) => {
        const those = growths.filter((growth) => growth.reason === reason && growth.change >= from && growth.change < to);
        if (those.length === 0) return [];
        const largest = those.reduce((most, growth) => (growth.bytes > most.bytes ? growth : most));
        const sum = those.reduce((total, { bytes }) => total + bytes, 0);
        const count = those.length === 1 ? 'in a block' : `in ${formatCount(those.length)} blocks`;
        const showGrowth = () => {
          this.#zoomTo(run.times[largest.change] as number);
          scrollToTitle(reason === 'full' ? 'memory' : 'fragmentation');
        };
        return [{ bytes: sum, text: `${count}, ${growthTexts[reason]}`, show: showGrowth }];
      });
      show(reasons);
    });
  }

  #showFits(): void {
    const { contents, runIndex } = this.#state;
    const { fits = [], layer, layers, source } = contents.runs[runIndex] ?? {};
    if (fits.length === 0) {
      this.#fits.show('', `"cistern fit ${source}" finds out how much memory other stacks need for this log.`);
      return;
    }
    const reserved = layers?.[layer ?? 0]?.peakReservedBytes ?? null;
    const least = fits.reduce((most, { smallestMaximumBytes }) => Math.min(most, smallestMaximumBytes ?? most), Number.POSITIVE_INFINITY);
    const needs: Need[] = fits.map(({ resource, fitted, smallestMaximumBytes, overheadRatio, isComplete }) => {
      if (smallestMaximumBytes === null)
        return { resource, bytes: null, note: isComplete ? 'no maximum is enough' : 'not searched to the end' };
      const overhead = overheadRatio === null ? '' : `+${formatShare(overheadRatio)}`;
      return { resource, bytes: smallestMaximumBytes, note: `${isComplete ? '' : 'or less; '}${overhead}`, fitted };
    });
    if (reserved !== null) needs.unshift({ resource: 'this log', bytes: reserved, note: 'was reserved' });
    const table = plainTable(needs, [
      words('', ({ resource, fitted }) => element('span', { title: fitted ?? undefined }, ...breakable(resource))),
      bytes('', (need) => need.bytes),
      words('', ({ note }) => note),
    ]);
    this.#fits.show(
      Number.isFinite(least) ? formatBytes(least) : '–',
      'is the least memory that can replay this log; + is what a stack needs above the peak',
      scrollable(table, 'What other stacks would need'),
    );
  }

  #list(groups: readonly GroupSum[], all: number, suffix: string): HTMLElement {
    const shown = groups.slice(0, groups.length > shownGroups + 1 ? shownGroups : groups.length);
    const rest = groups.slice(shown.length);
    const rows: Group[] = shown.map((group) => {
      const show = () => this.#state.showOnly(`${group.name}, ${suffix}`, group, this.#grouping);
      return { ...group, name: button(show, { class: 'link', title: this.#callers(group.largest) }, group.name) };
    });
    if (rest.length > 0) {
      const sum = (of: 'bytes' | 'count') => rest.reduce((total, group) => total + group[of], 0);
      rows.push({ name: `${formatCount(rest.length)} others`, bytes: sum('bytes'), count: sum('count') });
    }
    return plainTable(rows, [
      words('', ({ name }) => name),
      bytes('', (group) => group.bytes),
      number('', ({ count }) => `${formatCount(count)} ×`),
      number('', (group) => formatShare(all === 0 ? 0 : group.bytes / all)),
    ]);
  }

  /** The stack of an allocation, for the tip of its call site. */
  #callers(span: number): string {
    const { run } = this.#state.model;
    return run.stacks[run.spans.stackOf[span] as number] ?? '';
  }

  #hintAtStacks(): HTMLElement[] {
    if (this.#state.model.run.stacks.length > 1) return [];
    return [element('p', { class: 'muted' }, 'The log has no stacks. Set CISTERN_LOG_STACKS=all to record the stack of every allocation.')];
  }

  #timeLink(time: number): HTMLElement {
    const show = () => {
      this.#zoomTo(time);
      scrollToTitle('memory');
    };
    return button(show, { class: 'link' }, this.#state.formatTime(time));
  }

  #zoomTo(time: number): void {
    const { range } = this.#state;
    const length = (range.to - range.from) / 10;
    this.#state.select({ from: time - length / 2, to: time + length / 2 });
  }
}

/** A row of a list of groups. */
interface Group {
  readonly name: HTMLElement | string;
  readonly bytes: number;
  readonly count: number;
}

/** Why memory was reserved and not used, and where the page shows it. */
interface Unused {
  readonly bytes: number;
  readonly text: string;
  readonly show: () => void;
}

/** What a stack needs for a log. */
interface Need {
  readonly resource: string;
  readonly bytes: number | null;
  readonly note: string;
  readonly fitted?: string | null;
}

function scrollToTitle(name: string): void {
  scrollTo(document.getElementById(`${name}-title`)?.closest('section'));
}

/** The first grouping that divides the allocations; if none does, one that names them all. */
function tellingGrouping({ model }: ReportState): Grouping {
  const { stacks, labels, phases, accounts } = model.run;
  const named: readonly (readonly [Grouping, number])[] = [
    ['site', callSites(stacks).names.length - 1],
    ['label', labels.length - 1],
    ['phase', phases.length - 1],
    ['account', accounts.length - 1],
  ];
  return (named.find(([, count]) => count > 1) ?? named.find(([, count]) => count > 0) ?? ['size'])[0];
}

/** The change at which most was reserved; of several, the one at which most was live. */
function fullest(reserved: Extremes, live: Extremes, from: number, to: number): number {
  const first = reserved.indexOfMaximum(from, to);
  let found = first;
  for (let change = first + 1; first >= 0 && change < to; change++) {
    if (reserved.values[change] === reserved.values[first] && (live.values[change] as number) > (live.values[found] as number))
      found = change;
  }
  return found;
}

interface Panel {
  readonly root: HTMLElement;
  show(figure: string, note: string | HTMLElement, ...more: readonly HTMLElement[]): void;
}

function panel(name: string, title: string): Panel {
  const place = element('div');
  return {
    root: element(
      'section',
      { class: 'panel', 'aria-labelledby': `answer-${name}` },
      element('h3', { id: `answer-${name}` }, title),
      place,
    ),
    show: (figure, note, ...more) =>
      place.replaceChildren(element('p', {}, ...(figure === '' ? [] : [element('strong', {}, figure), ' ']), note), ...more),
  };
}

function unusedTable(rows: readonly Unused[]): HTMLElement {
  return plainTable(rows, [bytes('', (row) => row.bytes), words('', ({ text, show }) => button(show, { class: 'link' }, text))]);
}

/** On a narrow screen, an option breaks before its value, not within a word. */
function breakable(specification: string): (string | HTMLElement)[] {
  return specification.split(/(?<==)/).flatMap((part, i) => (i === 0 ? [part] : [element('wbr'), part]));
}
