type Built = { readonly path: string; readonly missing?: undefined } | { readonly path?: undefined; readonly missing: string };

/**
 * The path of what a function of scripts/build-for-tests.mjs builds; or, if a tool for that is not installed, as on a machine
 * that has only a driver, why its tests are skipped.
 */
export async function builtForTests(name: `build${string}`, what: string): Promise<Built> {
  const { [name]: build, isMissingTool } = await import(new URL('../../scripts/build-for-tests.mjs', import.meta.url).href);
  try {
    return { path: build() };
  } catch (error) {
    if (!isMissingTool(error)) throw error;
    return { missing: `${what} cannot be built here: ${(error as Error).message}` };
  }
}
