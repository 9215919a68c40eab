// Loaded before each test file. Vitest maps every frame of every stack to its source, which takes most of the time of a test
// that allocates through an adaptor that keeps stacks. Only the stacks of errors are mapped here; those that cistern
// takes of its callers say where Vitest's code of the same file is.
const mapped = Error.prepareStackTrace;

// Not a second time in a process that runs several files.
if (mapped !== undefined && mapped.name !== 'plainStackTrace') {
  Error.prepareStackTrace = function plainStackTrace(error, frames) {
    return error instanceof Error ? mapped(error, frames) : ['Error', ...frames.map((frame) => `    at ${frame}`)].join('\n');
  };
}
