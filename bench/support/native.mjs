import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './cistern.mjs';
import { runJson } from './processes.mjs';

const source = join(root, 'bench/native');
const build = join(root, 'build/bench');

const libraryFolders = ['/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu', '/usr/lib64', '/usr/lib', '/usr/local/lib'];

/** The native subjects, if there is a compiler. */
export class NativeBench {
  /** @type {string | undefined} */
  #mimalloc = libraryFolders.map((folder) => join(folder, 'libmimalloc.so.2')).find((file) => existsSync(file));
  #isAvailable = false;

  /** @param {(reason: string) => void} skip */
  constructor(skip) {
    try {
      execFileSync('cmake', ['-S', source, '-B', build, '-DCMAKE_BUILD_TYPE=Release'], { stdio: 'pipe' });
      execFileSync('cmake', ['--build', build], { stdio: 'pipe' });
      this.#isAvailable = true;
    } catch (error) {
      const reason = /** @type {NodeJS.ErrnoException} */ (error).code === 'ENOENT' ? 'there is no cmake' : String(error);
      skip(`native subjects: ${reason}`);
    }
  }

  get isAvailable() {
    return this.#isAvailable;
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
    if (!this.#isAvailable) return undefined;
    const takesLibrary = (mode === 'malloc' || mode === 'holes') && this.#mimalloc !== undefined;
    return await runJson(join(build, 'bench_native'), [
      mode,
      ...(argument === undefined ? [] : [argument]),
      ...(takesLibrary ? ['--library', /** @type {string} */ (this.#mimalloc)] : []),
      ...(repetitions === undefined ? [] : ['--repetitions', String(repetitions)]),
    ]);
  }
}
