// Modules and kernels. There is no compiler here: the kernels of test/gpu/kernels.ptx and examples/decoder are
// recognized by name, and the host does their work.
#include <cstdint>
#include <cstring>
#include <utility>

#include "strict_driver/allocation.h"
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/kernels.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"
#include "strict_driver/virtual_memory.h"

namespace cistern::strict {

Words FindWords(Operation* operation, std::uint64_t address, std::uint64_t count, bool will_write) {
  Words words;
  words.allocation = FindAllocation(address);
  operation->uses.push_back(words.allocation);
  const bool is_virtual = words.allocation != nullptr && words.allocation->kind == Kind::kVirtual;
  const bool is_within = is_virtual ? !FindMappings(address, count * 4, will_write).empty()
                                    : words.allocation != nullptr && words.allocation->Contains(address, count * 4);
  const bool has_access = is_within && HasAccess(operation->device, *words.allocation);
  if (!has_access || address % 4 != 0) {
    Report("MISUSE", "%s: %llu words at %#llx are not in an allocation that the device has access to", thread.function,
           static_cast<unsigned long long>(count), static_cast<unsigned long long>(address));
    operation->fault = kErrorIllegalAddress;
    return words;
  }
  words.first = reinterpret_cast<Word*>(HostView(*words.allocation, address));
  words.count = count;
  return words;
}

namespace calls {
namespace {

void Hold(const Parameters& parameters, Operation* operation) {
  operation->condition = [word = FindWords(operation, parameters[0], 1, false), value = static_cast<std::uint32_t>(parameters[1])] {
    CheckLife(word.allocation, "a kernel that waits");
    return word.first == nullptr || word.allocation->is_freed || *word.first >= value;
  };
}

void Fill(const Parameters& parameters, Operation* operation) {
  operation->run = [words = FindWords(operation, parameters[0], parameters[1], true), value = static_cast<std::uint32_t>(parameters[2])] {
    CheckLife(words.allocation, "a kernel that writes");
    for (std::size_t index = 0; index < words.count; ++index) words.first[index] = value;
  };
}

void CountWrong(const Parameters& parameters, Operation* operation) {
  operation->run = [words = FindWords(operation, parameters[0], parameters[1], false), value = static_cast<std::uint32_t>(parameters[2]),
                    wrong = FindWords(operation, parameters[3], 1, true)] {
    CheckLife(words.allocation, "a kernel that reads");
    CheckLife(wrong.allocation, "a kernel that counts");
    for (std::size_t index = 0; index < words.count; ++index) {
      if (words.first[index] != value) *wrong.first += 1;
    }
  };
}

struct Kernel {
  const char* name;
  void (*make)(const Parameters& parameters, Operation* operation);
  std::vector<std::size_t> bytes;  // of each parameter
};

Kernel kernels[] = {
    {"hold", Hold, {8, 4}},
    {"fill", Fill, {8, 8, 4}},
    {"count_wrong", CountWrong, {8, 8, 4, 8}},
    {"normalize", Normalize, {8, 8, 4, 4}},
    {"attend", Attend, {8, 8, 4, 4, 4}},
    {"activate", Activate, {8, 4}},
    {"multiply", Multiply, {8, 8, 8, 4, 4, 4, 4}},
};

}  // namespace

Status ModuleLoadData(void** module, const void* image) {
  STRICT_DRIVER_ENTER_UNSAFE("cuModuleLoadData", kContext, CheckPotentiallyUnsafe);
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
  const Kernel& kernel = *static_cast<const Kernel*>(function);
  Parameters copied = {};
  for (std::size_t i = 0; i < kernel.bytes.size(); ++i) std::memcpy(&copied[i], parameters[i], kernel.bytes[i]);
  return SubmitOrCapture(state, kNodeKernel, [=, name = call.function, make = kernel.make](Operation* operation) -> Status {
    operation->name = name;
    operation->device = state->context->device;
    make(copied, operation);
    return kSuccess;
  });
}

}  // namespace calls
}  // namespace cistern::strict
