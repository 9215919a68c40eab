#include "interpose/stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unwind.h>

#include <cstring>

#include "interpose/javascript.h"
#include "interpose/thread_scope.h"

namespace cistern::interpose {
namespace {

constexpr int kMostFrames = 128;
constexpr int kMostNativeLines = 12;

_Unwind_Reason_Code FindCaller(struct _Unwind_Context* context, void* data) {
  const auto address = _Unwind_GetIP(context);
  if (address == 0) return _URC_END_OF_STACK;
  Library* caller = static_cast<Library*>(data);
  // A return address is behind the call, which may be the last instruction of its function.
  *caller = LibraryOf(reinterpret_cast<const void*>(address - 1));
  return caller->is_nvidias ? _URC_NO_REASON : _URC_END_OF_STACK;
}

struct Lines {
  char* text;
  std::size_t capacity;
  std::size_t length;
  int frames;
  int lines;
};

// The lines of addresses, because looking for a symbol takes microseconds. Nothing foreign is called under the lock; who
// does not get it at once, does without.
struct KnownLine {
  const char* address;
  std::uint32_t generation;
  char text[180];
};
constexpr std::size_t kKnownLines = 1024;
KnownLine known_lines[kKnownLines];
pthread_mutex_t known_lines_lock = PTHREAD_MUTEX_INITIALIZER;

// Writes a line for the call before the address. Returns its length, or a number from `capacity` on if it does not fit.
std::size_t LineOf(const char* address, char* line, std::size_t capacity) {
  KnownLine& known = known_lines[(reinterpret_cast<std::uintptr_t>(address) * 0x9e3779b97f4a7c15u >> 32) % kKnownLines];
  const std::uint32_t generation = AddressGeneration();
  std::size_t length = 0;
  if (pthread_mutex_trylock(&known_lines_lock) == 0) {
    if (known.address == address && known.generation == generation)
      length = static_cast<std::size_t>(snprintf(line, capacity, "%s", known.text));
    pthread_mutex_unlock(&known_lines_lock);
    if (length > 0) return length;
  }
  Dl_info info = {};
  const bool is_found = dladdr(address - 1, &info) != 0;
  char symbol[256];
  if (is_found && info.dli_sname != nullptr) {
    int status = -1;
    char* name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    snprintf(symbol, sizeof(symbol), "%s", name != nullptr ? name : info.dli_sname);
    free(name);
  } else {
    snprintf(symbol, sizeof(symbol), "+0x%zx", static_cast<std::size_t>(address - 1 - static_cast<const char*>(info.dli_fbase)));
  }
  const char* slash = info.dli_fname == nullptr ? nullptr : std::strrchr(info.dli_fname, '/');
  const char* file = slash != nullptr ? slash + 1 : info.dli_fname != nullptr ? info.dli_fname : "generated code";
  length = static_cast<std::size_t>(snprintf(line, capacity, "%s (native:%s)\n", symbol, file));
  if (length < capacity && length < sizeof(known.text) && pthread_mutex_trylock(&known_lines_lock) == 0) {
    known.address = address;
    known.generation = generation;
    std::memcpy(known.text, line, length + 1);
    pthread_mutex_unlock(&known_lines_lock);
  }
  return length;
}

_Unwind_Reason_Code AddLine(struct _Unwind_Context* context, void* data) {
  Lines& lines = *static_cast<Lines*>(data);
  const auto address = reinterpret_cast<const char*>(_Unwind_GetIP(context));
  if (address == nullptr || ++lines.frames > kMostFrames || lines.lines == kMostNativeLines) return _URC_END_OF_STACK;
  const Library library = LibraryOf(address - 1);
  // What follows is Node itself, and then JavaScript.
  if (library.has_v8) return _URC_END_OF_STACK;
  if (library.is_nvidias) return _URC_NO_REASON;
  const std::size_t capacity = lines.capacity - lines.length;
  const std::size_t length = LineOf(address, lines.text + lines.length, capacity);
  if (length >= capacity) return _URC_END_OF_STACK;
  lines.length += length;
  lines.lines++;
  return _URC_NO_REASON;
}

}  // namespace

Library CallerOf(const void* return_address) {
  Library caller = LibraryOf(static_cast<const char*>(return_address) - 1);
  if (!caller.is_nvidias) return caller;
  Library found = caller;
  _Unwind_Backtrace(FindCaller, &found);
  return found;
}

std::size_t StackText(char* text, std::size_t capacity) {
  Lines lines = {text, capacity / 2, 0, 0, 0};
  _Unwind_Backtrace(AddLine, &lines);
  std::size_t length = lines.length;
  const std::size_t of_javascript = JavaScriptStack(text + length, capacity - length);
  length += of_javascript;
  if (of_javascript == 0) {
    char name[64] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    length += static_cast<std::size_t>(snprintf(text + length, capacity - length, "thread %s (native:thread)\n", name));
    if (const char* origin = CurrentScope().origin) {
      const int written =
          snprintf(text + length, capacity - length, "work that was created by (native:napi_create_async_work)\n%s", origin);
      // All of it or nothing: a cut-off line would be a wrong one.
      if (length + static_cast<std::size_t>(written) < capacity) length += static_cast<std::size_t>(written);
    }
  }
  return length > 0 ? length - 1 : 0;  // without the last newline
}

}  // namespace cistern::interpose
