#include "interpose/libraries.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <initializer_list>

#include "interpose/control.h"
#include "interpose/real_dlsym.h"

namespace cistern::interpose {
namespace {

constexpr int kMostAccounts = 1024;
constexpr std::size_t kNameBytes = 128;

struct Account {
  char name[kNameBytes];
  std::uint32_t limits;
};
Account accounts[kMostAccounts];
std::atomic<int> account_count{1};
pthread_mutex_t accounts_lock = PTHREAD_MUTEX_INITIALIZER;

// The addresses that a thread has asked for lately.
struct Known {
  const void* address;
  std::uint32_t generation;
  Library library;
};
constexpr std::size_t kKnown = 128;
thread_local Known known[kKnown];
std::atomic<std::uint32_t> generation{1};

// What NVIDIA's own libraries are called, with the prefix `lib`: those that allocate for others.
const char* const kNvidias[] = {"cuda",     "cudart",  "cublas",   "cudnn",     "cufft",   "curand",   "cusolver",    "cusparse",
                                "cutensor", "cufile",  "nccl",     "nvrtc",     "nvJit",   "nvToolsE", "nvinfer",     "nvonnx",
                                "nvjpeg",   "nvidia-", "nvperf",   "npp",       "cupti",   "nvshmem",  "cuinj",       "accinj",
                                "nvvm",     "nvparse", "nvimgcod", "cudadevrt", "nvgraph", "cudss",    "cistern-run."};

// The driver's own: libcuda.so.1, libcuda_loader.so, libcudadebugger.so.1, libnvidia-ptxjitcompiler.so.1 …
const char* const kDrivers[] = {"libcuda.", "libcuda_", "libcudadebugger", "libnvcuda", "libnvidia-", "libdxcore"};

bool StartsWith(const char* text, const char* prefix) { return std::strncmp(text, prefix, std::strlen(prefix)) == 0; }

bool IsDriver(const char* file) {
  for (const char* name : kDrivers) {
    if (StartsWith(file, name)) return true;
  }
  return false;
}

bool IsNvidias(const char* file) {
  if (!StartsWith(file, "lib")) return false;
  for (const char* name : kNvidias) {
    // libcuda.so.1, libcublasLt.so.13, but not libcudawhatever.so.
    const std::size_t length = std::strlen(name);
    if (std::strncmp(file + 3, name, length) != 0) continue;
    if (std::strcmp(name, "cuda") != 0 || file[3 + length] == '.') return true;
  }
  return false;
}

// `node_modules/@scope/name/…` is `@scope/name`; `site-packages/torch/…` is `torch`; any other file its own name
// without the numbers behind `.so`.
void NameOf(const char* path, char* name) {
  const char* package = nullptr;
  int parts = 1;
  for (const char* folder : {"/node_modules/", "/site-packages/", "/dist-packages/"}) {
    for (const char* at = path; (at = std::strstr(at, folder)) != nullptr;) package = at += std::strlen(folder);
  }
  const char* begin = package;
  std::size_t length = 0;
  if (package != nullptr && std::strchr(package, '/') != nullptr) {
    if (*package == '@') parts = 2;
    while (package[length] != 0 && (package[length] != '/' || --parts > 0)) length++;
  } else {
    const char* slash = std::strrchr(path, '/');
    begin = slash == nullptr ? path : slash + 1;
    const char* so = std::strstr(begin, ".so");
    length = so != nullptr && so != begin && (so[3] == '.' || so[3] == 0) ? static_cast<std::size_t>(so + 3 - begin) : std::strlen(begin);
  }
  if (length == 12 && std::strncmp(begin, "cistern.node", length) == 0) length = 7;
  if (length >= kNameBytes) length = kNameBytes - 1;
  std::memcpy(name, begin, length);
  name[length] = 0;
}

std::uint16_t AccountOf(const char* name) {
  const auto find = [&] {
    const int count = account_count.load(std::memory_order_acquire);
    for (int i = 1; i < count; i++) {
      if (std::strcmp(accounts[i].name, name) == 0) return i;
    }
    return count < kMostAccounts ? -1 : 0;
  };
  int account = find();
  if (account >= 0) return static_cast<std::uint16_t>(account);
  pthread_mutex_lock(&accounts_lock);
  account = find();
  if (account < 0) {
    account = account_count.load();
    std::strcpy(accounts[account].name, name);
    accounts[account].limits = LimitsOf(name);
    account_count.store(account + 1, std::memory_order_release);
  }
  pthread_mutex_unlock(&accounts_lock);
  return static_cast<std::uint16_t>(account);
}

// The file of an address. dladdr would also look for the symbol, through all of them: in Node that takes milliseconds.
struct Search {
  std::uintptr_t address;
  std::uintptr_t base;
  char path[4096];
  bool is_found;
  bool is_program;
};

int Look(struct dl_phdr_info* library, std::size_t, void* data) {
  Search& search = *static_cast<Search*>(data);
  for (int i = 0; i < library->dlpi_phnum; i++) {
    const auto& part = library->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || search.address - (library->dlpi_addr + part.p_vaddr) >= part.p_memsz) continue;
    search.is_found = true;
    search.base = library->dlpi_addr;
    // The loader names no file for the program itself.
    search.is_program = library->dlpi_name == nullptr || *library->dlpi_name == 0;
    if (!search.is_program) snprintf(search.path, sizeof(search.path), "%s", library->dlpi_name);
    return 1;
  }
  return 0;
}

Library Find(const void* address) {
  Search search = {};
  search.address = reinterpret_cast<std::uintptr_t>(address);
  dl_iterate_phdr(Look, &search);
  if (!search.is_found) return {AccountOf("generated code"), false, false, false};
  if (search.is_program) {
    const int before = errno;
    const ssize_t length = readlink("/proc/self/exe", search.path, sizeof(search.path) - 1);
    errno = before;
    if (length > 0)
      search.path[length] = 0;
    else
      std::strcpy(search.path, "program");
  }
  char name[kNameBytes];
  NameOf(search.path, name);
  const char* slash = std::strrchr(search.path, '/');
  const char* base = slash == nullptr ? search.path : slash + 1;
  static const std::uintptr_t base_of_v8 = [] {
    const WithoutError without_error;
    Search of_v8 = {};
    of_v8.address = reinterpret_cast<std::uintptr_t>(RealDlsym()(RTLD_DEFAULT, "_ZN2v87Isolate13TryGetCurrentEv"));
    dl_iterate_phdr(Look, &of_v8);
    return of_v8.is_found ? of_v8.base : ~std::uintptr_t{0};
  }();
  const bool is_driver = !search.is_program && IsDriver(base);
  return {AccountOf(name), is_driver || (!search.is_program && IsNvidias(base)), is_driver, search.base == base_of_v8};
}

}  // namespace

Library LibraryOf(const void* address) {
  Known& entry = known[(reinterpret_cast<std::uintptr_t>(address) * 0x9e3779b97f4a7c15u >> 32) % kKnown];
  const std::uint32_t now = generation.load(std::memory_order_acquire);
  if (entry.address == address && entry.generation == now) return entry.library;
  const Library library = Find(address);
  entry = {address, now, library};
  return library;
}

std::uint16_t AccountNamed(const char* name) {
  char text[kNameBytes];
  std::size_t length = std::strlen(name);
  if (length >= kNameBytes) {
    length = kNameBytes - 1;
    while ((name[length] & 0xc0) == 0x80) length--;  // not within a character
  }
  std::memcpy(text, name, length);
  text[length] = 0;
  return AccountOf(text);
}

const char* AccountName(std::uint16_t account) { return accounts[account].name; }

std::uint32_t AccountLimits(std::uint16_t account) { return accounts[account].limits; }

std::uint32_t AddressGeneration() { return generation.load(std::memory_order_acquire); }

void ForgetAddresses() { generation.fetch_add(1, std::memory_order_release); }

}  // namespace cistern::interpose
