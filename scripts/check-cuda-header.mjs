// Compares native/cuda/driver_table.h with NVIDIA's cuda.h, and include/cistern.hpp with the concepts of its CCCL, if a
// toolkit is installed: `node scripts/check-cuda-header.mjs`. Nothing is linked or run: what has another form does not
// compile. CCCL of another version: `node scripts/check-cuda-header.mjs FOLDER`, the one with cuda/memory_resource in it.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { argv, env, exit } from 'node:process';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const native = join(root, 'native');

/** The folder with cuda.h, or undefined. */
export function cudaHeaders() {
  return [env.CUDA_HOME, '/usr/local/cuda']
    .flatMap((home) => (home ? [join(home, 'include')] : []))
    .find((folder) => existsSync(join(folder, 'cudaTypedefs.h')));
}

function compile(text, headers) {
  const scratch = mkdtempSync(join(tmpdir(), 'cistern-header-'));
  const source = join(scratch, 'check.cc');
  writeFileSync(source, text);
  const folders = [...headers.flatMap((folder) => ['-isystem', folder]), '-I', native, '-I', join(root, 'include')];
  const { status, error, stderr } = spawnSync(env.CXX ?? 'c++', ['-std=c++17', '-fsyntax-only', ...folders, source], { encoding: 'utf8' });
  rmSync(scratch, { recursive: true });
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(stderr);
}

/**
 * @param {string} headers the folder with cuda.h
 * @param {string} cccl the folder with cuda/memory_resource
 * @returns {string} what was compared
 * @throws {Error} with the compiler's output if something differs
 */
export function checkConcept(headers, cccl = join(headers, 'cccl')) {
  if (!existsSync(join(cccl, 'cuda', 'memory_resource'))) return `skipped: no cuda/memory_resource in ${cccl}`;
  compile('#include "test/cccl_headers.h"\n', [cccl, headers]);
  return `cistern.hpp satisfies the concepts of ${cccl}`;
}

/**
 * @returns {string} what was compared
 * @throws {Error} with the compiler's output if something differs
 */
export function checkCudaHeader(headers) {
  const table = readFileSync(join(native, 'cuda', 'driver_table.h'), 'utf8').replaceAll(/\\\n/g, ' ');
  const functions = [...table.matchAll(/\bX\((\w+), "(\w+)", (\d+),/g)];
  const lines = functions.map(([, member, symbol, version]) => `CISTERN_SAME_CALL(${member}, PFN_${symbol}_v${version});`);
  const count = `static_assert(kCallCount == ${functions.length}, "a function of the table was not found");`;
  compile(`#include "test/cuda_header.h"\nnamespace cistern::cuda_header {\n${lines.join('\n')}\n${count}\n}\n`, [headers]);
  return `${functions.length} functions, and the constants and structures, are those of ${join(headers, 'cuda.h')}`;
}

if (argv[1] === fileURLToPath(import.meta.url)) {
  const headers = cudaHeaders();
  if (headers === undefined) {
    console.log('skipped: no cudaTypedefs.h in CUDA_HOME or /usr/local/cuda');
    exit(0);
  }
  console.log(checkCudaHeader(headers));
  console.log(checkConcept(headers, argv[2]));
}
