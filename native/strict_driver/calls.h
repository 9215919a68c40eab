// The driver's functions, with the signatures of cistern's own table, and those that the table does
// not have.
#ifndef CISTERN_STRICT_DRIVER_CALLS_H_
#define CISTERN_STRICT_DRIVER_CALLS_H_

#include "strict_driver/constants.h"

namespace cistern::strict::calls {

#define CISTERN_DECLARE(member, symbol, version, parameters) Status member parameters;
CISTERN_DRIVER_FUNCTIONS(CISTERN_DECLARE)
#undef CISTERN_DECLARE

// Waits of a stream for a value in memory, and writes of one.
Status StreamWaitValue32(Stream stream, DevicePointer address, std::uint32_t value, unsigned flags);
Status StreamWriteValue32(Stream stream, DevicePointer address, std::uint32_t value, unsigned flags);

// The forms before CUDA 12.2, whose location is an ordinal.
Status MemAdvise8000(DevicePointer pointer, std::size_t bytes, int advice, DeviceOrdinal device);
Status MemPrefetchAsync8000(DevicePointer pointer, std::size_t bytes, DeviceOrdinal device, Stream stream);

// The form before CUDA 13, which tells which copy of a batch was refused.
Status MemcpyBatchAsync12080(DevicePointer* destinations, DevicePointer* sources, std::size_t* sizes, std::size_t count,
                             CopyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count, std::size_t* failed,
                             Stream stream);

// Captures: with less than the table's form, and with data of edges.
Status StreamGetCaptureInfo10010(Stream stream, int* status, std::uint64_t* id);
Status StreamGetCaptureInfo11030(Stream stream, int* status, std::uint64_t* id, Graph* graph, const GraphNode** dependencies,
                                 std::size_t* dependency_count);
Status StreamUpdateCaptureDependencies12030(Stream stream, GraphNode* dependencies, const EdgeData* edges, std::size_t count,
                                            unsigned flags);

// Gives back the memory of graphs that is not in use.
Status DeviceGraphMemTrim(DeviceOrdinal device);

// Kernels: those of test/gpu, recognized by name, if the settings say so; otherwise modules are not
// supported.
Status ModuleLoadData(void** module, const void* image);
Status ModuleGetFunction(void** function, void* module, const char* name);
Status LaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                    unsigned shared_bytes, Stream stream, void** parameters, void** extra);

}  // namespace cistern::strict::calls

#endif  // CISTERN_STRICT_DRIVER_CALLS_H_
