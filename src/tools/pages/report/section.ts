import { element } from '../common/dom.js';
import type { View } from './report-state.js';

/** A part of the page under a title; links lead to the title. */
export function section(name: string, title: string, ...children: readonly HTMLElement[]): HTMLElement {
  return sectionUnder(name, element('h2', { id: `${name}-title` }, title), ...children);
}

/** A part of the page under a title with choices beside it. */
export function sectionWithChoices(
  name: string,
  title: string,
  choices: readonly HTMLElement[],
  ...children: readonly HTMLElement[]
): HTMLElement {
  return sectionUnder(
    name,
    element('div', { class: 'section-head' }, element('h2', { id: `${name}-title` }, title), ...choices),
    ...children,
  );
}

function sectionUnder(name: string, ...children: readonly HTMLElement[]): HTMLElement {
  return element('section', { 'aria-labelledby': `${name}-title` }, ...children);
}

/** A section whose content is made again whenever the state has changed. */
export function sectionView(name: string, title: string, make: () => readonly HTMLElement[]): View {
  const place = element('div');
  return { root: section(name, title, place), isPatient: true, update: () => place.replaceChildren(...make()) };
}

/** Scrolls until a part of the page is at the top. */
export function scrollTo(place: Element | null | undefined): void {
  const isReduced = matchMedia('(prefers-reduced-motion: reduce)').matches;
  place?.scrollIntoView({ behavior: isReduced ? 'auto' : 'smooth', block: 'start' });
}
