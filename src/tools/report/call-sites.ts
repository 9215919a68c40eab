/**
 * What marks a frame that is not the program's own code, from what says most about the program to what says least. A frame of
 * a snapshot of PyTorch may be of C++, of Python's interpreter, or of the allocator itself. Slashes of both kinds count as one.
 */
const foreign: readonly { readonly parts: readonly string[]; readonly pattern: RegExp }[] = [
  {
    // Code of dependencies, of Node and of Python itself, and code that was generated or is a text.
    parts: [
      ...['(node:', '(<anonymous>)', '/node_modules/', '(node_modules/', 'site-packages/', 'dist-packages/', 'torchinductor_'],
      ...['(<string>', '(<stdin>', '(<frozen ', '(<eval_with_key>', '(<__array_function__'],
    ],
    pattern: /\/lib\/python\d|\/Python\d+\/Lib\//,
  },
  // C++, with a file or without, and Python's interpreter.
  { parts: ['::'], pattern: /\.(?:c|cc|cpp|cxx|h|hh|hpp|cu|cuh|inl|s)(?::\d+)*\)$|^_?Py[A-Z_]|^\w+$/i },
  // What every allocation of a snapshot begins with.
  { parts: ['torch::unwind', 'CapturedTraceback', 'CachingAllocator', 'c10::cuda::', '(??)', '(??:'], pattern: /^\?\?/ },
];

/**
 * A frame of a library that `cistern run` recorded: it says less than JavaScript of a dependency that called the library. One without a
 * name says nothing, nor does a thread.
 */
const ofLibrary = { mark: '(native:', pattern: /^\+0x|\(native:(?:thread|napi_create_async_work)\)$/ };

/** The places in a program that allocate. */
export interface CallSites {
  /** The first is for allocations without a stack. */
  readonly names: readonly string[];
  /** The index of each stack's place. */
  readonly of: Uint32Array;
}

/** Finds the place of each stack of a log: the innermost frame in the program's own code, or what is nearest to that. */
export function callSites(stacks: readonly string[]): CallSites {
  const names = ['no stack'];
  const indexes = new Map<string, number>();
  const of = Uint32Array.from(stacks, (stack) => {
    const site = callSiteOf(stack);
    if (site === undefined) return 0;
    const index = indexes.get(site) ?? names.push(site) - 1;
    indexes.set(site, index);
    return index;
  });
  return { names, of };
}

function callSiteOf(stack: string): string | undefined {
  let site: string | undefined;
  let least = Number.POSITIVE_INFINITY;
  for (const frame of stack.split('\n')) {
    if (frame === '') continue;
    const distance = distanceOf(frame);
    if (distance >= least) continue;
    site = frame;
    least = distance;
    if (distance < 0) break;
  }
  return site;
}

/** How far a frame is from the program's own code, which has a number below 0. */
function distanceOf(frame: string): number {
  if (frame.includes(ofLibrary.mark)) return ofLibrary.pattern.test(frame) ? foreign.length : 0.5;
  const plain = frame.replaceAll('\\', '/');
  return foreign.findLastIndex(({ parts, pattern }) => parts.some((part) => plain.includes(part)) || pattern.test(plain));
}

/** Whether a frame is the program's own code. */
export function isOwnCode(frame: string): boolean {
  return distanceOf(frame) < 0;
}

/** A frame without its line, which shifts with every edit; functions without names are told apart by it. */
export function withoutLine(frame: string): string {
  return frame.startsWith('<anonymous> ') ? frame : frame.replace(/(?::\d+){1,2}\)$/, ')');
}

/** What the differences of runs are grouped by, unless somebody chooses: what all runs have. The first stack and label stand for none. */
export function usualGroup(
  runs: readonly { readonly stacks: readonly unknown[]; readonly labels: readonly unknown[] }[],
): 'function' | 'label' | 'size' {
  if (runs.every(({ stacks }) => stacks.length > 1)) return 'function';
  return runs.every(({ labels }) => labels.length > 1) ? 'label' : 'size';
}
