// What launching kernels needs of the CUDA driver, called through koffi: no compiler and no toolkit.
import koffi from 'koffi';

const library = koffi.load(process.platform === 'win32' ? 'nvcuda.dll' : 'libcuda.so.1');
const find = library.func(
  'int cuGetProcAddress_v2(const char *name, _Out_ void **function, int version, uint64_t flags, _Out_ int *reason)',
);
/** As CUDA 12.0 has it. */
function driverFunction(name, prototype) {
  const address = out((pointer) => find(name, pointer, 12000, 0, [0]), `find ${name}`);
  return koffi.decode(address, koffi.proto(prototype));
}
const retainContext = driverFunction('cuDevicePrimaryCtxRetain', 'int RetainContext(_Out_ void **context, int device)');
const setContext = driverFunction('cuCtxSetCurrent', 'int SetContext(void *context)');
const loadModule = driverFunction('cuModuleLoadData', 'int LoadModule(_Out_ void **module, const void *image)');
const findFunction = driverFunction('cuModuleGetFunction', 'int FindFunction(_Out_ void **function, void *module, const char *name)');
const launchKernel = driverFunction(
  'cuLaunchKernel',
  'int LaunchKernel(void *function, uint blocks, uint y, uint z, uint threads, uint ty, uint tz, uint shared, uintptr_t stream, void *values, void *extra)',
);

/** A kernel of a module. If that is in PTX, the driver compiles it for the GPU that it finds. */
export class Kernel {
  #function;
  #types;
  /** The values of a launch, and the array of pointers to them that the driver reads: laid out once, so that a launch makes no objects. */
  #values;
  #pointers;

  /**
   * @param {number} device the number of the device, which must be in use: its context is made current on this thread
   * @param {string | Uint8Array} image PTX, or what was compiled for this GPU
   * @param {string} name
   * @param {readonly ('uint64_t' | 'uint32_t' | 'float')[]} types of the parameters
   */
  constructor(device, image, name, types) {
    const context = out((pointer) => retainContext(pointer, device), 'retain the context');
    check(setContext(context), 'make the context current');
    const bytes = typeof image === 'string' ? Buffer.from(`${image}\0`) : image;
    const module = out((pointer) => loadModule(pointer, bytes), 'load a module');
    this.#function = out((pointer) => findFunction(pointer, module, name), `find the kernel ${name}`);
    this.#types = types;
    this.#values = koffi.alloc('uint64_t', types.length);
    this.#pointers = koffi.alloc('void *', types.length);
    const first = koffi.address(this.#values);
    koffi.encode(
      this.#pointers,
      koffi.array('uint64_t', types.length),
      types.map((_, i) => first + BigInt(8 * i)),
    );
  }

  /**
   * Queues a launch. In a capture, it becomes a node of the graph, with these values.
   * @param {import('cistern').Stream} stream
   * @param {number} blocks
   * @param {number} threads of each block
   * @param {...number} values of the parameters: an address is a number, such as `buffer.ptr`
   */
  launch(stream, blocks, threads, ...values) {
    for (let i = 0; i < this.#types.length; i++) koffi.encode(this.#values, 8 * i, this.#types[i], values[i]);
    check(launchKernel(this.#function, blocks, 1, 1, threads, 1, 1, 0, stream.nativeHandle, this.#pointers, null), 'launch a kernel');
  }
}

function out(call, what) {
  const pointer = [null];
  check(call(pointer), what);
  return pointer[0];
}

function check(status, what) {
  if (status !== 0) throw new Error(`cannot ${what}: CUDA error ${status}`);
}
