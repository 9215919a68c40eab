import { fileURLToPath } from 'node:url';
import { packageRoot } from '../package/root.js';

type Callee = ((...values: never[]) => unknown) | (abstract new (...values: never[]) => unknown);

/**
 * The folders of cistern's own frames, as URL paths and as file paths, and the modules through which
 * it calls other code's functions. With source maps, the frames of `dist/` are shown as those of
 * `src/`.
 */
const ownPlaces = [
  ...['dist/', 'src/'].map((folder) => new URL(folder, packageRoot)).flatMap((folder) => [folder.pathname, fileURLToPath(folder)]),
  ...['node:async_hooks', 'node:internal/async_local_storage'],
];

/**
 * The most frames of cistern that usually precede those of the program, and the most that ever do,
 * such as when a pool on a pool grows.
 */
const usualOwnFrames = 8;
const mostOwnFrames = 128;

/**
 * The stack above a call, one line `    at function (file:line:column)` per frame, the innermost
 * first. cistern's own frames are left out unless there are no others. It is turned into text
 * immediately, because a stack keeps every object whose method is in it alive until its text is
 * read. Empty if the program's own `Error.prepareStackTrace` fails. Never throws: the caller has
 * just allocated memory.
 * @param below leaves out this function and those that it calls
 */
export function captureStack(below: Callee | undefined, depth = Error.stackTraceLimit): string {
  const usual = framesOf(wholeStack(below, depth + usualOwnFrames));
  const isComplete = usual.all.length < depth + usualOwnFrames || usual.others.length >= depth;
  const { all, others } = isComplete ? usual : framesOf(wholeStack(below, depth + mostOwnFrames));
  return (others.length > 0 ? others : all).slice(0, depth).join('\n');
}

/** The same, one line `function (file:line:column)` per frame. */
export function callStack(below: Callee): string {
  const stack = captureStack(below, 64);
  return stack === '' ? '' : stack.split('\n').map(formatFrame).join('\n');
}

/**
 * The innermost frame of a stack that {@link captureStack} took: `name (file:line:column)`, with the file
 * relative to the current folder if it is in it. Empty if there is no stack.
 */
export function callerOf(stack: string | undefined): string {
  const [line = ''] = (stack ?? '').split('\n', 1);
  if (line === '') return '';
  return formatFrame(line).replace('file://', '').replace(`${process.cwd()}/`, '');
}

/** The stack above a call with cistern's own frames. */
function wholeStack(below: Callee | undefined, depth: number): string {
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

/** The frames of a stack, and those among them that are not cistern's own. */
function framesOf(stack: string): { all: string[]; others: string[] } {
  const all = stack.split('\n');
  return { all, others: all.filter((frame) => !ownPlaces.some((place) => frame.includes(place))) };
}

/** Formats a line `    at name (file:1:2)`, or `    at file:1:2` for a function without a name. */
function formatFrame(line: string): string {
  const frame = line.replace(/^\s*at /, '');
  return frame.endsWith(')') ? frame : `<anonymous> (${frame})`;
}
