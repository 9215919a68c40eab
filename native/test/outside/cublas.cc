// A libcublas.so.13 that does nothing: see cudart.cc.
#define DOES_NOTHING(name) \
  extern "C" __attribute__((visibility("default"))) int name() { return 0; }
DOES_NOTHING(cublasCreate_v2)
DOES_NOTHING(cublasDestroy_v2)
DOES_NOTHING(cublasGemmBatchedEx)
DOES_NOTHING(cublasGemmEx)
DOES_NOTHING(cublasGemmStridedBatchedEx)
DOES_NOTHING(cublasGetStatusString)
DOES_NOTHING(cublasSetMathMode)
DOES_NOTHING(cublasSetStream_v2)
DOES_NOTHING(cublasSetWorkspace_v2)
DOES_NOTHING(cublasSgemmBatched)
DOES_NOTHING(cublasSgemmStridedBatched)
DOES_NOTHING(cublasSgemm_v2)
DOES_NOTHING(cublasStrsmBatched)
