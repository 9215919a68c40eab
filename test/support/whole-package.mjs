// Everything that the built package exports, for programs that tests run in processes and workers of their own.
export * from '../../dist/checking/index.js';
export * from '../../dist/graphs/index.js';
export * from '../../dist/index.js';
export { resourceKinds } from '../../dist/index.js';
export * from '../../dist/interchange/index.js';
export * from '../../dist/lasting/index.js';
export * from '../../dist/machine/index.js';
export * from '../../dist/plans/index.js';
export * from '../../dist/processes/index.js';
export * from '../../dist/recording/index.js';
export * from '../../dist/serving/index.js';
export * from '../../dist/tools/testing/index.js';
export * from '../../dist/workers/index.js';
