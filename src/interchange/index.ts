/** `cistern/interchange`: memory of other libraries, and for them. */
export { type AddonInterface, addonInterface } from './addon-interface.js';
export {
  type CudaArray,
  type CudaArrayInterface,
  type CudaArrayInterfaceOptions,
  type FromCudaArrayInterfaceOptions,
  fromCudaArrayInterface,
  toCudaArrayInterface,
} from './cuda-array-interface.js';
export { type DLPackCapsule, type DLPackDataType, type DLPackOptions, type DLPackTypeName, toDLPack } from './dlpack.js';
export { ForeignMemoryResource } from './foreign-memory-resource.js';
export { type DLPackTensor, type FromDLPackOptions, fromDLPack } from './from-dlpack.js';
export { type WrapOptions, wrapMemory } from './wrap.js';
