/**
 * The WebAssembly module of the free-space indexes with little memory: 256 KiB. A test file uses it
 * in place of the real one with
 *
 *     vi.mock('../../src/suballocation/index-module.js', () => import('./small-index-module.js'));
 */
import { indexBinary } from '../../src/suballocation/index-binary.js';
import type { indexModule as real } from '../../src/suballocation/index-module.js';

declare const WebAssembly: {
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object) => { readonly exports: unknown };
};

const mostPages = 4;

/** The module whose memory section has a maximum. */
function limited(): Uint8Array {
  const bytes = Buffer.from(indexBinary, 'base64');
  // After the header, sections: a number, the length in groups of 7 bits, and the content.
  for (let start = 8; start < bytes.length; ) {
    let at = start + 1;
    let length = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[at++] as number;
      length |= (byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    if (bytes[start] === 5) {
      // One memory, without a maximum, and so many pages at first.
      const [count, flags, pages] = bytes.subarray(at, at + length);
      if (length !== 3 || count !== 1 || flags !== 0) throw new Error('the memory section has another form');
      return Buffer.concat([bytes.subarray(0, start), Buffer.from([5, 4, 1, 1, pages as number, mostPages]), bytes.subarray(at + length)]);
    }
    start = at + length;
  }
  throw new Error('the module has no memory section');
}

export const indexModule = new WebAssembly.Instance(new WebAssembly.Module(limited())).exports as typeof real;
