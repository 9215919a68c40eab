/**
 * The WebAssembly module of the free-space indexes, changed so that it counts its accesses to
 * memory. A test file uses it in place of the real one with
 *
 *     vi.mock('../../src/suballocation/index-module.js', () => import('./counted-index-module.js'));
 */
import binaryen from 'assemblyscript/binaryen';
import { indexBinary } from '../../src/suballocation/index-binary.js';
import type { indexModule as real } from '../../src/suballocation/index-module.js';

declare const WebAssembly: {
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object, imports: object) => { readonly exports: unknown };
};

let count = 0;

/** The loads and stores so far. */
export function memoryAccesses(): number {
  return count;
}

/** What the changed module calls at each load and store: with the address, then with the value, which it wants back. */
const env = new Proxy(
  {},
  {
    get: (_target, name) => {
      const isAddress = String(name).endsWith('_ptr');
      return (...args: readonly unknown[]) => {
        if (isAddress) count++;
        return args.at(-1);
      };
    },
  },
);

function instrumented(): Uint8Array {
  const module = binaryen.readBinary(Buffer.from(indexBinary, 'base64'));
  module.setFeatures(binaryen.Features.All);
  module.runPasses(['instrument-memory']);
  return module.emitBinary();
}

export const indexModule = new WebAssembly.Instance(new WebAssembly.Module(instrumented()), { env }).exports as typeof real;
