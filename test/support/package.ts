/** Everything that the package exports, from all entries. */
export * from '../../src/formats/index.js';
export * from '../../src/index.js';
export * from '../../src/replay/index.js';
export * from '../../src/report/index.js';
export * from '../../src/watch/index.js';
