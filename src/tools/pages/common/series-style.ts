/** Number of styles before they repeat. */
const seriesStyleCount = 6;

/** Dashes in CSS pixels, so that no two lines differ by colour alone. */
const dashes: readonly (readonly number[])[] = [[], [8, 4], [2, 3], [12, 3, 2, 3], [4, 2], [16, 5]];

/** The CSS variable of a style's colour. */
export function seriesVariable(style: number): string {
  return `--series-${(style % seriesStyleCount) + 1}`;
}

/** The dash of a style; empty for a solid line. */
export function seriesDash(style: number): number[] {
  return [...(dashes[style % dashes.length] as readonly number[])];
}

const darkQuery = matchMedia('(prefers-color-scheme: dark)');
/**
 * The colours in light or dark, whichever `resolvedFor` says. They are cached, because computing
 * one costs more than a chart's other work for it.
 */
const resolved = new Map<string, string>();
let resolvedFor = '';
let probe: HTMLElement | undefined;

/**
 * The current value of a CSS variable of `common.css`, in light or dark, as a colour that a canvas
 * understands.
 */
export function resolveColor(variable: string): string {
  const scheme = `${darkQuery.matches} ${document.documentElement.dataset['theme']}`;
  if (scheme !== resolvedFor) {
    resolvedFor = scheme;
    resolved.clear();
  }
  let color = resolved.get(variable);
  if (color === undefined) {
    color = computeColor(variable);
    resolved.set(variable, color);
  }
  return color;
}

function computeColor(variable: string): string {
  if (probe === undefined) {
    probe = document.createElement('span');
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}

/** The event sent to the document when the page itself switches between light and dark. */
export const colorSchemeEvent = 'colorschemechange';

/**
 * Calls `listener` whenever the page switches between light and dark. Returns a function that stops
 * this.
 */
export function onColorSchemeChange(listener: () => void): () => void {
  darkQuery.addEventListener('change', listener);
  document.addEventListener(colorSchemeEvent, listener);
  return () => {
    darkQuery.removeEventListener('change', listener);
    document.removeEventListener(colorSchemeEvent, listener);
  };
}

/** A sample of a style's line, for legends. */
export function seriesSwatch(style: number): SVGSVGElement {
  const namespace = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(namespace, 'svg');
  svg.setAttribute('width', '34');
  svg.setAttribute('height', '8');
  svg.setAttribute('aria-hidden', 'true');
  const line = document.createElementNS(namespace, 'line');
  for (const [name, value] of Object.entries({ x1: 1, x2: 33, y1: 4, y2: 4, 'stroke-width': 2.5 })) line.setAttribute(name, String(value));
  line.style.stroke = `var(${seriesVariable(style)})`;
  line.setAttribute('stroke-dasharray', seriesDash(style).join(' '));
  svg.append(line);
  return svg;
}
