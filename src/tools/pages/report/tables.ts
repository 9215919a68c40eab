import { element } from '../common/dom.js';

/** A cell: text, or a right-aligned number. */
export interface Cell {
  readonly text: string;
  readonly isNumber?: boolean;
}

/** A cell that contains a number. */
export function numberCell(text: string): Cell {
  return { text, isNumber: true };
}

/** A table with column and row headers. */
export function dataTable(caption: string, heads: readonly Cell[], rows: readonly (readonly [string, ...Cell[]])[]): HTMLElement {
  const className = ({ isNumber }: Cell) => (isNumber === true ? 'number' : undefined);
  const table = element(
    'table',
    {},
    element('caption', {}, caption),
    element('thead', {}, element('tr', {}, ...heads.map((head) => element('th', { scope: 'col', class: className(head) }, head.text)))),
    element(
      'tbody',
      {},
      ...rows.map(([title, ...cells]) =>
        element(
          'tr',
          {},
          element('th', { scope: 'row' }, title),
          ...cells.map((cell) => element('td', { class: className(cell) }, cell.text)),
        ),
      ),
    ),
  );
  return scrollable(table, caption);
}

/** Makes content that is wider than the page scrollable, by keyboard as well. */
export function scrollable(content: HTMLElement, label: string): HTMLElement {
  return element('div', { class: 'scroll', tabindex: '0', role: 'group', 'aria-label': label }, content);
}

/** A select with a label. */
export function labelledSelect(
  label: string,
  options: readonly (readonly [value: string, text: string])[],
  onChange: (value: string) => void,
): { root: HTMLElement; select: HTMLSelectElement } {
  const select = element('select');
  setOptions(select, options);
  select.addEventListener('change', () => onChange(select.value));
  return { root: element('label', {}, `${label} `, select), select };
}

/** Replaces the options of a select; the chosen one is kept if it still exists. */
export function setOptions(select: HTMLSelectElement, options: readonly (readonly [value: string, text: string])[]): void {
  const { value } = select;
  select.replaceChildren(...options.map(([optionValue, text]) => element('option', { value: optionValue }, text)));
  if (options.some(([optionValue]) => optionValue === value)) select.value = value;
}

/**
 * Folded content. It is built when it is unfolded, and rebuilt by `refresh` while it is unfolded.
 */
export class Folded {
  readonly root: HTMLDetailsElement;
  readonly #place = element('div');
  readonly #make: () => HTMLElement;

  constructor(title: string, make: () => HTMLElement) {
    this.#make = make;
    this.root = element('details', {}, element('summary', {}, title), this.#place);
    this.root.addEventListener('toggle', () => this.refresh());
  }

  refresh(): void {
    if (this.root.open) this.#place.replaceChildren(this.#make());
  }
}
