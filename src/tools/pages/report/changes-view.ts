import { liveAfter, neverFreed, sumGroups } from '../../report/answers.js';
import { usualGroup, withoutLine } from '../../report/call-sites.js';
import { bytes, type Column, number, words } from '../common/columns.js';
import { element } from '../common/dom.js';
import { formatBytes, formatCount, formatShare } from '../common/format.js';
import { shortName } from './memory-view.js';
import type { ReportState, View } from './report-state.js';
import type { RunModel } from './run-model.js';
import { dataTable } from './tables.js';

/** Each list shows so many groups, those that changed most. */
const shownGroups = 6;

type Group = ReturnType<typeof usualGroup>;

const names: Readonly<Record<Group, string>> = { function: 'Function', label: 'Label', size: 'Size' };

interface Sum {
  readonly bytes: number;
  readonly count: number;
}

type Change = readonly [name: string, before: Sum, after: Sum];

const nothing: Sum = { bytes: 0, count: 0 };

/** How the compared log differs from the one that is shown, over the whole of both: what `cistern diff` prints. */
export class ChangesView implements View {
  readonly root: HTMLElement;
  readonly #state: ReportState;
  readonly #title = element('h2', { id: 'changes-title' });
  readonly #tables = element('div', { class: 'changes' });

  constructor(state: ReportState) {
    this.#state = state;
    this.root = element('section', { 'aria-labelledby': 'changes-title' }, this.#title, this.#tables);
  }

  update(data: boolean): void {
    const { compared, contents, model, runIndex } = this.#state;
    if (!data) return;
    if (compared === undefined) {
      this.#title.textContent = 'What changed';
      this.#tables.replaceChildren(element('p', { class: 'muted' }, 'Choose a log under "Compare with".'));
      return;
    }
    const nameOf = (index: number) => shortName(contents.runs[index]?.source ?? '');
    this.#title.textContent = `What changed from ${nameOf(runIndex)} to ${nameOf(compared.index)}`;
    const [before, after] = [masksOf(model), masksOf(compared.model)];
    const measures = [
      ['Live at the peak', before.peak, after.peak],
      ['Never freed', before.held, after.held],
      ['Allocated', before.all, after.all],
    ] as const;
    this.#tables.replaceChildren(
      dataTable(
        'Bytes and allocations of each log, as a whole',
        measures.map(([name, a, b]): Change => [name, sumOf(model, a), sumOf(compared.model, b)]),
        columnsOf('Figure'),
      ),
      ...measures.slice(0, 2).flatMap(([name, a, b]) => {
        const [by, changes] = changesOf(model, a, compared.model, b);
        if (changes.length === 0) return [];
        const rest = changes.length - shownGroups;
        const caption = `${name}, by ${names[by].toLowerCase()}: what changed most${rest > 0 ? `; ${formatCount(rest)} more changed` : ''}`;
        return [dataTable(caption, changes.slice(0, shownGroups), columnsOf(names[by]))];
      }),
    );
  }
}

function columnsOf(first: string): Column<Change>[] {
  return [
    words(first, ([name]) => name),
    bytes('Before', ([, before]) => before.bytes),
    bytes('After', ([, , after]) => after.bytes),
    number('Change', ([, before, after]) => (after.bytes === before.bytes ? 'none' : signed(after.bytes - before.bytes, formatBytes))),
    number('Relative', ([, before, after]) =>
      before.bytes === 0 || after.bytes === before.bytes ? '' : signed((after.bytes - before.bytes) / before.bytes, formatShare),
    ),
    number('Allocations', ([, before, after]) => {
      const more = after.count - before.count;
      return `${formatCount(after.count)}${more === 0 ? '' : ` (${signed(more, formatCount)})`}`;
    }),
  ];
}

function signed(change: number, format: (amount: number) => string): string {
  return `${change < 0 ? '−' : '+'}${format(Math.abs(change))}`;
}

/** The allocations of a log that each measure counts: of the layer that is shown, over the whole log. */
function masksOf(model: RunModel): { peak: Uint8Array; held: Uint8Array; all: Uint8Array } {
  const { run, layerMask: all } = model;
  const end = run.times.length;
  const peak = model.liveOf(model.filter.layer).indexOfMaximum(0, end);
  return { peak: peak < 0 ? all.map(() => 0) : liveAfter(run, all, peak), held: neverFreed(run, all, 0, end), all };
}

function sumOf({ run }: RunModel, mask: Uint8Array): Sum {
  let bytes = 0;
  let count = 0;
  for (let span = 0; span < run.spans.count; span++) {
    if (mask[span] !== 1) continue;
    bytes += run.spans.bytes[span] as number;
    count++;
  }
  return { bytes, count };
}

/** The groups that differ, those that grew or shrank most first, and what they are. */
function changesOf(before: RunModel, a: Uint8Array, after: RunModel, b: Uint8Array): [by: Group, changes: Change[]] {
  const by = usualGroup([before.run, after.run]);
  const [first, second] = [groupsOf(before, a, by), groupsOf(after, b, by)];
  const changes = [...new Set([...first.keys(), ...second.keys()])]
    .map((name): Change => [name, first.get(name) ?? nothing, second.get(name) ?? nothing])
    .filter(([, was, is]) => was.bytes !== is.bytes || was.count !== is.count)
    .sort(([, a1, b1], [, a2, b2]) => Math.abs(b2.bytes - a2.bytes) - Math.abs(b1.bytes - a1.bytes));
  return [by, changes];
}

function groupsOf({ run }: RunModel, mask: Uint8Array, by: Group): Map<string, Sum> {
  const groups = new Map<string, Sum>();
  for (const { name, bytes, count } of sumGroups(run, mask, by === 'function' ? 'site' : by)) {
    const group = by === 'function' ? withoutLine(name) : name;
    const sum = groups.get(group) ?? nothing;
    groups.set(group, { bytes: sum.bytes + bytes, count: sum.count + count });
  }
  return groups;
}
