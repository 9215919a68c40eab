import { onColorSchemeChange, resolveColor, seriesVariable } from '../common/series-style.js';

/**
 * A texture of 8 by 8 pixels for each style, one byte per row, so that areas can be distinguished
 * without colours: none, diagonal, dots, horizontal, vertical, the other diagonal.
 */
const textures: readonly (readonly number[])[] = [
  [0, 0, 0, 0, 0, 0, 0, 0],
  [0x80, 0x40, 0x20, 0x10, 0x08, 0x04, 0x02, 0x01],
  [0x00, 0x60, 0x60, 0x00, 0x00, 0x06, 0x06, 0x00],
  [0xff, 0, 0, 0, 0xff, 0, 0, 0],
  [0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88],
  [0x11, 0x22, 0x44, 0x88, 0x11, 0x22, 0x44, 0x88],
];

const tilePixels = 64;

/** The map style of allocations that are filtered out. */
export const dimmedStyle = textures.length;

/** How much of the page's background is mixed into the colour of an area. */
const paleness = 0.3;

type Color = readonly [red: number, green: number, blue: number];

/** The current colours of areas, in light or dark. */
export interface AreaColors {
  /**
   * For each style, and finally for filtered-out allocations, the 64 colours of its texture, row by
   * row, in the format of `ImageData`.
   */
  readonly tiles: Uint32Array;
  readonly reserved: number;
  readonly empty: number;
  readonly border: number;
}

let cached: AreaColors | undefined;
let cachedFor = '';

/** The colours of areas, recomputed when the page switches between light and dark. */
export function areaColors(): AreaColors {
  const backgroundText = resolveColor('--background');
  if (cached !== undefined && cachedFor === backgroundText) return cached;
  cachedFor = backgroundText;
  const background = parse(backgroundText);
  const tiles = new Uint32Array((textures.length + 1) * tilePixels);
  for (const [style, texture] of textures.entries()) {
    const line = parse(resolveColor(seriesVariable(style)));
    const area = pack(mix(line, background, paleness));
    const mark = pack(mix(line, background, paleness + 0.3));
    for (let i = 0; i < tilePixels; i++) tiles[style * tilePixels + i] = ((texture[i >> 3] as number) >> (7 - (i & 7))) & 1 ? mark : area;
  }
  tiles.fill(pack(parse(resolveColor('--map-dimmed'))), dimmedStyle * tilePixels);
  cached = {
    tiles,
    reserved: pack(parse(resolveColor('--map-reserved'))),
    empty: pack(parse(resolveColor('--map-empty'))),
    border: pack(background),
  };
  return cached;
}

/** A style's texture, for filling areas of a canvas. */
export function areaPattern(style: number): CanvasPattern | string {
  const canvas = tileCanvas(style);
  return canvas.getContext('2d')?.createPattern(canvas, 'repeat') ?? resolveColor(seriesVariable(style));
}

/** A sample of a style's area, for legends. It follows light and dark. */
export function areaSwatch(style: number): HTMLCanvasElement {
  const canvas = document.createElement('canvas');
  canvas.width = 24;
  canvas.height = 16;
  canvas.className = 'swatch';
  canvas.setAttribute('aria-hidden', 'true');
  const draw = () => {
    const context = canvas.getContext('2d');
    if (context === null) return;
    context.fillStyle = areaPattern(style);
    context.fillRect(0, 0, 24, 16);
  };
  draw();
  onColorSchemeChange(draw);
  return canvas;
}

function tileCanvas(style: number): HTMLCanvasElement {
  const canvas = document.createElement('canvas');
  canvas.width = 8;
  canvas.height = 8;
  const start = (style % textures.length) * tilePixels;
  const tile = areaColors().tiles.slice(start, start + tilePixels);
  canvas.getContext('2d')?.putImageData(new ImageData(new Uint8ClampedArray(tile.buffer as ArrayBuffer), 8, 8), 0, 0);
  return canvas;
}

function parse(color: string): Color {
  const numbers = color.match(/[\d.]+/g)?.map(Number) ?? [];
  // Chromium writes mixed colours as `color(srgb 0.1 0.2 0.3)`.
  const scale = color.startsWith('color(') ? 255 : 1;
  return [(numbers[0] ?? 0) * scale, (numbers[1] ?? 0) * scale, (numbers[2] ?? 0) * scale];
}

function mix(a: Color, b: Color, share: number): Color {
  return [a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share, a[2] + (b[2] - a[2]) * share];
}

/**
 * In the memory layout of `ImageData`: red first, since all machines with a browser are
 * little-endian.
 */
function pack([red, green, blue]: Color): number {
  return ((255 << 24) | (Math.round(blue) << 16) | (Math.round(green) << 8) | Math.round(red)) >>> 0;
}
