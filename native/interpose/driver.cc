// Every way to the driver leads through here: functions that a library links with are this library's own exports,
// found first because it is preloaded; dlsym is replaced; and cuGetProcAddress, which both lead to, answers with
// stand-ins. Whatever is not stood in for is the driver's own function, and costs what it did before.
#include "interpose/driver.h"

#include <dlfcn.h>

#include <cstring>
#include <initializer_list>

#include "interpose/ledger.h"
#include "interpose/libraries.h"
#include "interpose/real_dlsym.h"
#include "interpose/thread_scope.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace cistern::interpose {
namespace {

using GetProcAddressV1 = Status (*)(const char* symbol, void** function, int version, unsigned long long flags);
using GetProcAddressV2 = Status (*)(const char* symbol, void** function, int version, unsigned long long flags, int* symbol_status);

constexpr unsigned long long kPerThreadFlag = 2;

// What Node looks for in an addon that it has just loaded.
constexpr char kAddonEntry[] = "napi_register_module_v1";

// The driver as a program has last opened it, under whatever name.
std::atomic<void*> opened;

// The driver, if it is loaded, under its usual name.
void* Loaded() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  // Its functions are kept: it must not be unloaded, whoever closes it.
  if (library != nullptr) dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  return library;
}

bool IsOwn(void* address) {
  for (int i = 0; i < kHookCount; i++) {
    if (kHooks[i]->stand_in == address) return true;
  }
  return false;
}

void* Exported(const char* name) {
  const WithoutError without_error;
  if (void* library = Loaded()) {
    void* address = RealDlsym()(library, name);
    if (address != nullptr && !IsOwn(address)) return address;
  }
  if (void* library = opened.load()) {
    void* address = RealDlsym()(library, name);
    if (address != nullptr && !IsOwn(address)) return address;
  }
  void* address = RealDlsym()(RTLD_NEXT, name);
  return IsOwn(address) ? nullptr : address;
}

// What the driver answers to a caller of cuGetProcAddress that knows this version; null if nothing.
void* Ask(const char* symbol, int version, unsigned long long flags) {
  static const auto v2 = reinterpret_cast<GetProcAddressV2>(Exported("cuGetProcAddress_v2"));
  static const auto v1 = v2 != nullptr ? nullptr : reinterpret_cast<GetProcAddressV1>(Exported("cuGetProcAddress"));
  void* address = nullptr;
  int symbol_status = 0;
  if (v2 != nullptr) return v2(symbol, &address, version, flags, &symbol_status) == kSuccess ? address : nullptr;
  if (v1 != nullptr) return v1(symbol, &address, version, flags) == kSuccess ? address : nullptr;
  return nullptr;
}

std::atomic<bool> has_driver;

// The driver of the handle stays loaded, whatever its name.
void Keep(void* address) {
  static std::atomic<bool> is_kept;
  has_driver.store(true, std::memory_order_relaxed);
  Dl_info info;
  if (is_kept.exchange(true) || dladdr(address, &info) == 0) return;
  const WithoutError without_error;
  dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

}  // namespace

void* RealOf(Hook& hook) {
  void* real = hook.real.load(std::memory_order_acquire);
  if (real != nullptr) return real;
  real = FindInDriver(hook.symbol, hook.exported, hook.version);
  if (real != nullptr) {
    hook.real.store(real, std::memory_order_release);
    has_driver.store(true, std::memory_order_relaxed);
  }
  return real;
}

bool HasDriver() { return has_driver.load(std::memory_order_relaxed); }

void* FindInDriver(const char* symbol, const char* exported, int version) {
  void* real = Exported(exported);
  return real != nullptr ? real : Ask(symbol, version, 1);
}

void* Substitute(const char* exported, void* real) {
  for (int i = 0; i < kHookCount; i++) {
    Hook& hook = *kHooks[i];
    if (std::strcmp(hook.exported, exported) != 0) continue;
    if (real == hook.stand_in) {
      // The program asked for any function of the name, and this library's comes first.
      return RealOf(hook) == nullptr ? nullptr : real;
    }
    Keep(real);
    hook.real.store(real, std::memory_order_release);
    return hook.stand_in;
  }
  return real;
}

