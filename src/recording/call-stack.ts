const depth = 64;

/** The JavaScript stack above a function, innermost call first, a line `function (file:line:column)` each. */
export function callStack(below: (...values: never[]) => unknown): string {
  const limit = Error.stackTraceLimit;
  Error.stackTraceLimit = depth;
  const holder = { stack: '' };
  Error.captureStackTrace(holder, below);
  Error.stackTraceLimit = limit;
  return String(holder.stack).split('\n').slice(1).map(formatFrame).join('\n');
}

/** `    at name (file:1:2)`, or `    at file:1:2` of a function without a name. */
function formatFrame(line: string): string {
  const frame = line.replace(/^\s*at /, '');
  return frame.endsWith(')') ? frame : `<anonymous> (${frame})`;
}
