// A zeroed array that costs memory only where it is written: small ones come from calloc, large
// ones from the kernel.
#ifndef CISTERN_SOFTWARE_ZEROED_ARRAY_H_
#define CISTERN_SOFTWARE_ZEROED_ARRAY_H_

#include <cstddef>
#include <cstdlib>
#include <utility>

#include "platform/memory.h"

namespace cistern::software {

// T must be valid if all its bytes are zero, and need no destruction.
template <typename T>
class ZeroedArray {
 public:
  ZeroedArray() = default;
  ZeroedArray(const ZeroedArray&) = delete;
  ZeroedArray& operator=(const ZeroedArray&) = delete;
  ~ZeroedArray() { Reset(); }

  // False, with the array left empty, if the memory is unavailable.
  bool Allocate(std::size_t count) {
    Reset();
    std::size_t bytes = count * sizeof(T);
    if (bytes < kMapFrom) {
      data_ = static_cast<T*>(std::calloc(count, sizeof(T)));
    } else {
      data_ = static_cast<T*>(MapSparsePages(bytes, alignof(T)));
      if (data_ != nullptr) mapped_bytes_ = bytes;
    }
    size_ = data_ == nullptr ? 0 : count;
    return data_ != nullptr;
  }

  void Reset() {
    if (mapped_bytes_ != 0) {
      UnmapPages(data_, mapped_bytes_);
    } else {
      std::free(data_);
    }
    data_ = nullptr;
    size_ = 0;
    mapped_bytes_ = 0;
  }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t index) const { return data_[index]; }

 private:
  static constexpr std::size_t kMapFrom = std::size_t{1} << 17;

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_ZEROED_ARRAY_H_
