// What Linux and macOS have in common.
#if defined(__linux__) || defined(__APPLE__)

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "platform/library.h"
#include "platform/memory.h"
#include "platform/system.h"
#include "platform/thread.h"

namespace cistern {
namespace {

constexpr std::uint64_t kLargePage = std::uint64_t{2} << 20;

constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* Map(std::uint64_t bytes, int protection) {
  void* mapped = mmap(nullptr, bytes, protection, kPrivate, -1, 0);
  return mapped == MAP_FAILED ? nullptr : mapped;
}

// Core dumps leave the pages out.
void* MapAligned(std::uint64_t bytes, std::uint64_t alignment, int protection) {
  const std::uint64_t page = PageBytes();
  bytes = (bytes + page - 1) / page * page;
  const std::uint64_t spare = alignment > page ? alignment : 0;
  void* range = Map(bytes + spare, protection);
  if (range == nullptr) return nullptr;
  const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(range);
  const std::uint64_t address = (begin + alignment - 1) / alignment * alignment;
  if (address != begin) munmap(range, address - begin);
  const std::uint64_t rest = begin + spare - address;
  void* mapped = reinterpret_cast<void*>(address);
  if (rest != 0) munmap(static_cast<char*>(mapped) + bytes, rest);
#ifdef __linux__
  madvise(mapped, bytes, MADV_DONTDUMP);
#endif
  return mapped;
}

bool Replace(std::uint64_t address, std::uint64_t bytes, int protection) {
  return mmap(reinterpret_cast<void*>(address), bytes, protection, kPrivate | MAP_FIXED, -1, 0) != MAP_FAILED;
}

}  // namespace

std::uint64_t PageBytes() {
  static const std::uint64_t bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void* MapPages(std::uint64_t bytes) { return Map(bytes, PROT_READ | PROT_WRITE); }

void* MapSparsePages(std::uint64_t bytes, std::uint64_t alignment) { return MapAligned(bytes, alignment, PROT_READ | PROT_WRITE); }

void* MapPagesToPin(std::uint64_t bytes) {
  // More would be granted, and the process ended when it is touched.
  if (bytes > AvailableMemory()) return nullptr;
  void* mapped = MapAligned(bytes, bytes >= kLargePage ? kLargePage : PageBytes(), PROT_READ | PROT_WRITE);
#ifdef __linux__
  if (mapped == nullptr) return nullptr;
  // Advice, which a kernel may not know. A page that a forked child shares is replaced when it is written, here too,
  // and a device would go on using the old one.
  madvise(mapped, bytes, MADV_HUGEPAGE);
  madvise(mapped, bytes, MADV_DONTFORK);
#endif
  return mapped;
}

void PreferNode(std::uint64_t address, std::uint64_t bytes, int node) {
#ifdef __linux__
  // By number, since libnuma, which declares these, may not be there.
  constexpr int kDefaultPolicy = 0;
  constexpr int kPreferred = 1;  // MPOL_PREFERRED: another node, if that one is full
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  constexpr int kMostNodes = 1024;
  int policy = kDefaultPolicy;
  if (node >= kMostNodes || syscall(SYS_get_mempolicy, &policy, nullptr, 0UL, nullptr, 0UL) != 0 || policy != kDefaultPolicy) return;
  unsigned long nodes[kMostNodes / kWordBits] = {};
  nodes[node / kWordBits] = 1UL << (node % kWordBits);
  // The kernel takes one bit less than it is told.
  syscall(SYS_mbind, address, bytes, kPreferred, nodes, static_cast<unsigned long>(kMostNodes) + 1, 0U);
#else
  (void)address, (void)bytes, (void)node;
#endif
}

bool PopulatePages(std::uint64_t address, std::uint64_t bytes) {
#ifdef __linux__
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE of Linux 5.14, which headers may lack
  while (madvise(reinterpret_cast<void*>(address), bytes, kPopulateWrite) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return false;
    TouchPages(address, bytes);
    return true;
  }
#else
  TouchPages(address, bytes);
#endif
  return true;
}

void DiscardPages(std::uint64_t address, std::uint64_t bytes) {
#ifdef __linux__
  madvise(reinterpret_cast<void*>(address), bytes, MADV_DONTNEED);
#else
  // There the same advice keeps the contents.
  Replace(address, bytes, PROT_READ | PROT_WRITE);
#endif
}

void* ReservePages(std::uint64_t bytes, std::uint64_t alignment) { return MapAligned(bytes, alignment, PROT_NONE); }

void* ReservePagesAt(std::uint64_t address, std::uint64_t bytes) {
#ifdef __linux__
  constexpr int kOnlyThere = 0x100000;  // MAP_FIXED_NOREPLACE of Linux 4.17; older ones take the address as a hint
  void* wanted = reinterpret_cast<void*>(address);
  void* mapped = mmap(wanted, bytes, PROT_NONE, kPrivate | kOnlyThere, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (mapped != wanted) {
    munmap(mapped, bytes);
    return nullptr;
  }
  madvise(mapped, bytes, MADV_DONTDUMP);
  return mapped;
#else
  (void)address;
  (void)bytes;
  return nullptr;
#endif
}

bool AllowAccess(std::uint64_t address, std::uint64_t bytes) {
  return mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) == 0;
}

bool AllowReading(std::uint64_t address, std::uint64_t bytes) { return mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ) == 0; }

bool DenyAccess(std::uint64_t address, std::uint64_t bytes) { return mprotect(reinterpret_cast<void*>(address), bytes, PROT_NONE) == 0; }

bool ResetPages(std::uint64_t address, std::uint64_t bytes) { return Replace(address, bytes, PROT_NONE); }

void UnmapPages(void* address, std::uint64_t bytes) { munmap(address, bytes); }

void* AllocateAligned(std::uint64_t bytes, std::uint64_t alignment) {
  void* pointer = nullptr;
  return posix_memalign(&pointer, alignment, bytes) == 0 ? pointer : nullptr;
}

void FreeAligned(void* pointer) { std::free(pointer); }

bool StartThread(void* (*function)(void*), void* argument, [[maybe_unused]] const char* name) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool is_started = pthread_create(&thread, nullptr, function, argument) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!is_started) return false;
    // macOS lets a thread name only itself.
#ifdef __linux__
  pthread_setname_np(thread, name);
#endif
  pthread_detach(thread);
  return true;
}

const char* const kDriverLibraryName = "libcuda.so.1";

void* OpenDriverLibrary(std::string* failure) {
  void* library = dlopen(kDriverLibraryName, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* error = dlerror();
  const char* path = std::getenv("LD_LIBRARY_PATH");
  *failure = "on the dynamic linker's path (LD_LIBRARY_PATH ";
  *failure += path != nullptr && *path != '\0' ? "is '" + std::string(path) + "'" : "is not set";
  *failure += "): ";
  *failure += error != nullptr ? error : "unknown error";
  return nullptr;
}

void* OpenLibrary(const std::string& name, std::string* failure) {
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* error = library != nullptr ? nullptr : dlerror();
  if (library == nullptr) *failure = error != nullptr ? error : "unknown error";
  return library;
}

void* FindDriverSymbol(void* library, const char* name) { return dlsym(library, name); }

void* FindProgramSymbol(const char* name) { return dlsym(RTLD_DEFAULT, name); }

void KeepLibraryLoaded() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&KeepLibraryLoaded), &info) == 0 || info.dli_fname == nullptr) return;
  dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

}  // namespace cistern

#endif
