import { fileURLToPath } from 'node:url';
import { packageRoot } from './package/root.js';

type Callee = ((...values: never[]) => unknown) | (abstract new (...values: never[]) => unknown);

/**
 * Where cistern's own frames lie, as URL paths and as file paths, and the module through which it
 * runs other code's functions. With source maps, the frames of `dist/` are shown as those of `src/`.
 */
const ownPlaces = [
  ...['dist/', 'src/'].map((folder) => new URL(folder, packageRoot)).flatMap((folder) => [folder.pathname, fileURLToPath(folder)]),
  'node:async_hooks',
];

/**
 * The stack above a call, as text right away: until its text is read, a stack keeps alive every
 * object whose method is in it. One line `    at function (file:line:column)` per frame, the
 * innermost first; empty if the program's own `Error.prepareStackTrace` fails. Never throws: the
 * caller has just allocated memory.
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

/**
 * The stack above a call, one line `function (file:line:column)` per frame. cistern's own frames
 * are left out unless there are no others.
 */
export function callStack(below: Callee): string {
  const stack = captureStack(below, 64);
  if (stack === '') return '';
  const frames = stack.split('\n').map(formatFrame);
  const foreign = frames.filter((frame) => !ownPlaces.some((place) => frame.includes(place)));
  return (foreign.length > 0 ? foreign : frames).join('\n');
}

/** Formats a line `    at name (file:1:2)`, or `    at file:1:2` for a function without a name. */
function formatFrame(line: string): string {
  const frame = line.replace(/^\s*at /, '');
  return frame.endsWith(')') ? frame : `<anonymous> (${frame})`;
}
