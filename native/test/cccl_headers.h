// cistern.hpp against NVIDIA's own headers, which `npm run check -- cuda-header` compiles where they are installed:
// what has another form than CCCL's concepts ask for does not compile.
#ifndef CISTERN_TEST_CCCL_HEADERS_H_
#define CISTERN_TEST_CCCL_HEADERS_H_

#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // of CCCL 3.0 only
#include <cistern.hpp>
#include <cuda/version>

namespace cistern::cccl_headers {

namespace mr = cuda::mr;
using mr::device_accessible;
using mr::host_accessible;

#if CCCL_MAJOR_VERSION == 3 && CCCL_MINOR_VERSION == 0
template <class Resource, class... Properties>
inline constexpr bool is_resource_with = mr::async_resource_with<Resource, Properties...>;
template <class... Properties>
using ref = mr::async_resource_ref<Properties...>;
#else
template <class Resource, class... Properties>
inline constexpr bool is_resource_with = mr::resource_with<Resource, Properties...>;
template <class... Properties>
using ref = mr::resource_ref<Properties...>;
#endif

static_assert(is_resource_with<device_memory_resource, device_accessible>);
static_assert(!is_resource_with<device_memory_resource, host_accessible>);
static_assert(is_resource_with<host_device_memory_resource, device_accessible, host_accessible>);
static_assert(std::is_convertible_v<device_memory_resource&, ref<device_accessible>>);
static_assert(std::is_convertible_v<host_device_memory_resource&, ref<device_accessible>>);
static_assert(!std::is_convertible_v<device_memory_resource&, ref<device_accessible, host_accessible>>);

// All that a reference calls.
inline void UseAll(device_memory_resource& memory, cuda::stream_ref stream) {
  ref<device_accessible> reference = memory;
#if CCCL_MAJOR_VERSION == 3 && CCCL_MINOR_VERSION == 0
  reference.deallocate_async(reference.allocate_async(8, 256, stream), 8, 256, stream);
  reference.deallocate(reference.allocate(8, 256), 8, 256);
#else
  reference.deallocate(stream, reference.allocate(stream, 8, 256), 8, 256);
  reference.deallocate_sync(reference.allocate_sync(8, 256), 8, 256);
#endif
}

}  // namespace cistern::cccl_headers

#endif  // CISTERN_TEST_CCCL_HEADERS_H_
