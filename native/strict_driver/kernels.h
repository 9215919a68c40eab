// What the host does in place of kernels.
#ifndef CISTERN_STRICT_DRIVER_KERNELS_H_
#define CISTERN_STRICT_DRIVER_KERNELS_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "strict_driver/state.h"

namespace cistern::strict {

using Word = std::atomic<std::uint32_t>;

// Words whose address was passed to a kernel.
struct Words {
  AllocationRef allocation;
  Word* first = nullptr;
  std::size_t count = 0;
};

// The parameters of a launch, copied: the launch of a graph uses them again.
using Parameters = std::array<std::uint64_t, 7>;

// An address outside all allocations causes a sticky error, as on a GPU.
Words FindWords(Operation* operation, std::uint64_t address, std::uint64_t count, bool will_write);

// Those of examples/decoder.
void Normalize(const Parameters& parameters, Operation* operation);
void Attend(const Parameters& parameters, Operation* operation);
void Activate(const Parameters& parameters, Operation* operation);
void Multiply(const Parameters& parameters, Operation* operation);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_KERNELS_H_
