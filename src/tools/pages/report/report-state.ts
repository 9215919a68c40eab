import type { GroupSum } from '../../report/answers.js';
import type { Grouping } from '../../report/held-bytes.js';
import type { ReportContents } from '../../report/report-contents.js';
import type { ChartOptions } from '../common/chart.js';
import { formatTime } from '../common/format.js';
import type { RunModel, TimeRange } from './run-model.js';

/** What changed: the data, or only the time range. */
export type ChangeKind = 'data' | 'range';

/** A part of the page. */
export interface View {
  readonly root: HTMLElement;
  /** Shows the current state. `data` is true if more than the time range may have changed. */
  update(data: boolean): void;
  /**
   * Whether to update only once nothing moves, because updating is costly or the view is being
   * read.
   */
  readonly isPatient?: boolean;
}

/** How an allocation is shown on the map. */
export interface ShownOnMap {
  /** Colours the map by this, and zooms to everything; without it, the map zooms to the allocation. */
  readonly grouping: Grouping;
}

/** The state of the whole page: which runs, allocations and time it shows. */
export class ReportState {
  readonly contents: ReportContents;
  #model: RunModel;
  #runIndex: number;
  #compared: { readonly index: number; readonly model: RunModel } | undefined;
  #range: TimeRange | undefined;
  readonly #listeners: ((kind: ChangeKind) => void)[] = [];
  /** Shows an allocation on the map; set by the map. */
  showOnMap: (span: number, how?: ShownOnMap) => void = () => {};

  constructor(contents: ReportContents, model: RunModel, runIndex: number) {
    this.contents = contents;
    this.#model = model;
    this.#runIndex = runIndex;
  }

  get model(): RunModel {
    return this.#model;
  }

  get runIndex(): number {
    return this.#runIndex;
  }

  /** The compared run, if any. */
  get compared(): { readonly index: number; readonly model: RunModel } | undefined {
    return this.#compared;
  }

  /** The whole time range of both runs. */
  get extent(): TimeRange {
    const to = Math.max(this.#model.run.durationNanoseconds, this.#compared?.model.run.durationNanoseconds ?? 0);
    return { from: 0, to: Math.max(1, to) };
  }

  /** The selected time range, or `undefined` for all of it. */
  get selection(): TimeRange | undefined {
    return this.#range;
  }

  /** The selected time range, or all of it. */
  get range(): TimeRange {
    return this.#range ?? this.extent;
  }

  /** A time in the unit that fits the run, with the digits that the selection needs. */
  formatTime(nanoseconds: number): string {
    return formatTime(nanoseconds, this.extent.to, this.range.to - this.range.from);
  }

  /** What every chart over time has: its axis, and what zooming does. */
  get timeAxis(): Pick<ChartOptions, 'formatX' | 'extent' | 'onZoom' | 'syncKey'> {
    return {
      formatX: (seconds) => this.formatTime(seconds * 1e9),
      extent: () => ({ minimum: 0, maximum: this.extent.to / 1e9 }),
      onZoom: (range) => this.select(range && { from: range.minimum * 1e9, to: range.maximum * 1e9 }),
      syncKey: 'time',
    };
  }

  onChange(listener: (kind: ChangeKind) => void): void {
    this.#listeners.push(listener);
  }

  setRun(model: RunModel, runIndex: number): void {
    this.#model = model;
    this.#runIndex = runIndex;
    this.#range = undefined;
    if (this.#compared?.index === runIndex) this.#compared = undefined;
    this.#tell('data');
  }

  compareWith(compared: { readonly index: number; readonly model: RunModel } | undefined): void {
    this.#compared = compared;
    this.#range = undefined;
    this.#tell('data');
  }

  setFilter(filter: RunModel['filter']): void {
    this.#model.setFilter(filter);
    this.#tell('data');
  }

  /** Restricts the page to some allocations, and shows the largest of them on the map. */
  showOnly(name: string, { mask, largest }: Pick<GroupSum, 'mask' | 'largest'>, grouping: Grouping): void {
    this.setFilter({ ...this.#model.filter, only: { name, mask } });
    this.showOnMap(largest, { grouping });
  }

  /** Selects a time range, clipped to the extent. */
  select(range: TimeRange | undefined): void {
    const { from, to } = this.extent;
    const shortest = Math.min(to, 10);
    let next = range;
    if (next !== undefined) {
      const length = Math.min(to - from, Math.max(shortest, next.to - next.from));
      const start = Math.min(Math.max(from, next.from), to - length);
      next = start <= from && start + length >= to ? undefined : { from: start, to: start + length };
    }
    if (next?.from === this.#range?.from && next?.to === this.#range?.to) return;
    this.#range = next;
    this.#tell('range');
  }

  /** Scales the selection around a time; a factor below 1 zooms in. */
  zoom(factor: number, around: number = (this.range.from + this.range.to) / 2): void {
    const { from, to } = this.range;
    this.select({ from: around - (around - from) * factor, to: around + (to - around) * factor });
  }

  /** Moves the selection by a fraction of its length. */
  pan(share: number): void {
    const { from, to } = this.range;
    const distance = (to - from) * share;
    this.select({ from: from + distance, to: to + distance });
  }

  #tell(kind: ChangeKind): void {
    for (const listener of this.#listeners) listener(kind);
  }
}
