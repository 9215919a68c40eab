import { type GroupSum, liveAfter, neverFreed, sumGroups } from '../../report/answers.js';
import { type CallNode, type StackMeasure, weighStacks } from '../../report/call-tree.js';
import { bytes, count, words } from '../common/columns.js';
import { button, element } from '../common/dom.js';
import { formatBytes, formatCount, formatShare } from '../common/format.js';
import type { ReportState, View } from './report-state.js';
import { section } from './section.js';
import { dataTable, labelledSelect } from './tables.js';

type Measure = StackMeasure['kind'];

const measures: readonly (readonly [Measure, string])[] = [
  ['allocated', 'bytes allocated'],
  ['live', 'bytes live at the peak'],
  ['held', 'bytes never freed'],
  ['count', 'allocations'],
];

const rowHeight = 22;
/** Narrower frames are left out. */
const leastWidth = 3;
const mostDepth = 60;
const tableRows = 20;
const colorCount = 6;

interface Frame {
  readonly node: number;
  readonly left: number;
  readonly width: number;
  readonly depth: number;
}

/**
 * Where in the program memory was allocated: the width of a function is what it and its callees
 * allocated.
 */
export class CallSitesView implements View {
  readonly root: HTMLElement;
  readonly isPatient = true;
  readonly #state: ReportState;
  readonly #place = element('div', {
    class: 'flame',
    role: 'group',
    'aria-label': 'Call sites. Press the arrow keys to go to callers, callees and neighbours, Enter to zoom in, Escape to zoom out.',
  });
  readonly #found = element('p', { role: 'status' });
  readonly #body: HTMLElement;
  readonly #none = element('p', { class: 'muted' }, 'The log has no stacks.');
  readonly #table = element('div');
  #measure: Measure = 'allocated';
  #root = 0;
  #text = '';
  #weights: Float64Array = new Float64Array();
  #frames: readonly Frame[] = [];
  #buttons = new Map<number, HTMLButtonElement>();

  constructor(state: ReportState) {
    this.#state = state;
    const { root: measure, select } = labelledSelect('By', measures, (value) => {
      this.#measure = value as Measure;
      this.update(false);
    });
    select.id = 'calls-measure';
    const search = element('input', { type: 'search', id: 'calls-text', placeholder: 'function or file' });
    search.addEventListener('input', () => {
      this.#text = search.value.trim().toLowerCase();
      this.#mark();
    });
    const reset = button(() => this.#zoom(0), {}, 'Show all');
    const choices = element('div', { class: 'section-head' }, measure, element('label', {}, 'find ', search), reset, this.#found);
    this.#body = element('div', {}, choices, this.#place, this.#table);
    this.root = section('calls', 'Call sites', this.#none, this.#body);
    this.#place.addEventListener('keydown', (event) => this.#onKey(event));
    let width = 0;
    new ResizeObserver(() => {
      if (this.#place.clientWidth === width) return;
      width = this.#place.clientWidth;
      this.#draw();
    }).observe(this.#place);
  }

  update(data: boolean): void {
    const { model, range } = this.#state;
    const hasStacks = model.run.stacks.length > 1;
    this.#none.hidden = hasStacks;
    this.#body.hidden = !hasStacks;
    if (!hasStacks) return;
    if (data) this.#root = 0;
    const { from, to } = model.changesIn(range);
    const kind = this.#measure;
    const measure: StackMeasure = kind === 'live' ? { kind, change: model.peakIn(range) } : { kind };
    this.#weights = model.callTree.weigh(weighStacks(model.run, model.mask, measure, from, to));
    this.#draw();
    this.#table.replaceChildren(this.#makeTable());
  }

  #weightText(node: number): string {
    const weight = this.#weights[node] as number;
    const text = this.#measure === 'count' ? `${formatCount(weight)} allocations` : formatBytes(weight);
    const all = this.#weights[0] as number;
    return `${text}, ${formatShare(all === 0 ? 0 : weight / all)}`;
  }

  #draw(): void {
    const { nodes } = this.#state.model.callTree;
    const width = this.#place.clientWidth;
    if (width === 0 || this.#weights.length !== nodes.length) return;
    this.#frames = this.#layOut(width);
    const focused = [...this.#buttons].find(([, button]) => button === document.activeElement)?.[0];
    this.#buttons = new Map();
    const deepest = this.#frames.reduce((most, { depth }) => Math.max(most, depth), 0);
    this.#place.style.height = `${(deepest + 1) * rowHeight}px`;
    this.#place.replaceChildren(
      ...this.#frames.map(({ node, left, width: frameWidth, depth }, index) => {
        const { name } = nodes[node] as CallNode;
        const text = `${name}: ${this.#weightText(node)}`;
        const frame = button(
          () => this.#zoom(node === this.#root ? (nodes[node] as CallNode).parent : node),
          { class: 'frame', title: text, 'aria-label': text, tabindex: index === 0 ? '0' : '-1' },
          frameWidth > 30 ? name : '',
        );
        Object.assign(frame.style, { left: `${left}px`, top: `${depth * rowHeight}px`, width: `${Math.max(2, frameWidth - 1)}px` });
        frame.dataset['color'] = String(colorOf(name));
        this.#buttons.set(node, frame);
        return frame;
      }),
    );
    this.#mark();
    if (focused !== undefined) (this.#buttons.get(focused) ?? this.#buttons.get(this.#root))?.focus();
  }

  /**
   * The callers of the root, the root, and its callees, heaviest first, as long as they are wide
   * enough.
   */
  #layOut(width: number): Frame[] {
    const { nodes } = this.#state.model.callTree;
    const total = this.#weights[this.#root] as number;
    if (total === 0) return [];
    const children = new Map<number, number[]>();
    for (let node = 1; node < nodes.length; node++) {
      if ((this.#weights[node] as number) * width < leastWidth * total) continue;
      const { parent } = nodes[node] as CallNode;
      const siblings = children.get(parent);
      if (siblings === undefined) children.set(parent, [node]);
      else siblings.push(node);
    }
    const path: number[] = [];
    for (let node = this.#root; node !== 0; node = (nodes[node] as CallNode).parent) path.unshift((nodes[node] as CallNode).parent);
    const frames: Frame[] = path.map((node, depth) => ({ node, left: 0, width, depth }));
    const add = (node: number, left: number, depth: number) => {
      if (depth >= mostDepth) return;
      frames.push({ node, left, width: ((this.#weights[node] as number) / total) * width, depth });
      let next = left;
      const callees = children.get(node) ?? [];
      for (const callee of callees.sort((a, b) => (this.#weights[b] as number) - (this.#weights[a] as number))) {
        add(callee, next, depth + 1);
        next += ((this.#weights[callee] as number) / total) * width;
      }
    };
    add(this.#root, 0, path.length);
    return frames;
  }

  #zoom(node: number): void {
    this.#root = node;
    this.#draw();
    this.#buttons.get(node)?.focus();
  }

  /** Marks the functions that match the search, and shows their weight. */
  #mark(): void {
    const { nodes } = this.#state.model.callTree;
    const isMatch = nodes.map(({ name }) => this.#text !== '' && name.toLowerCase().includes(this.#text));
    for (const [node, button] of this.#buttons) {
      button.classList.toggle('match', isMatch[node] === true);
      button.classList.toggle('other', this.#text !== '' && isMatch[node] !== true);
    }
    if (this.#text === '') {
      this.#found.textContent = '';
      return;
    }
    // A match below another match is part of it.
    const isCovered = new Uint8Array(nodes.length);
    let weight = 0;
    for (const [node, { parent }] of nodes.entries()) {
      const isBelow = node > 0 && (isCovered[parent] === 1 || isMatch[parent] === true);
      isCovered[node] = isBelow ? 1 : 0;
      if (isMatch[node] === true && !isBelow) weight += this.#weights[node] as number;
    }
    const all = this.#weights[0] as number;
    this.#found.textContent = `found in ${formatShare(all === 0 ? 0 : weight / all)}`;
  }

  #onKey(event: KeyboardEvent): void {
    const current = this.#frames.findIndex(({ node }) => this.#buttons.get(node) === document.activeElement);
    const frame = this.#frames[current];
    if (frame === undefined) return;
    const next = this.#neighbour(frame, event.key);
    if (event.key === 'Escape') {
      event.preventDefault();
      this.#zoom((this.#state.model.callTree.nodes[this.#root] as CallNode).parent);
      return;
    }
    if (next === undefined) return;
    event.preventDefault();
    for (const [node, each] of this.#buttons) each.tabIndex = node === next.node ? 0 : -1;
    this.#buttons.get(next.node)?.focus();
  }

  #neighbour(frame: Frame, key: string): Frame | undefined {
    const row = (depth: number) => this.#frames.filter((other) => other.depth === depth).sort((a, b) => a.left - b.left);
    const overlaps = (other: Frame) => other.left < frame.left + frame.width && other.left + other.width > frame.left;
    const here = row(frame.depth);
    switch (key) {
      case 'ArrowDown':
        return row(frame.depth + 1).find(overlaps);
      case 'ArrowUp':
        return row(frame.depth - 1).find(overlaps);
      case 'ArrowLeft':
        return here[here.indexOf(frame) - 1];
      case 'ArrowRight':
        return here[here.indexOf(frame) + 1];
      case 'Home':
        return this.#frames[0];
      default:
        return undefined;
    }
  }

  /** The call sites with the greatest measure. A name leads to its allocations. */
  #makeTable(): HTMLElement {
    const { model, range } = this.#state;
    const { run, mask } = model;
    const { from, to } = model.changesIn(range);
    const isInRange = (start: number) => start >= from && start < to;
    const allocated = mask.map((is, span) => (is === 1 && isInRange(run.spans.starts[span] as number) ? 1 : 0));
    const bySite = (of: Uint8Array) => new Map(sumGroups(run, of, 'site').map((group) => [group.name, group]));
    const held = bySite(neverFreed(run, mask, from, to));
    const live = bySite(liveAfter(run, mask, model.peakIn(range)));
    const made = bySite(allocated);
    const measureOf = (site: string) => {
      if (this.#measure === 'count') return made.get(site)?.count ?? 0;
      return { held, live, allocated: made }[this.#measure].get(site)?.bytes ?? 0;
    };
    const sites = [...new Set([...live.keys(), ...made.keys()])].sort((a, b) => measureOf(b) - measureOf(a)).slice(0, tableRows);
    const show = (site: string) => () => this.#state.showOnly(site, (made.get(site) ?? live.get(site)) as GroupSum, 'site');
    return dataTable('Call sites in the selected time', sites, [
      words('Call site', (site) => button(show(site), { class: 'link' }, site)),
      bytes('Never freed', (site) => held.get(site)?.bytes ?? 0),
      bytes('At the peak', (site) => live.get(site)?.bytes ?? 0),
      bytes('Allocated', (site) => made.get(site)?.bytes ?? 0),
      count('Allocations', (site) => made.get(site)?.count ?? 0),
    ]);
  }
}

/** Functions in the same file have the same colour. */
function colorOf(name: string): number {
  const file = /\(([^:)]*)/.exec(name)?.[1] ?? name;
  let hash = 0;
  for (let i = 0; i < file.length; i++) hash = (hash * 31 + file.charCodeAt(i)) >>> 0;
  return hash % colorCount;
}
