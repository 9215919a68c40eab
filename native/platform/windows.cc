#ifdef _WIN32

#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
// delayimp.h uses its types.
#include <delayimp.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <thread>

#include "platform/library.h"
#include "platform/memory.h"
#include "platform/system.h"
#include "platform/thread.h"

namespace cistern {
namespace {

// Committed at once around a touched address. It counts against the system's limit of what is
// committed, and takes memory only where it is touched.
constexpr std::uint64_t kCommitBytes = std::uint64_t{1} << 20;

struct SparseMappings {
  SRWLOCK lock = SRWLOCK_INIT;
  std::map<std::uint64_t, std::uint64_t> ends;  // by address
};

// Never destroyed: threads may still run while the process ends.
SparseMappings& AllSparseMappings() {
  static SparseMappings& all = *new SparseMappings;
  return all;
}

// Runs on the thread that touched an address that it may not, before any other handler. It allocates
// nothing, since the thread may be inside the allocator.
LONG CALLBACK CommitTouched(EXCEPTION_POINTERS* exception) {
  const EXCEPTION_RECORD& record = *exception->ExceptionRecord;
  constexpr ULONG_PTR kExecuted = 8;
  if (record.ExceptionCode != EXCEPTION_ACCESS_VIOLATION || record.NumberParameters < 2) return EXCEPTION_CONTINUE_SEARCH;
  if (record.ExceptionInformation[0] == kExecuted) return EXCEPTION_CONTINUE_SEARCH;
  const std::uint64_t address = record.ExceptionInformation[1];
  SparseMappings& all = AllSparseMappings();
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  AcquireSRWLockShared(&all.lock);
  const auto next = all.ends.upper_bound(address);
  if (next != all.ends.begin() && address < std::prev(next)->second) {
    begin = std::max(address / kCommitBytes * kCommitBytes, std::prev(next)->first);
    end = std::min((address / kCommitBytes + 1) * kCommitBytes, std::prev(next)->second);
  }
  ReleaseSRWLockShared(&all.lock);
  if (end == 0) return EXCEPTION_CONTINUE_SEARCH;
  // Another thread may have done so already, or may be: pages that are committed stay as they are.
  void* committed = VirtualAlloc(reinterpret_cast<void*>(begin), end - begin, MEM_COMMIT, PAGE_READWRITE);
  return committed != nullptr ? EXCEPTION_CONTINUE_EXECUTION : EXCEPTION_CONTINUE_SEARCH;
}

// The functions of Node-API are in node.exe, or in a program of another name that contains Node.
FARPROC WINAPI FindNode(unsigned notification, PDelayLoadInfo info) {
  const bool is_node = notification == dliNotePreLoadLibrary && std::strcmp(info->szDll, "node.exe") == 0;
  return is_node ? reinterpret_cast<FARPROC>(GetModuleHandleA(nullptr)) : nullptr;
}

bool SetAccess(std::uint64_t address, std::uint64_t bytes, DWORD access) {
  DWORD before;
  return VirtualProtect(reinterpret_cast<void*>(address), bytes, access, &before) != 0;
}

// A reservation cannot be trimmed. Another thread may take the addresses between the two calls.
void* Reserve(std::uint64_t bytes, std::uint64_t alignment, DWORD access) {
  constexpr int kTries = 100;
  for (int tries = 0; tries < kTries; ++tries) {
    void* range = VirtualAlloc(nullptr, bytes + alignment, MEM_RESERVE, access);
    if (range == nullptr) return nullptr;
    const std::uint64_t address = (reinterpret_cast<std::uintptr_t>(range) + alignment - 1) / alignment * alignment;
    VirtualFree(range, 0, MEM_RELEASE);
    range = VirtualAlloc(reinterpret_cast<void*>(address), bytes, MEM_RESERVE, access);
    if (range != nullptr) return range;
  }
  return nullptr;
}

}  // namespace

extern "C" {
PfnDliHook __pfnDliNotifyHook2 = FindNode;
}

std::uint64_t PageBytes() {
  static const std::uint64_t bytes = [] {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return static_cast<std::uint64_t>(info.dwPageSize);
  }();
  return bytes;
}

void* MapPages(std::uint64_t bytes) { return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE); }

// What is committed has been promised memory.
void* MapPagesToPin(std::uint64_t bytes) { return MapPages(bytes); }

