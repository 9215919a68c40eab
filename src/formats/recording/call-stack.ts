import { fileURLToPath } from 'node:url';

const depth = 64;
const root = new URL('../..', import.meta.url);

/** Where cistern itself is, as an address and as a path, and what it runs the functions of others through. */
const ownPlaces = [root.pathname, fileURLToPath(root), 'node:async_hooks'];

/**
 * The JavaScript stack above a function, innermost call first, a line `function (file:line:column)` each, without cistern's own calls, unless
 * there are no others. Empty where the program's own `Error.prepareStackTrace` fails. Never throws: memory was just allocated.
 */
export function callStack(below: (...values: never[]) => unknown): string {
  const limit = Error.stackTraceLimit;
  // An assignment would throw where it is frozen.
  Reflect.set(Error, 'stackTraceLimit', depth);
  const holder = { stack: '' };
  try {
    Error.captureStackTrace(holder, below);
    const frames = String(holder.stack).split('\n').slice(1).map(formatFrame);
    const foreign = frames.filter((frame) => !ownPlaces.some((place) => frame.includes(place)));
    return (foreign.length > 0 ? foreign : frames).join('\n');
  } catch {
    return '';
  } finally {
    Reflect.set(Error, 'stackTraceLimit', limit);
  }
}

/** `    at name (file:1:2)`, or `    at file:1:2` of a function without a name. */
function formatFrame(line: string): string {
  const frame = line.replace(/^\s*at /, '');
  return frame.endsWith(')') ? frame : `<anonymous> (${frame})`;
}
