// NVRTC and cuBLAS, called through koffi: from a CUDA toolkit, or from the wheels nvidia-cuda-nvrtc and nvidia-cublas, which PyTorch brings.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import koffi from 'koffi';

/** Compiles CUDA C++ when the program runs. */
export class Nvrtc {
  #library;

  /** @returns {Nvrtc | undefined} if it is installed */
  static find() {
    const library = load('nvrtc');
    return library && new Nvrtc(library);
  }

  constructor(library) {
    this.#library = library;
  }

  /**
   * @param {string} source
   * @param {string} architecture of the GPU, such as sm_90. For a real one, there is no PTX, of which the driver may not know the version
   * @returns {Uint8Array} what the driver loads
   */
  compile(source, architecture) {
    const call = (name, parameters, ...values) =>
      check(this.#library.func(`int ${name}(${parameters})`)(...values), name, 'an NVRTC error');
    const program = [null];
    const optional = ', const char *name, int headers, void *sources, void *names';
    call('nvrtcCreateProgram', `_Out_ void **program, const char *source${optional}`, program, source, 'kernels.cu', 0, null, null);
    call('nvrtcCompileProgram', 'void *program, int count, const char **options', program[0], 1, [`--gpu-architecture=${architecture}`]);
    const size = [0];
    call('nvrtcGetCUBINSize', 'void *program, _Out_ size_t *size', program[0], size);
    const code = new Uint8Array(size[0]);
    call('nvrtcGetCUBIN', 'void *program, _Out_ uint8_t *code', program[0], code);
    call('nvrtcDestroyProgram', '_Inout_ void **program', program);
    return code;
  }
}

/** Multiplies matrices of floats on one stream, with a workspace that the program gives. */
export class Cublas {
  #handle;
  #multiply;
  #destroy;
  #one = koffi.alloc('float', 1);
  #zero = koffi.alloc('float', 1);

  /**
   * @param {import('cistern').Stream} stream
   * @param {import('cistern').DeviceBuffer} workspace cuBLAS then allocates nothing by itself, also not in a capture
   * @returns {Cublas | undefined} if it is installed
   */
  static find(stream, workspace) {
    const library = load('cublas');
    return library && new Cublas(library, stream, workspace);
  }

  constructor(library, stream, workspace) {
    const create = library.func('int cublasCreate_v2(_Out_ void **handle)');
    const setStream = library.func('int cublasSetStream_v2(void *handle, uintptr_t stream)');
    const setWorkspace = library.func('int cublasSetWorkspace_v2(void *handle, uintptr_t workspace, size_t bytes)');
    const matrices = 'void *one, uintptr_t a, int lda, uintptr_t b, int ldb, void *beta, uintptr_t c, int ldc';
    this.#multiply = library.func(`int cublasSgemm_v2(void *handle, int transA, int transB, int m, int n, int k, ${matrices})`);
    this.#destroy = library.func('int cublasDestroy_v2(void *handle)');
    const handle = [null];
    check(create(handle), 'cublasCreate', 'a cuBLAS error');
    this.#handle = handle[0];
    // In this order: setting a stream takes the workspace away.
    check(setStream(this.#handle, stream.nativeHandle), 'cublasSetStream', 'a cuBLAS error');
    check(setWorkspace(this.#handle, workspace.ptr, workspace.byteLength), 'cublasSetWorkspace', 'a cuBLAS error');
    koffi.encode(this.#one, 'float', 1);
    koffi.encode(this.#zero, 'float', 0);
  }

  /** c = a × b, or c + a × b. The rows of the matrices lie one after the other, while cuBLAS counts by columns: it gets b first. */
  multiply(a, b, c, rows, inner, columns, adds) {
    const beta = adds ? this.#one : this.#zero;
    const status = this.#multiply(this.#handle, 0, 0, columns, rows, inner, this.#one, b, columns, a, inner, beta, c, columns);
    check(status, 'cublasSgemm', 'a cuBLAS error');
  }

  dispose() {
    check(this.#destroy(this.#handle), 'cublasDestroy', 'a cuBLAS error');
  }
}

/** Loads lib`name`.so: by its name, from a toolkit, or from a wheel. */
function load(name) {
  if (process.platform !== 'linux') return undefined;
  for (const path of candidates(name)) {
    try {
      return koffi.load(path);
    } catch {
      // The next one.
    }
  }
  return undefined;
}

function* candidates(name) {
  const files = [13, 12].map((version) => `lib${name}.so.${version}`);
  yield* files;
  const { CUDA_HOME, CUDA_PATH } = process.env;
  const toolkits = [CUDA_HOME, CUDA_PATH, '/usr/local/cuda'].filter(Boolean).map((folder) => join(folder, 'lib64'));
  for (const folder of [...toolkits, ...wheelFolders()]) yield* files.map((file) => join(folder, file));
}

/** The folders of wheels: nvidia/cublas/lib, nvidia/cuda_nvrtc/lib, or nvidia/cu13/lib, where Python finds packages. */
function wheelFolders() {
  const { stdout } = spawnSync(process.env.PYTHON ?? 'python3', ['-c', 'import sys; print("\\n".join(sys.path))'], { encoding: 'utf8' });
  return (stdout ?? '')
    .split('\n')
    .filter(Boolean)
    .flatMap((folder) => {
      const nvidia = join(folder, 'nvidia');
      try {
        return readdirSync(nvidia).map((each) => join(nvidia, each, 'lib'));
      } catch {
        return [];
      }
    });
}

function check(status, what, kind) {
  if (status !== 0) throw new Error(`${what}: ${kind} ${status}`);
}
