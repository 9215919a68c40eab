// Loaded first before each test file of those that share a process (together.mjs). There, Vitest evaluates a module once; that is right for those of
// src/, but what a module of the tests makes, such as the stream of support/stream.ts with the hook that ends it, belongs to one file.
interface EvaluatedModules {
  readonly idToModuleMap: ReadonlyMap<string, unknown>;
  invalidateModule(module: unknown): void;
}

const { evaluatedModules } = (globalThis as unknown as { __vitest_worker__: { evaluatedModules: EvaluatedModules } }).__vitest_worker__;
for (const [path, module] of evaluatedModules.idToModuleMap)
  if (path.includes('/test/') && !path.endsWith('/fresh-modules.ts')) evaluatedModules.invalidateModule(module);
