// cuGetProcAddress, the only function that a program finds in the library by name: it knows the
// others, and the CUDA version that introduced each form.
#include <algorithm>
#include <cstring>

#include "strict_driver/calls.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"

namespace cistern::strict {
namespace {

struct Entry {
  const char* symbol;
  int version;
  void* address;
};

template <typename Function>
void* AddressOf(Function* function) {
  return reinterpret_cast<void*>(function);
}

const Entry kEntries[] = {
#define CISTERN_ENTRY(member, symbol, version, parameters) \
  {symbol, version, AddressOf(static_cast<decltype(DriverTable::member)>(calls::member))},
    CISTERN_DRIVER_FUNCTIONS(CISTERN_ENTRY)
#undef CISTERN_ENTRY
        {"cuMemAdvise", 8000, AddressOf(calls::MemAdvise8000)},
    {"cuMemPrefetchAsync", 8000, AddressOf(calls::MemPrefetchAsync8000)},
    {"cuMemcpyBatchAsync", 12080, AddressOf(calls::MemcpyBatchAsync12080)},
    {"cuStreamWaitValue32", 11070, AddressOf(calls::StreamWaitValue32)},
    {"cuStreamWriteValue32", 11070, AddressOf(calls::StreamWriteValue32)},
    {"cuStreamGetCaptureInfo", 10010, AddressOf(calls::StreamGetCaptureInfo10010)},
    {"cuStreamGetCaptureInfo", 11030, AddressOf(calls::StreamGetCaptureInfo11030)},
    {"cuStreamUpdateCaptureDependencies", 12030, AddressOf(calls::StreamUpdateCaptureDependencies12030)},
    {"cuDeviceGraphMemTrim", 11040, AddressOf(calls::DeviceGraphMemTrim)},
    {"cuModuleLoadData", 2000, AddressOf(calls::ModuleLoadData)},
    {"cuModuleGetFunction", 2000, AddressOf(calls::ModuleGetFunction)},
    {"cuLaunchKernel", 4000, AddressOf(calls::LaunchKernel)},
};

// The form that a driver of the settings' version gives to a caller that knows `version`. If there
// is none, `symbol_status` says why.
const Entry* FindEntry(const char* symbol, int version, int* symbol_status) {
  const std::vector<std::string>& missing = settings().missing;
  *symbol_status = kSymbolNotFound;
  if (std::find(missing.begin(), missing.end(), symbol) != missing.end()) return nullptr;
  const Entry* newest = nullptr;
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.symbol, symbol) != 0 || entry.version > settings().version) continue;
    if (entry.version > version) {
      if (newest == nullptr) *symbol_status = kSymbolVersionNotSufficient;
    } else if (newest == nullptr || entry.version > newest->version) {
      newest = &entry;
      *symbol_status = kSymbolFound;
    }
  }
  return newest;
}

Status GetProcAddress(const char* symbol, void** function, int version, unsigned long long flags, int* symbol_status) {
  if (symbol == nullptr || function == nullptr) return kErrorInvalidValue;
  if (flags != 0 && flags != kLegacyStreamFlag && flags != kPerThreadStreamFlag) return kErrorInvalidValue;
  *function = nullptr;
  if (version > settings().version) {
    Report("NOTE", "cuGetProcAddress(%s) asks a driver of version %d for version %d", symbol, settings().version, version);
    return kErrorInvalidValue;
  }
  if (flags == kPerThreadStreamFlag) Report("NOTE", "the per-thread form of %s is requested, which is not modelled", symbol);
  const Entry* entry = FindEntry(symbol, version, symbol_status);
  if (entry == nullptr) {
    Report("NOTE", "cuGetProcAddress finds no %s of version %d", symbol, version);
    return kErrorNotFound;
  }
  *function = entry->address;
  return kSuccess;
}

}  // namespace
}  // namespace cistern::strict

using cistern::Status;
#define STRICT_DRIVER_EXPORT extern "C" __attribute__((visibility("default")))

STRICT_DRIVER_EXPORT Status cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags,
                                                int* symbol_status) {
  int found;
  const Status status =
      cistern::strict::GetProcAddress(symbol, function, version, flags, symbol_status != nullptr ? symbol_status : &found);
  // This form reports a missing symbol only through `symbol_status`.
  return status == cistern::kErrorNotFound ? cistern::kSuccess : status;
}

STRICT_DRIVER_EXPORT Status cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags) {
  int symbol_status;
  return cistern::strict::GetProcAddress(symbol, function, version, flags, &symbol_status);
}
