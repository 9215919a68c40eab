// Memory for any thread, in C++17: a class over the table of cistern_resource.h that satisfies the resource concept of
// CCCL (cuda::mr), 3.0 and later. With it, RMM's containers and adaptors, and the libraries of RAPIDS, allocate from a
// resource of JavaScript, on any thread. It is header-only: it needs CCCL's headers, and nothing to link with.
//
//   cistern::device_memory_resource memory{table};  // of cistern_get_thread_safe_resource
//   rmm::device_uvector<float> numbers{1000, stream, memory};
//
// Every function may be called on any thread. An allocation that fails for lack of memory throws rmm::out_of_memory
// if RMM's headers are there, otherwise std::bad_alloc; any other failure throws resource_error. No exception passes
// through C.
#ifndef CISTERN_HPP_
#define CISTERN_HPP_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "cistern_resource.h"

#if defined(CCCL_MAJOR_VERSION) && CCCL_MAJOR_VERSION == 3 && CCCL_MINOR_VERSION == 0 && \
    !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#error "CCCL 3.0 has memory resources only if LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE is defined"
#endif

// Files of one program may be compiled with and without RMM's headers, so their classes must differ.
#if __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#define CISTERN_ERRORS_ rmm_errors
#else
#define CISTERN_ERRORS_ standard_errors
#endif

namespace cistern {
inline namespace CISTERN_ERRORS_ {

// RMM's class, which its adaptors catch, or one of this header's.
#if __has_include(<rmm/error.hpp>)
using out_of_memory = rmm::out_of_memory;
#else
class out_of_memory : public std::bad_alloc {
 public:
  explicit out_of_memory(const char* text) : text_(text) {}
  const char* what() const noexcept override { return text_.what(); }

 private:
  std::runtime_error text_;  // whose copies do not throw
};
#endif

// A call failed for another reason than a lack of memory.
class resource_error : public std::runtime_error {
 public:
  resource_error(std::int32_t code, const char* text) : std::runtime_error(text), code_(code) {}
  // One of enum cistern_result.
  std::int32_t code() const noexcept { return code_; }

 private:
  std::int32_t code_;
};

/*
 * A resource of JavaScript with these properties: cuda::mr::device_accessible, cuda::mr::host_accessible, or both.
 * Copies are the same resource, which lives as long as any of them. Equal are those that can free each other's memory.
 */
template <class... Properties>
class memory_resource {
  static_assert(sizeof...(Properties) > 0, "a resource is accessible from somewhere");

 public:
  // Takes over the use of the table that cistern_get_thread_safe_resource returned: do not release it. Throws
  // std::invalid_argument if the memory does not have the properties; then you still own the table.
  explicit memory_resource(const cistern_thread_safe_resource* table) : table_(table) {
    if (table == nullptr) throw std::invalid_argument("there is no table of a resource");
    if (!(has_property<Properties>(table->memory_kind) && ...)) {
      throw std::invalid_argument("memory of kind " + std::to_string(table->memory_kind) +
                                  " (enum cistern_memory_kind) is not accessible from everywhere that is asked for");
    }
  }
  memory_resource(const memory_resource& other) noexcept : table_(other.table_) { table_->retain(table_->state); }
  memory_resource& operator=(const memory_resource& other) noexcept {
    memory_resource copy(other);
    std::swap(table_, copy.table_);
    return *this;
  }
  ~memory_resource() { table_->release(table_->state); }

  // In the order of a stream. Zero bytes give a null pointer. `alignment`: a power of two up to a superblock.
  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    return allocate_on(handle(stream), bytes, alignment);
  }
  // Free only live memory, with its size: with a wrong pointer, size or stream, nothing is freed, and an
  // assertion fails.
  void deallocate(cuda::stream_ref stream, void* pointer, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    deallocate_on(handle(stream), pointer, bytes, alignment);
  }

  // All streams can use the memory immediately. Waits for the legacy default stream: see
  // `synchronize` of the table.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    void* const pointer = allocate_on(CISTERN_LEGACY_STREAM, bytes, alignment);
    const std::int32_t result = pointer == nullptr ? std::int32_t{CISTERN_OK} : table_->synchronize(table_->state, CISTERN_LEGACY_STREAM);
    if (result == CISTERN_OK) return pointer;
    const resource_error error(result, table_->last_error(table_->state));
    deallocate_sync(pointer, bytes, alignment);
    throw error;
  }
  // Work that other streams have queued with the memory must have run, or be ordered before the legacy
  // default stream.
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    deallocate_on(CISTERN_LEGACY_STREAM, pointer, bytes, alignment);
  }

  // The names of CCCL 3.0.
  void* allocate_async(std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) { return allocate(stream, bytes, alignment); }
  void deallocate_async(void* pointer, std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) noexcept {
    deallocate(stream, pointer, bytes, alignment);
  }
  void* allocate(std::size_t bytes, std::size_t alignment = default_alignment) { return allocate_sync(bytes, alignment); }
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    deallocate_sync(pointer, bytes, alignment);
  }

  // The table that this uses, for the device, the kind of memory, and statistics.
  const cistern_thread_safe_resource& table() const noexcept { return *table_; }

  friend bool operator==(const memory_resource& a, const memory_resource& b) noexcept { return cistern_is_equal(a.table_, b.table_); }
  friend bool operator!=(const memory_resource& a, const memory_resource& b) noexcept { return !(a == b); }

  template <class Property, std::enable_if_t<(std::is_same_v<Property, Properties> || ...), int> = 0>
  friend constexpr void get_property(const memory_resource&, Property) noexcept {}

 private:
  static constexpr std::size_t default_alignment = 256;

  template <class Property>
  static bool has_property(std::int32_t kind) noexcept {
    if constexpr (std::is_same_v<Property, cuda::mr::host_accessible>) return kind != CISTERN_DEVICE;
    static_assert(std::is_same_v<Property, cuda::mr::host_accessible> || std::is_same_v<Property, cuda::mr::device_accessible>);
    return kind != CISTERN_HOST;
  }
  static std::uint64_t handle(cuda::stream_ref stream) noexcept { return reinterpret_cast<std::uintptr_t>(stream.get()); }

  void* allocate_on(std::uint64_t stream, std::size_t bytes, std::size_t alignment) {
    std::uint64_t address = 0;
    const std::int32_t result = table_->allocate(table_->state, bytes, alignment, stream, &address);
    if (result == CISTERN_OK) return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
    if (result == CISTERN_HOST_OUT_OF_MEMORY) throw std::bad_alloc();
    const char* const text = table_->last_error(table_->state);
    if (result == CISTERN_OUT_OF_MEMORY) throw out_of_memory(text);
    throw resource_error(result, text);
  }

  void deallocate_on(std::uint64_t stream, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
    const std::uint64_t address = reinterpret_cast<std::uintptr_t>(pointer);
    const std::int32_t result = table_->deallocate(table_->state, address, bytes, alignment, stream);
    assert(result == CISTERN_OK && "the memory is still allocated: table().last_error() says why");
    static_cast<void>(result);
  }

  const cistern_thread_safe_resource* table_;
};

// Memory of any kind that a device can use: of 'device', 'managed' and 'pinned-host' resources.
using device_memory_resource = memory_resource<cuda::mr::device_accessible>;
// Memory that the host can use, too: of 'managed' and 'pinned-host' resources.
using host_device_memory_resource = memory_resource<cuda::mr::device_accessible, cuda::mr::host_accessible>;

}  // namespace CISTERN_ERRORS_
}  // namespace cistern

#undef CISTERN_ERRORS_

#endif  // CISTERN_HPP_
