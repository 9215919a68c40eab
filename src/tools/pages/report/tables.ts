import { type Column, classOf } from '../common/columns.js';
import { element } from '../common/dom.js';

/** A table with column and row headers. */
export function dataTable<Row>(caption: string, rows: readonly Row[], columns: readonly Column<Row>[]): HTMLElement {
  const heads = columns.map((column) => element('th', { scope: 'col', class: classOf(column) }, column.head));
  const head = element('thead', {}, element('tr', {}, ...heads));
  return scrollable(element('table', {}, element('caption', {}, caption), head, bodyOf(rows, columns)), caption);
}

/** A table of few columns that need no head. */
export function plainTable<Row>(rows: readonly Row[], columns: readonly Column<Row>[]): HTMLElement {
  return element('table', { class: 'answer' }, bodyOf(rows, columns));
}

/** The first column of words names the rows. */
function bodyOf<Row>(rows: readonly Row[], columns: readonly Column<Row>[]): HTMLElement {
  const title = columns.find(({ isNumber }) => !isNumber);
  const cellOf = (row: Row, column: Column<Row>) => {
    const attributes = { class: classOf(column) };
    return column === title ? element('th', { scope: 'row' }, column.cell(row)) : element('td', attributes, column.cell(row));
  };
  return element('tbody', {}, ...rows.map((row) => element('tr', {}, ...columns.map((column) => cellOf(row, column)))));
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
