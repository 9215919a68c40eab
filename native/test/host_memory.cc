#include "host_memory.h"

#include <cstdlib>
#include <new>

namespace cistern::test {
namespace {

// Without constructors: they are used before any, and after the destructors of a thread.
thread_local bool is_counting = false;
thread_local int until_refusal = 0;  // 0: none
thread_local bool refuses_all_after = false;
thread_local bool has_refused = false;

bool IsRefused() {
  if (!is_counting || until_refusal == 0) return false;
  if (until_refusal > 1) {
    until_refusal -= 1;
    return false;
  }
  has_refused = true;
  if (!refuses_all_after) until_refusal = 0;
  return true;
}

}  // namespace

void RefuseHostMemory(int nth, Refused refused) {
  until_refusal = nth;
  refuses_all_after = refused == Refused::kAllAfter;
  has_refused = false;
}

bool HasRefusedHostMemory() { return has_refused; }

void AllowHostMemory() { until_refusal = 0; }

HostMemoryScope::HostMemoryScope(bool counts) : was_counting_(is_counting) { is_counting = counts; }
HostMemoryScope::~HostMemoryScope() { is_counting = was_counting_; }

}  // namespace cistern::test

// All of them but those with an alignment, since a sanitizer has its own of each that is missing.
void* operator new(std::size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return cistern::test::IsRefused() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t& nothrow) noexcept { return operator new(bytes, nothrow); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