void PreferNode(std::uint64_t, std::uint64_t, int) {}

bool PopulatePages(std::uint64_t address, std::uint64_t bytes) {
  TouchPages(address, bytes);
  return true;
}

void* MapSparsePages(std::uint64_t bytes, std::uint64_t alignment) {
  static const bool has_handler = AddVectoredExceptionHandler(1, CommitTouched) != nullptr;
  if (!has_handler) return nullptr;
  void* mapped = Reserve(bytes, alignment, PAGE_READWRITE);
  if (mapped == nullptr) return nullptr;
  const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(mapped);
  SparseMappings& all = AllSparseMappings();
  AcquireSRWLockExclusive(&all.lock);
  all.ends[begin] = begin + (bytes + PageBytes() - 1) / PageBytes() * PageBytes();
  ReleaseSRWLockExclusive(&all.lock);
  return mapped;
}

void DiscardPages(std::uint64_t address, std::uint64_t bytes) { VirtualFree(reinterpret_cast<void*>(address), bytes, MEM_DECOMMIT); }

void* ReservePages(std::uint64_t bytes, std::uint64_t alignment) { return Reserve(bytes, alignment, PAGE_NOACCESS); }

void* ReservePagesAt(std::uint64_t, std::uint64_t) { return nullptr; }

bool AllowAccess(std::uint64_t address, std::uint64_t bytes) {
  const bool is_committed = VirtualAlloc(reinterpret_cast<void*>(address), bytes, MEM_COMMIT, PAGE_READWRITE) != nullptr;
  return is_committed && SetAccess(address, bytes, PAGE_READWRITE);
}

bool AllowReading(std::uint64_t address, std::uint64_t bytes) { return SetAccess(address, bytes, PAGE_READONLY); }

bool DenyAccess(std::uint64_t address, std::uint64_t bytes) { return SetAccess(address, bytes, PAGE_NOACCESS); }

bool ResetPages(std::uint64_t address, std::uint64_t bytes) {
  return VirtualFree(reinterpret_cast<void*>(address), bytes, MEM_DECOMMIT) != 0;
}

void UnmapPages(void* address, std::uint64_t) {
  SparseMappings& all = AllSparseMappings();
  AcquireSRWLockExclusive(&all.lock);
  all.ends.erase(reinterpret_cast<std::uintptr_t>(address));
  ReleaseSRWLockExclusive(&all.lock);
  VirtualFree(address, 0, MEM_RELEASE);
}

void* AllocateAligned(std::uint64_t bytes, std::uint64_t alignment) { return _aligned_malloc(bytes, alignment); }

void FreeAligned(void* pointer) { _aligned_free(pointer); }

std::uint64_t CurrentThreadId() { return GetCurrentThreadId(); }

bool StartThread(void* (*function)(void*), void* argument, const char*) {
  try {
    std::thread(function, argument).detach();
    return true;
  } catch (...) {
    return false;
  }
}

std::uint64_t MachineMemory() {
  static const std::uint64_t bytes = [] {
    MEMORYSTATUSEX status;
    status.dwLength = sizeof status;
    return GlobalMemoryStatusEx(&status) != 0 ? std::uint64_t{status.ullTotalPhys} : 0;
  }();
  return bytes;
}

const char* const kDriverLibraryName = "nvcuda.dll";

void* OpenDriverLibrary(std::string* failure) {
  // Only the system's folder: the driver's installer puts the library there, and a file of that
  // name in the working directory must not be run.
  void* library = LoadLibraryExA(kDriverLibraryName, nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (library == nullptr) *failure = "in the system folder: error " + std::to_string(GetLastError());
  return library;
}

void* OpenLibrary(const std::string& name, std::string* failure) {
  const bool is_path = name.find('\\') != std::string::npos;
  void* library = LoadLibraryExA(name.c_str(), nullptr, is_path ? LOAD_WITH_ALTERED_SEARCH_PATH : LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (library == nullptr) *failure = "error " + std::to_string(GetLastError());
  return library;
}

void* FindDriverSymbol(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

void* FindProgramSymbol(const char*) { return nullptr; }

void KeepLibraryLoaded() {
  constexpr DWORD kFlags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN;
  HMODULE library;
  GetModuleHandleExA(kFlags, reinterpret_cast<const char*>(&KeepLibraryLoaded), &library);
}

}  // namespace cistern

#endif
