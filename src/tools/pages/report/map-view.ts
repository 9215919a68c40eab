import type { Grouping } from '../../report/held-bytes.js';
import { button, element } from '../common/dom.js';
import { AddressChart, spanFacts } from './address-chart.js';
import { groupings } from './groupings.js';
import { shortName } from './memory-view.js';
import type { ReportState, View } from './report-state.js';
import type { RunModel } from './run-model.js';
import { scrollTo, sectionWithChoices } from './section.js';
import { labelledSelect } from './tables.js';
import { areaSwatch } from './textures.js';

/** The maps of the run and the compared run, and the facts about one allocation. */
export class MapView implements View {
  readonly root: HTMLElement;
  readonly #state: ReportState;
  readonly #place = element('div', { class: 'maps' });
  readonly #legend = element('ul', { class: 'legend', 'aria-label': 'Key to the colours and textures of the map' });
  readonly #details = element('div', { class: 'details', id: 'map-details' });
  readonly #announcement = element('p', { class: 'visually-hidden', 'aria-live': 'polite' });
  #maps: AddressChart[] = [];
  #grouping: Grouping = 'size';

  constructor(state: ReportState) {
    this.#state = state;
    const { root: grouping, select } = labelledSelect('Colour by', groupings, (value) => {
      this.#grouping = value as Grouping;
      this.update(false);
    });
    select.id = 'map-grouping';
    const { phases, streams } = state.model.run;
    this.#grouping = phases.length > 1 ? 'phase' : streams.length > 1 ? 'stream' : 'size';
    select.value = this.#grouping;
    const buttons: readonly (readonly [label: string, sign: string, act: () => void])[] = [
      ['Zoom in: time', '⇿ +', () => state.zoom(0.5)],
      ['Zoom out: time', '⇿ −', () => state.zoom(2)],
      ['Zoom in: addresses', '⇳ +', () => this.#each((map) => map.zoomAddresses(0.5))],
      ['Zoom out: addresses', '⇳ −', () => this.#each((map) => map.zoomAddresses(2))],
      ['Earlier', '←', () => state.pan(-0.5)],
      ['Later', '→', () => state.pan(0.5)],
      ['Higher addresses', '↑', () => this.#each((map) => map.panAddresses(0.5))],
      ['Lower addresses', '↓', () => this.#each((map) => map.panAddresses(-0.5))],
      ['All', 'All', () => this.#each((map) => map.showAll())],
    ];
    const toolbar = element(
      'div',
      { class: 'buttons', role: 'group', 'aria-label': 'Visible part of the map' },
      ...buttons.map(([label, sign, act]) => button(act, { 'aria-label': label, title: label }, sign)),
    );
    const hint =
      'Every allocation is a box: its width is its lifetime, its height its size. Dotted lines mark omitted gaps between addresses. Drag to zoom; or click, then turn the wheel (with Shift for addresses).';
    this.root = sectionWithChoices(
      'map',
      'Addresses over time',
      [grouping, toolbar],
      element('p', { class: 'muted hint' }, hint),
      this.#place,
      this.#legend,
      this.#details,
      this.#announcement,
    );
    state.showOnMap = (span, how) => {
      const [map] = this.#maps;
      if (map === undefined) return;
      if (how !== undefined) {
        this.#grouping = how.grouping;
        select.value = how.grouping;
        map.showAll();
        this.update(false);
      }
      scrollTo(this.root);
      map.showSpan(span, how === undefined);
      map.focus();
    };
    this.#describe(undefined, undefined, false);
  }

  update(data: boolean): void {
    const { model, compared } = this.#state;
    const wanted = compared === undefined ? [model] : [model, compared.model];
    if (this.#maps.length !== wanted.length || this.#maps.some((map, i) => map.model !== wanted[i])) this.#makeMaps(wanted);
    for (const map of this.#maps) map.draw(this.#grouping);
    if (data) this.#describe(model, this.#maps[0]?.focused, false);
    this.#showLegend();
  }

  #makeMaps(models: readonly RunModel[]): void {
    for (const map of this.#maps) map.destroy();
    const { contents, runIndex, compared } = this.#state;
    const indexes = compared === undefined ? [runIndex] : [runIndex, compared.index];
    this.#maps = models.map((model, i) => {
      const source = shortName(contents.runs[indexes[i] as number]?.source ?? '');
      const name = models.length === 1 ? '' : `${(indexes[i] as number) + 1}: ${source}`;
      const map = new AddressChart(this.#state, model, `Map of addresses over time${name === '' ? '' : `, ${name}`}`, (span, isByKey) =>
        this.#describe(model, span, isByKey),
      );
      if (name !== '') map.root.prepend(element('h3', {}, name));
      return map;
    });
    this.#place.replaceChildren(...this.#maps.map(({ root }) => root));
  }

  #each(act: (map: AddressChart) => void): void {
    for (const map of this.#maps) act(map);
  }

  #showLegend(): void {
    const { model } = this.#state;
    const names = model.groups(this.#grouping).names;
    const key = `${names.join('\n')}\n${model.blocks === undefined}`;
    if (this.#legend.dataset['key'] === key) return;
    this.#legend.dataset['key'] = key;
    const plain = (name: string, text: string) => element('li', {}, element('span', { class: `swatch ${name}` }), text);
    this.#legend.replaceChildren(
      ...names.map((name, style) => element('li', {}, areaSwatch(style), name)),
      plain('dimmed', 'filtered out'),
      ...(model.blocks === undefined ? [] : [plain('reserved', 'reserved, not live')]),
      plain('empty', model.blocks === undefined ? 'free or unknown' : 'not reserved'),
    );
  }

  #describe(model: RunModel | undefined, span: number | undefined, isByKey: boolean): void {
    if (model === undefined || span === undefined) {
      this.#details.replaceChildren(
        element('p', { class: 'muted' }, 'Point at an allocation, or move between allocations with the arrow keys, to see its details.'),
      );
      return;
    }
    const facts = spanFacts(model, span);
    const stack = model.run.stacks[model.run.spans.stackOf[span] as number] ?? '';
    this.#details.replaceChildren(
      element('dl', {}, ...facts.map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, value)))),
      ...(stack === '' ? [] : [element('pre', { tabindex: '0', 'aria-label': 'Stack' }, stack)]),
    );
    if (isByKey) this.#announcement.textContent = facts.map(([name, value]) => `${name} ${value}`).join(', ');
  }
}
