import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { buildNativeBenchmarks } from '../../scripts/build-for-tests.mjs';
import { runJson } from './processes.mjs';

const libraryFolders = ['/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu', '/usr/lib64', '/usr/lib', '/usr/local/lib'];

/** The native subjects, if there is a compiler. */
export class NativeBench {
  /** @type {string | undefined} */
  #mimalloc = libraryFolders.map((folder) => join(folder, 'libmimalloc.so.2')).find((file) => existsSync(file));
  /** @type {string | undefined} */
  #program;

  /** @param {(reason: string) => void} skip */
  constructor(skip) {
    try {
      this.#program = buildNativeBenchmarks();
    } catch (error) {
      skip(`native subjects: ${String(error)}`);
    }
  }

  get isAvailable() {
    return this.#program !== undefined;
  }

  /** The name of the native allocator. */
  get allocatorName() {
    return this.#mimalloc === undefined ? 'glibc' : 'mimalloc';
  }

  /**
   * @param {string} mode
   * @param {string} [argument]
   * @param {number} [repetitions]
   * @returns {Promise<any>} what `bench_native` reports, or undefined if it could not be built
   */
  async run(mode, argument, repetitions) {
    if (this.#program === undefined) return undefined;
    const takesLibrary = (mode === 'malloc' || mode === 'holes') && this.#mimalloc !== undefined;
    return await runJson(this.#program, [
      mode,
      ...(argument === undefined ? [] : [argument]),
      ...(takesLibrary ? ['--library', /** @type {string} */ (this.#mimalloc)] : []),
      ...(repetitions === undefined ? [] : ['--repetitions', String(repetitions)]),
    ]);
  }
}