namespace {

// The stand-in for what cuGetProcAddress answered, if this library knows the form of the function.
void* SubstituteAnswer(const char* symbol, void* real, int version, unsigned long long flags) {
  if (real == nullptr || IsOwn(real)) return real;
  Hook* best = nullptr;
  for (int i = 0; i < kHookCount; i++) {
    Hook& hook = *kHooks[i];
    if (std::strcmp(hook.symbol, symbol) != 0 || hook.version > version) continue;
    const bool is_per_thread = flags == kPerThreadFlag;
    const bool is_better =
        best == nullptr || hook.version > best->version || (hook.version == best->version && hook.is_per_thread == is_per_thread);
    if ((!hook.is_per_thread || is_per_thread) && is_better) best = &hook;
  }
  // A newer driver may have a newer form, with other parameters: the program gets that as it is.
  if (best == nullptr || (best->version != version && Ask(symbol, best->version, flags) != real)) return real;
  Keep(real);
  best->real.store(real, std::memory_order_release);
  return best->stand_in;
}

}  // namespace

Dlsym RealDlsym() {
  static const Dlsym real = [] {
    const WithoutError without_error;
    for (const char* version : {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34", "GLIBC_2.27", "GLIBC_2.36"}) {
      if (void* address = dlvsym(RTLD_NEXT, "dlsym", version)) return reinterpret_cast<Dlsym>(address);
    }
    return Dlsym{nullptr};
  }();
  return real;
}

}  // namespace cistern::interpose

using namespace cistern::interpose;
using cistern::Status;

// The original looks at its caller for RTLD_NEXT and RTLD_DEFAULT. So it must be jumped to, not called: compilers
// do so for a call at the end of a function, from -O2 on (CMakeLists.txt). test/tools/outside/ checks it.
EXPORT void* dlsym(void* handle, const char* name) noexcept {
  const Dlsym real = RealDlsym();
  if (name[0] == 'n' && handle != RTLD_NEXT && handle != RTLD_DEFAULT && std::strcmp(name, kAddonEntry) == 0 && IsActive()) {
    void* entry = real(handle, name);
    if (entry != nullptr) WatchAddon(entry);
    return entry;
  }
  if (name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z' || !IsActive()) return real(handle, name);
  void* address = real(handle, name);
  if (address == nullptr) return nullptr;
  // Some drivers consist of several libraries, and find their own functions in this way: each would call the other.
  if (LibraryOf(static_cast<const char*>(__builtin_return_address(0)) - 1).is_driver) return address;
  if (handle != RTLD_DEFAULT && handle != RTLD_NEXT) opened.store(handle);
  void* substitute = Substitute(name, address);
  // There is no driver. The original says so in dlerror.
  return substitute != nullptr ? substitute : real(RTLD_NEXT, name);
}

EXPORT int dlclose(void* handle) noexcept {
  static const auto real = reinterpret_cast<int (*)(void*)>(RealDlsym()(RTLD_NEXT, "dlclose"));
  if (opened.load() == handle) opened.store(nullptr);
  const int result = real(handle);
  ForgetAddresses();
  return result;
}

EXPORT Status cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags, int* symbol_status);
EXPORT Status cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags);

namespace cistern::interpose {
Hook get_proc_address_v2 = {"cuGetProcAddress", "cuGetProcAddress_v2", 12000, false, reinterpret_cast<void*>(cuGetProcAddress_v2),
                            {nullptr}};
Hook get_proc_address = {"cuGetProcAddress", "cuGetProcAddress", 11030, false, reinterpret_cast<void*>(cuGetProcAddress), {nullptr}};
}  // namespace cistern::interpose

EXPORT Status cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags, int* symbol_status) {
  const auto real = reinterpret_cast<GetProcAddressV2>(RealOf(get_proc_address_v2));
  if (real == nullptr) return cistern::kErrorNotInitialized;
  const Status status = real(symbol, function, version, flags, symbol_status);
  if (status == cistern::kSuccess && symbol != nullptr && IsActive()) *function = SubstituteAnswer(symbol, *function, version, flags);
  return status;
}

EXPORT Status cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags) {
  const auto real = reinterpret_cast<GetProcAddressV1>(RealOf(get_proc_address));
  if (real == nullptr) return cistern::kErrorNotInitialized;
  const Status status = real(symbol, function, version, flags);
  if (status == cistern::kSuccess && symbol != nullptr && IsActive()) *function = SubstituteAnswer(symbol, *function, version, flags);
  return status;
}
