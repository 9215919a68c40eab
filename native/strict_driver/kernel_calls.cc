// Modules and kernels. There is no compiler here: the kernels of test/gpu/kernels.ptx are
// recognized by name, and the host does their work.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#include "strict_driver/allocation.h"
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"
#include "strict_driver/virtual_memory.h"

namespace cistern::strict::calls {
namespace {

using Word = std::atomic<std::uint32_t>;

// Words whose address was passed to a kernel.
struct Words {
  AllocationRef allocation;
  Word* first = nullptr;
  std::size_t count = 0;
};

// The nth parameter of a launch.
template <typename Value>
Value Parameter(void** parameters, int index) {
  Value value;
  std::memcpy(&value, parameters[index], sizeof value);
  return value;
}

// An address outside all allocations causes a sticky error, as on a GPU.
Words FindWords(std::uint64_t address, std::uint64_t count) {
  Words words;
  words.allocation = FindAllocation(address);
  const bool is_virtual = words.allocation != nullptr && words.allocation->kind == Kind::kVirtual;
  const bool is_within = is_virtual ? !FindMappings(address, count * 4).empty()
                                    : words.allocation != nullptr && words.allocation->Contains(address, count * 4);
  const bool has_access = is_within && HasAccess(thread.current->device, *words.allocation);
  if (!has_access || address % 4 != 0) {
    Report("MISUSE", "%s: %llu words at %#llx are not in an allocation that the device has access to", thread.function,
           static_cast<unsigned long long>(count), static_cast<unsigned long long>(address));
    thread.pending_fault = kErrorIllegalAddress;
    return words;
  }
  words.first = reinterpret_cast<Word*>(HostView(*words.allocation, address));
  words.count = count;
  return words;
}

Operation Hold(void** parameters) {
  Operation operation;
  operation.condition = [word = FindWords(Parameter<std::uint64_t>(parameters, 0), 1), value = Parameter<std::uint32_t>(parameters, 1)] {
    CheckLife(word.allocation, "a kernel that waits");
    return word.first == nullptr || word.allocation->is_freed || *word.first >= value;
  };
  return operation;
}

Operation Fill(void** parameters) {
  Operation operation;
  operation.run = [words = FindWords(Parameter<std::uint64_t>(parameters, 0), Parameter<std::uint64_t>(parameters, 1)),
                   value = Parameter<std::uint32_t>(parameters, 2)] {
    CheckLife(words.allocation, "a kernel that writes");
    for (std::size_t index = 0; index < words.count; ++index) words.first[index] = value;
  };
  return operation;
}

Operation CountWrong(void** parameters) {
  Operation operation;
  operation.run = [words = FindWords(Parameter<std::uint64_t>(parameters, 0), Parameter<std::uint64_t>(parameters, 1)),
                   value = Parameter<std::uint32_t>(parameters, 2), wrong = FindWords(Parameter<std::uint64_t>(parameters, 3), 1)] {
    CheckLife(words.allocation, "a kernel that reads");
    CheckLife(wrong.allocation, "a kernel that counts");
    for (std::size_t index = 0; index < words.count; ++index) {
      if (words.first[index] != value) *wrong.first += 1;
    }
  };
  return operation;
}

struct Kernel {
  const char* name;
  Operation (*make)(void** parameters);
};

Kernel kernels[] = {{"hold", Hold}, {"fill", Fill}, {"count_wrong", CountWrong}};

}  // namespace

Status ModuleLoadData(void** module, const void* image) {
  STRICT_DRIVER_ENTER("cuModuleLoadData", kContext);
  if (module == nullptr || image == nullptr) return kErrorInvalidValue;
  if (!settings().has_kernels) return kErrorNotSupported;
  *module = kernels;
  return kSuccess;
}

Status ModuleGetFunction(void** function, void* module, const char* name) {
  STRICT_DRIVER_ENTER("cuModuleGetFunction", kContext);
  if (function == nullptr || name == nullptr || module != kernels) return kErrorInvalidValue;
  for (Kernel& kernel : kernels) {
    if (std::strcmp(kernel.name, name) != 0) continue;
    *function = &kernel;
    return kSuccess;
  }
  return kErrorNotFound;
}

Status LaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                    unsigned, Stream stream, void** parameters, void**) {
  STRICT_DRIVER_ENTER("cuLaunchKernel", kContext);
  StreamRef state;
  const Status status = FindStream(stream, &state, true);
  if (status != kSuccess) return status;
  if (function == nullptr || grid_x * grid_y * grid_z == 0 || block_x * block_y * block_z == 0) return kErrorInvalidValue;
  Operation operation = static_cast<const Kernel*>(function)->make(parameters);
  operation.name = call.function;
  return Submit(state, std::move(operation));
}

}  // namespace cistern::strict::calls
