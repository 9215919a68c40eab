import { fileURLToPath } from 'node:url';

type Callee = ((...values: never[]) => unknown) | (abstract new (...values: never[]) => unknown);

const root = new URL('.', import.meta.url);

/** Where cistern itself is, as an address and as a path, and what it runs the functions of others through. */
const ownPlaces = [root.pathname, fileURLToPath(root), 'node:async_hooks'];

/**
 * The stack above a call, as text at once: until its text is asked for, a stack keeps alive every object whose method is in it. A line
 * `    at function (file:line:column)` for each frame, the innermost first; empty if the program's own `Error.prepareStackTrace` fails.
 * Never throws: who asks has just allocated memory.
 */
export function captureStack(below: Callee, depth = Error.stackTraceLimit): string {
  const limit = Error.stackTraceLimit;
  // An assignment would throw if the property is frozen.
  Reflect.set(Error, 'stackTraceLimit', depth);
  const holder = { stack: '' };
  try {
    Error.captureStackTrace(holder, below);
    const stack = String(holder.stack);
    const end = stack.indexOf('\n');
    return end < 0 ? '' : stack.slice(end + 1);
  } catch {
    return '';
  } finally {
    Reflect.set(Error, 'stackTraceLimit', limit);
  }
}

/** The stack above a call, a line `function (file:line:column)` for each frame, without cistern's own frames unless there are no others. */
export function callStack(below: Callee): string {
  const stack = captureStack(below, 64);
  if (stack === '') return '';
  const frames = stack.split('\n').map(formatFrame);
  const foreign = frames.filter((frame) => !ownPlaces.some((place) => frame.includes(place)));
  return (foreign.length > 0 ? foreign : frames).join('\n');
}

/** `    at name (file:1:2)`, or `    at file:1:2` of a function without a name. */
function formatFrame(line: string): string {
  const frame = line.replace(/^\s*at /, '');
  return frame.endsWith(')') ? frame : `<anonymous> (${frame})`;
}
