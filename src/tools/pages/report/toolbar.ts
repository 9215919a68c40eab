import { button, element } from '../common/dom.js';
import { formatDuration } from '../common/format.js';
import { shortName } from './memory-view.js';
import type { ReportState } from './report-state.js';
import type { RunModel } from './run-model.js';
import { labelledSelect, setOptions } from './tables.js';

/**
 * The choices that apply to all views: the run, the compared run, the layer, stream and phase, and
 * the time range.
 */
export class Toolbar {
  readonly #state: ReportState;
  readonly #model: (index: number) => Promise<RunModel>;
  readonly #selects: Record<'run' | 'compared' | 'layer' | 'stream' | 'phase', { root: HTMLElement; select: HTMLSelectElement }>;
  readonly #only = element('output', { id: 'filter-only' });
  readonly #onlyPlace = element('span', { class: 'only' }, 'Only: ', this.#only, ' ');
  readonly #time = element('output', { id: 'selected-time' });
  readonly #reset = button(() => this.#state.select(undefined), { id: 'reset-time' }, 'Show all');

  constructor(root: HTMLElement, state: ReportState, model: (index: number) => Promise<RunModel>) {
    this.#state = state;
    this.#model = model;
    const setFilter = () => {
      const value = (name: 'layer' | 'stream' | 'phase') => {
        const text = this.#selects[name].select.value;
        return text === '' ? undefined : Number(text);
      };
      state.setFilter({ layer: value('layer') ?? 0, stream: value('stream'), phase: value('phase') });
    };
    this.#selects = {
      run: labelledSelect('Log', [], (value) => void this.#setRun(Number(value))),
      compared: labelledSelect('Compare with', [], (value) => void this.#compareWith(value)),
      layer: labelledSelect('Layer', [], setFilter),
      stream: labelledSelect('Stream', [], setFilter),
      phase: labelledSelect('Phase', [], setFilter),
    };
    for (const [name, { select }] of Object.entries(this.#selects)) select.id = `filter-${name}`;
    const showAnything = () => state.setFilter({ ...state.model.filter, only: undefined });
    this.#onlyPlace.append(button(showAnything, { id: 'reset-only' }, 'All allocations'));
    root.append(
      ...Object.values(this.#selects).map((each) => each.root),
      this.#onlyPlace,
      element('span', { class: 'time' }, 'Time: ', this.#time, ' ', this.#reset),
    );
    const { runs } = state.contents;
    const runOptions = runs.map(({ source }, index) => [String(index), `${index + 1}: ${shortName(source)}`] as const);
    setOptions(this.#selects.run.select, runOptions);
    this.#selects.run.root.hidden = runs.length < 2;
    this.#selects.compared.root.hidden = runs.length < 2;
    root.hidden = false;
    state.onChange((kind) => (kind === 'data' ? this.#show() : this.#showTime()));
    this.#show();
  }

  async #setRun(index: number): Promise<void> {
    this.#state.setRun(await this.#model(index), index);
  }

  async #compareWith(value: string): Promise<void> {
    this.#state.compareWith(value === '' ? undefined : { index: Number(value), model: await this.#model(Number(value)) });
  }

  #show(): void {
    const { model, contents, runIndex, compared } = this.#state;
    const { run, filter } = model;
    const others = contents.runs.flatMap(({ source }, index) =>
      index === runIndex ? [] : [[String(index), `${index + 1}: ${shortName(source)}`] as const],
    );
    setOptions(this.#selects.compared.select, [['', 'nothing'], ...others]);
    this.#selects.compared.select.value = compared === undefined ? '' : String(compared.index);
    this.#selects.run.select.value = String(runIndex);
    const layers = contents.runs[runIndex]?.layers ?? [];
    setOptions(
      this.#selects.layer.select,
      layers
        .filter(({ allocationCount, failureCount, layer }) => allocationCount + failureCount > 0 || layer === filter.layer)
        .map(({ layer, name }) => [String(layer), name] as const),
    );
    setOptions(this.#selects.stream.select, [['', 'all'], ...run.streams.map((name, index) => [String(index), name] as const)]);
    setOptions(this.#selects.phase.select, [
      ['', 'all'],
      ...run.phases.flatMap(({ name, outer }, index) =>
        index === 0 ? [] : [[String(index), outer === 0 ? name : `${run.phases[outer]?.name} › ${name}`] as const],
      ),
    ]);
    this.#selects.layer.select.value = String(filter.layer);
    this.#selects.stream.select.value = filter.stream === undefined ? '' : String(filter.stream);
    this.#selects.phase.select.value = filter.phase === undefined ? '' : String(filter.phase);
    this.#onlyPlace.hidden = filter.only === undefined;
    this.#only.textContent = filter.only?.name ?? '';
    this.#selects.layer.root.hidden = this.#selects.layer.select.options.length < 2;
    this.#selects.stream.root.hidden = run.streams.length < 2;
    this.#selects.phase.root.hidden = run.phases.length < 2;
    this.#showTime();
  }

  #showTime(): void {
    const { selection, range } = this.#state;
    const [from, to] = [this.#state.formatTime(range.from), this.#state.formatTime(range.to)];
    this.#time.textContent = selection === undefined ? 'everything' : `${from} to ${to} (${formatDuration((range.to - range.from) / 1e6)})`;
    this.#reset.disabled = selection === undefined;
  }
}
