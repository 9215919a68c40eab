import { bytesOf } from '../../../basics/units.js';
import { neverEnds } from '../../formats/report/report-run.js';
import { type AllocationOrder, findAllocations, lifetimeOf, startTimeOf } from '../../report/find-allocations.js';
import { button, element } from '../common/dom.js';
import { formatBytes, formatCount, formatDuration, formatTime } from '../common/format.js';
import { hexadecimal } from './address-chart.js';
import type { ReportState, View } from './report-state.js';
import { sectionWithChoices } from './section.js';
import { labelledSelect, scrollable } from './tables.js';

const pageRows = 25;

interface Preset {
  readonly title: string;
  readonly order: AllocationOrder;
  readonly neverFreed: boolean;
}

const presets: Readonly<Record<string, Preset>> = {
  largest: { title: 'largest', order: 'bytes', neverFreed: false },
  longest: { title: 'longest-lived', order: 'lifetime', neverFreed: false },
  held: { title: 'never-freed', order: 'bytes', neverFreed: true },
};

const columns: readonly { readonly title: string; readonly order: AllocationOrder; readonly isNumber: boolean }[] = [
  { title: 'Size', order: 'bytes', isNumber: true },
  { title: 'Lifetime', order: 'lifetime', isNumber: true },
  { title: 'Allocated', order: 'start', isNumber: true },
  { title: 'Address', order: 'address', isNumber: true },
  { title: 'Stream', order: 'stream', isNumber: false },
  { title: 'Phase', order: 'phase', isNumber: false },
  { title: 'Label', order: 'label', isNumber: false },
];

/** Lists of allocations. */
export class AllocationsView implements View {
  readonly root: HTMLElement;
  readonly isPatient = true;
  readonly #state: ReportState;
  readonly #head = element('tr');
  readonly #body = element('tbody');
  readonly #caption = element('caption');
  readonly #count = element('p', { role: 'status' });
  readonly #previous = button(() => this.#turn(-pageRows), {}, 'Previous');
  readonly #next = button(() => this.#turn(pageRows), {}, 'Next');
  #preset = 'largest';
  #order: AllocationOrder = 'bytes';
  #isDescending = true;
  #text = '';
  #minimumBytes = 0;
  #offset = 0;

  constructor(state: ReportState) {
    this.#state = state;
    const { root: presetLabel, select } = labelledSelect(
      'Show the',
      Object.entries(presets).map(([value, { title }]) => [value, title] as const),
      (value) => {
        this.#preset = value;
        this.#sort((presets[value] as Preset).order, true);
      },
    );
    select.id = 'allocations-preset';
    const text = element('input', { type: 'search', id: 'allocations-text', placeholder: 'label, function or file' });
    text.addEventListener('input', () => {
      this.#text = text.value;
      this.#restart();
    });
    const minimum = element('input', { type: 'text', id: 'allocations-minimum', placeholder: 'such as 1 MiB', size: '12' });
    minimum.addEventListener('input', () => {
      const bytes = bytesOf(minimum.value) ?? (minimum.value.trim() === '' ? 0 : undefined);
      minimum.setAttribute('aria-invalid', String(bytes === undefined));
      if (bytes === undefined) return;
      this.#minimumBytes = bytes;
      this.#restart();
    });
    const table = element('table', { id: 'allocations' }, this.#caption, element('thead', {}, this.#head), this.#body);
    this.root = sectionWithChoices(
      'allocations',
      'Allocations',
      [presetLabel, element('label', {}, 'with ', text), element('label', {}, 'of at least ', minimum)],
      scrollable(table, 'Allocations'),
      element('div', { class: 'pager' }, this.#previous, this.#next, this.#count),
    );
  }

  update(): void {
    const { model, range } = this.#state;
    const { run } = model;
    const { title, neverFreed } = presets[this.#preset] as Preset;
    const query = {
      order: this.#order,
      isDescending: this.#isDescending,
      neverFreed,
      text: this.#text,
      minimumBytes: this.#minimumBytes,
      ...range,
      limit: pageRows,
    };
    let found = findAllocations(run, model.mask, { ...query, offset: this.#offset });
    if (this.#offset > 0 && found.spans.length === 0) {
      this.#offset = 0;
      found = findAllocations(run, model.mask, { ...query, offset: 0 });
    }
    this.#caption.textContent = `The ${title} allocations live in the selected time`;
    this.#drawHead();
    this.#body.replaceChildren(...found.spans.map((span) => this.#row(span)));
    const last = this.#offset + found.spans.length;
    this.#count.textContent =
      found.count === 0
        ? 'No allocations.'
        : `${formatCount(this.#offset + 1)} to ${formatCount(last)} of ${formatCount(found.count)}, ${formatBytes(found.bytes)} in total`;
    this.#previous.disabled = this.#offset === 0;
    this.#next.disabled = last >= found.count;
  }

  #drawHead(): void {
    const heads = columns.map(({ title, order, isNumber }) => {
      const isSorted = order === this.#order;
      const sortByThis = () => {
        this.#sort(order, isSorted ? !this.#isDescending : isNumber && order !== 'start');
        (this.#head.querySelector('[aria-sort] button') as HTMLElement | null)?.focus();
      };
      const arrow = isSorted ? (this.#isDescending ? ' ▼' : ' ▲') : '';
      const sort = isSorted ? (this.#isDescending ? 'descending' : 'ascending') : undefined;
      return element(
        'th',
        { scope: 'col', class: isNumber ? 'number' : undefined, 'aria-sort': sort },
        button(sortByThis, { class: 'sort' }, title, arrow),
      );
    });
    // Replace an element that may have the focus only if necessary.
    const key = `${this.#order} ${this.#isDescending}`;
    if (this.#head.dataset['key'] === key) return;
    this.#head.dataset['key'] = key;
    this.#head.replaceChildren(...heads, element('th', { scope: 'col' }, 'Map'));
  }

  #row(span: number): HTMLElement {
    const { model, extent, range } = this.#state;
    const { run } = model;
    const { spans } = run;
    const isHeld = spans.ends[span] === neverEnds;
    const size = formatBytes(spans.bytes[span] as number);
    const show = button(() => this.#state.showOnMap(span), { 'aria-label': `Show these ${size} on the map` }, 'Show');
    const number = (text: string) => element('td', { class: 'number' }, text);
    const text = (value: string) => element('td', { class: 'text' }, value);
    return element(
      'tr',
      {},
      element('th', { scope: 'row', class: 'number' }, size),
      number(isHeld ? 'never freed' : formatDuration(lifetimeOf(run, span) / 1e6)),
      number(formatTime(startTimeOf(run, span), extent.to, (range.to - range.from) / 10)),
      number(hexadecimal(run.addresses[spans.addressOf[span] as number] as number)),
      text(run.streams[spans.streamOf[span] as number] ?? ''),
      text(run.phases[spans.phaseOf[span] as number]?.name ?? ''),
      text((run.labels[spans.labelOf[span] as number] || run.stacks[spans.stackOf[span] as number]?.split('\n', 1)[0]) ?? ''),
      element('td', {}, show),
    );
  }

  #sort(order: AllocationOrder, isDescending: boolean): void {
    this.#order = order;
    this.#isDescending = isDescending;
    this.#restart();
  }

  #restart(): void {
    this.#offset = 0;
    this.update();
  }

  #turn(rows: number): void {
    this.#offset = Math.max(0, this.#offset + rows);
    this.update();
  }
}
