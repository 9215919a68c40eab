/** Everything that the package exports, from all entries. */

export * from '../../src/checking/index.js';
export * from '../../src/graphs/index.js';
export * from '../../src/index.js';
export * from '../../src/interchange/index.js';
export * from '../../src/lasting/index.js';
export * from '../../src/machine/index.js';
export * from '../../src/plans/index.js';
export * from '../../src/processes/index.js';
export * from '../../src/recording/index.js';
export * from '../../src/serving/index.js';
export { everyKind as resourceKinds } from '../../src/tools/every-kind.js';
export * from '../../src/tools/formats/index.js';
export * from '../../src/tools/replay/index.js';
export * from '../../src/tools/report/index.js';
export * from '../../src/tools/testing/index.js';
export * from '../../src/tools/watch/index.js';
export * from '../../src/workers/index.js';
