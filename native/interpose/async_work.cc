// Work that an addon does on a thread of libuv's pool (napi_create_async_work, which Napi::AsyncWorker calls), with the
// JavaScript that created it. An addon takes the function from Node, which is the program and so comes before any preloaded
// library. So the addon's own reference to it is replaced, once the addon is loaded and before it is initialized.
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "interpose/control.h"
#include "interpose/driver.h"
#include "interpose/javascript.h"
#include "interpose/real_dlsym.h"
#include "interpose/thread_scope.h"

namespace cistern::interpose {
namespace {

using Execute = void (*)(void* env, void* data);
using Complete = void (*)(void* env, int status, void* data);
using CreateAsyncWork = int (*)(void* env, void* resource, void* name, Execute, Complete, void* data, void** result);

constexpr char kFunction[] = "napi_create_async_work";

#if defined(__x86_64__)
constexpr unsigned kJumpSlot = R_X86_64_JUMP_SLOT, kGlobal = R_X86_64_GLOB_DAT, kAbsolute = R_X86_64_64;
#elif defined(__aarch64__)
constexpr unsigned kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobal = R_AARCH64_GLOB_DAT, kAbsolute = R_AARCH64_ABS64;
#endif

CreateAsyncWork Real() {
  static const auto real = [] {
    const WithoutError without_error;
    return reinterpret_cast<CreateAsyncWork>(RealDlsym()(RTLD_DEFAULT, kFunction));
  }();
  return real;
}

// The texts of stacks, each once. They stay: an allocation may ask for one at any time.
struct KnownStack {
  std::uint64_t hash;
  const char* text;
};
constexpr std::size_t kMostStacks = 4096;
KnownStack known_stacks[kMostStacks];
std::size_t known_stack_count;
pthread_mutex_t known_stacks_lock = PTHREAD_MUTEX_INITIALIZER;

const char* Intern(const char* text, std::size_t length) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < length; i++) hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x100000001b3u;
  pthread_mutex_lock(&known_stacks_lock);
  std::size_t i = hash % kMostStacks;
  while (known_stacks[i].text != nullptr && known_stacks[i].hash != hash) i = (i + 1) % kMostStacks;
  if (known_stacks[i].text == nullptr && known_stack_count < kMostStacks / 2) {
    if (char* copy = strndup(text, length)) {
      known_stacks[i] = {hash, copy};
      known_stack_count++;
    }
  }
  const char* known = known_stacks[i].text;
  pthread_mutex_unlock(&known_stacks_lock);
  return known;
}

// Only once the program uses a driver: work of other addons before that costs nothing.
const char* Origin() {
  if (control()->stack_bytes == kNoStacks || !HasDriver()) return nullptr;
  char text[4096];
  const std::size_t length = JavaScriptStack(text, sizeof(text));
  return length == 0 ? nullptr : Intern(text, length);
}

struct Work {
  Execute execute;
  Complete complete;
  void* data;
  ThreadScope scope;
};

class Within {
 public:
  explicit Within(const ThreadScope& scope) : before_(CurrentScope()) { CurrentScope() = scope; }
  ~Within() { CurrentScope() = before_; }
  Within(const Within&) = delete;

 private:
  ThreadScope before_;
};

void RunExecute(void* env, void* data) {
  const Work& work = *static_cast<Work*>(data);
  const Within within(work.scope);
  work.execute(env, work.data);
}

// The last that happens to the work. What is deleted before it was queued is not seen, and stays: some bytes.
void RunComplete(void* env, int status, void* data) {
  const Work work = *static_cast<Work*>(data);
  free(data);
  const Within within(work.scope);
  if (work.complete != nullptr) work.complete(env, status, work.data);
}

int CreateWork(void* env, void* resource, void* name, Execute execute, Complete complete, void* data, void** result) {
  Work* work = execute == nullptr ? nullptr : static_cast<Work*>(malloc(sizeof(Work)));
  if (work == nullptr) return Real()(env, resource, name, execute, complete, data, result);
  *work = {execute, complete, data, {Origin(), CurrentScope().account}};
  const int status = Real()(env, resource, name, RunExecute, RunComplete, work, result);
  if (status != 0) free(work);
  return status;
}

