import '../common/common.css';
import './report.css';
import type { ReportContents } from '../../report/report-contents.js';
import { byId, element } from '../common/dom.js';
import { colorSchemeEvent } from '../common/series-style.js';
import { accountsView } from './accounts-view.js';
import { AllocationsView } from './allocations-view.js';
import { AnswersView } from './answers-view.js';
import { CallSitesView } from './call-sites-view.js';
import { ChangesView } from './changes-view.js';
import { compareView } from './compare-view.js';
import { FragmentationView } from './fragmentation-view.js';
import { graphsView } from './graphs-view.js';
import { layersView } from './layers-view.js';
import { loadRun } from './load-run.js';
import { MapView } from './map-view.js';
import { MemoryView } from './memory-view.js';
import { ReportState, type View } from './report-state.js';
import { RunModel } from './run-model.js';
import { FactsView, SummaryView } from './summary-view.js';
import { Toolbar } from './toolbar.js';

/** Patient views are updated after this many milliseconds without a change. */
const patience = 150;

const contents = JSON.parse(byId('contents').textContent ?? '') as ReportContents;
const runElements = document.querySelectorAll('script.run');
const models = new Map<number, Promise<RunModel>>();

function modelOf(index: number): Promise<RunModel> {
  let model = models.get(index);
  if (model === undefined) {
    model = loadRun(runElements[index] as Element).then((run) => new RunModel(run, contents.runs[index]?.layer ?? 0));
    models.set(index, model);
  }
  return model;
}

/**
 * Updates views when the state changes: at the next frame if they are visible, else when they
 * become visible.
 */
class Schedule {
  readonly #stale = new Map<View, { data: boolean }>();
  readonly #visible = new Set<Element>();
  #frame = 0;
  #timer = 0;

  constructor(views: readonly View[]) {
    const observer = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          if (isIntersecting) this.#visible.add(target);
          else this.#visible.delete(target);
        }
        this.#showSoon();
      },
      { rootMargin: '100px' },
    );
    for (const { root } of views) {
      observer.observe(root);
      this.#visible.add(root);
    }
  }

  mark(views: readonly View[], data: boolean): void {
    for (const view of views) this.#stale.set(view, { data: data || this.#stale.get(view)?.data === true });
    this.#showSoon();
  }

  #showSoon(): void {
    if (this.#stale.size === 0) return;
    this.#requestFrame();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#show(true), patience);
  }

  #requestFrame(): void {
    if (this.#frame !== 0) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#show(false);
    });
  }

  #show(isQuiet: boolean): void {
    for (const [view, { data }] of this.#stale) {
      const isPatient = view.isPatient === true;
      if (!this.#visible.has(view.root) || (isPatient && !isQuiet)) continue;
      this.#stale.delete(view);
      view.update(data);
      if (!isPatient) continue;
      // One at a time, so that the user can continue in between.
      this.#timer = setTimeout(() => this.#show(true));
      return;
    }
  }
}

function followTheme(): void {
  const select = byId('theme') as HTMLSelectElement;
  select.addEventListener('change', () => {
    if (select.value === '') delete document.documentElement.dataset['theme'];
    else document.documentElement.dataset['theme'] = select.value;
    document.dispatchEvent(new Event(colorSchemeEvent));
  });
}

async function open(): Promise<void> {
  byId('title').textContent = contents.title;
  followTheme();
  const state = new ReportState(contents, await modelOf(0), 0);
  // Two logs are there to be compared.
  const comparedRun = contents.comparedRun ?? (contents.runs.length === 2 ? 1 : null);
  if (comparedRun !== null) state.compareWith({ index: comparedRun, model: await modelOf(comparedRun) });
  new Toolbar(byId('toolbar'), state, modelOf);
  const views: View[] = [
    new FactsView(state),
    // A plan has the allocations of its log.
    ...(contents.runs.length > 1 && contents.comparedRun === null ? [new ChangesView(state)] : []),
    new AnswersView(state),
    new SummaryView(state),
    ...(contents.runs.some(({ graphs }) => graphs !== null) ? [graphsView(state)] : []),
    ...(contents.runs.length > 1 ? [compareView(state)] : []),
    new MemoryView(state),
    ...(state.model.run.accounts.length > 1 ? [accountsView(state)] : []),
    new MapView(state),
    new FragmentationView(state),
    new AllocationsView(state),
    layersView(state),
    new CallSitesView(state),
  ];
  for (const view of views) {
    byId('main').append(view.root);
    view.update(true);
    // The message would stand above figures that are finished.
    byId('status').hidden = true;
    // Let the browser show the message first.
    await new Promise((resolve) => setTimeout(resolve));
  }
  const schedule = new Schedule(views);
  state.onChange((kind) => schedule.mark(views, kind === 'data'));
  document.documentElement.dataset['ready'] = 'true';
  performance.mark('report ready');
}

open().catch((error: unknown) => {
  byId('status').replaceChildren(
    element('strong', {}, 'The report cannot be shown. '),
    `${error instanceof Error ? error.message : error}. You need a browser from 2024 or later.`,
  );
  throw error;
});
