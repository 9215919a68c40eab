/** Everything that the package exports, from all entries. */

export * from '../../src/index.js';
export * from '../../src/tools/formats/index.js';
export * from '../../src/tools/replay/index.js';
export * from '../../src/tools/report/index.js';
export * from '../../src/tools/watch/index.js';