#if defined(__x86_64__) || defined(__aarch64__)

// Stores into a table that the loader may have made read-only.
void Replace(void** place, const dl_phdr_info& library) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(place);
  bool is_read_only = false;
  for (int i = 0; i < library.dlpi_phnum; i++) {
    const ElfW(Phdr)& part = library.dlpi_phdr[i];
    // The loader protects whole pages only, up to the last one that begins within.
    const std::uintptr_t end = (library.dlpi_addr + part.p_vaddr + part.p_memsz) / page * page;
    if (part.p_type == PT_GNU_RELRO && address >= library.dlpi_addr + part.p_vaddr && address < end) is_read_only = true;
  }
  void* begin = reinterpret_cast<void*>(address / page * page);
  if (is_read_only && mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return;
  reinterpret_cast<std::atomic<void*>*>(place)->store(reinterpret_cast<void*>(CreateWork), std::memory_order_release);
  if (is_read_only) mprotect(begin, page, PROT_READ);
}

// The references of a library to the function, in its two tables.
void ReplaceIn(const dl_phdr_info& library, const ElfW(Dyn) * dynamic) {
  const auto pointer = [&](ElfW(Addr) value) { return value < library.dlpi_addr ? value + library.dlpi_addr : value; };
  const char* names = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  struct {
    std::uintptr_t begin;
    std::size_t bytes;
  } tables[2] = {};
  for (; dynamic->d_tag != DT_NULL; dynamic++) {
    switch (dynamic->d_tag) {
      case DT_STRTAB:
        names = reinterpret_cast<const char*>(pointer(dynamic->d_un.d_ptr));
        break;
      case DT_SYMTAB:
        symbols = reinterpret_cast<const ElfW(Sym)*>(pointer(dynamic->d_un.d_ptr));
        break;
      case DT_JMPREL:
        tables[0].begin = pointer(dynamic->d_un.d_ptr);
        break;
      case DT_PLTRELSZ:
        tables[0].bytes = dynamic->d_un.d_val;
        break;
      case DT_RELA:
        tables[1].begin = pointer(dynamic->d_un.d_ptr);
        break;
      case DT_RELASZ:
        tables[1].bytes = dynamic->d_un.d_val;
        break;
    }
  }
  if (names == nullptr || symbols == nullptr) return;
  for (const auto& table : tables) {
    const auto* relocations = reinterpret_cast<const ElfW(Rela)*>(table.begin);
    for (std::size_t i = 0; i < table.bytes / sizeof(*relocations); i++) {
      const auto kind = static_cast<unsigned>(ELF64_R_TYPE(relocations[i].r_info));
      const auto& symbol = symbols[ELF64_R_SYM(relocations[i].r_info)];
      if ((kind != kJumpSlot && kind != kGlobal && kind != kAbsolute) || std::strcmp(names + symbol.st_name, kFunction) != 0) continue;
      if (symbol.st_shndx == SHN_UNDEF) Replace(reinterpret_cast<void**>(library.dlpi_addr + relocations[i].r_offset), library);
    }
  }
}

int Look(dl_phdr_info* library, std::size_t, void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  bool is_here = false;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < library->dlpi_phnum; i++) {
    const auto& part = library->dlpi_phdr[i];
    if (part.p_type == PT_LOAD && address - (library->dlpi_addr + part.p_vaddr) < part.p_memsz) is_here = true;
    if (part.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(library->dlpi_addr + part.p_vaddr);
  }
  if (is_here && dynamic != nullptr) ReplaceIn(*library, dynamic);
  return is_here ? 1 : 0;
}

#endif

}  // namespace

void WatchAddon(void* address) {
#if defined(__x86_64__) || defined(__aarch64__)
  const int before = errno;
  if (Real() != nullptr) dl_iterate_phdr(Look, address);
  errno = before;
#endif
}

}  // namespace cistern::interpose
