#include "interpose/control.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace cistern::interpose {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

Slot own_slot_of_last_resort;
std::atomic<Slot*> own_slot;
pthread_mutex_t slot_lock = PTHREAD_MUTEX_INITIALIZER;

Control* Open() {
  const char* path = getenv("CISTERN_RUN");
  if (path == nullptr || *path == 0) return nullptr;
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* memory = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const bool is_whole = lseek(file, 0, SEEK_END) >= static_cast<off_t>(sizeof(Control));
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  Control* opened = static_cast<Control*>(memory);
  if (is_whole && std::memcmp(opened->magic, "cistrun2", 8) == 0) return opened;
  munmap(memory, sizeof(Control));
  return nullptr;
}

void Empty(Slot* slot) {
  slot->current.store(0, kRelaxed);
  slot->managed.store(0, kRelaxed);
  for (auto& bytes : slot->by_limit) bytes.store(0, kRelaxed);
}

// A process that was killed no longer holds anything.
void EmptySlotsOfTheDead(Control* shared) {
  for (Slot& slot : shared->slots) {
    std::uint32_t process = slot.process.load(kRelaxed);
    if (process == 0 || &slot == own_slot.load(kRelaxed)) continue;
    if (kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH) continue;
    Empty(&slot);
  }
}

std::uint64_t SumOf(Control* shared, int limit) {
  const bool is_total = shared->limits[limit].name[0] == 0;
  std::uint64_t sum = 0;
  const auto add = [&](const Slot& slot) { sum += is_total ? slot.current.load() + slot.managed.load() : slot.by_limit[limit].load(); };
  for (const Slot& slot : shared->slots) {
    if (slot.process.load(kRelaxed) == 0) break;
    add(slot);
  }
  if (OwnSlot() == &own_slot_of_last_resort) add(own_slot_of_last_resort);
  return sum;
}

void Count(Slot* slot, std::uint64_t bytes, std::uint32_t limits, bool is_managed) {
  (is_managed ? slot->managed : slot->current).fetch_add(bytes);
  for (int i = 0; limits != 0; i++, limits >>= 1) {
    if ((limits & 1) != 0) slot->by_limit[i].fetch_add(bytes);
  }
}

}  // namespace

Control* control() {
  static Control* const opened = Open();
  return opened;
}

Slot* OwnSlot() {
  Slot* slot = own_slot.load(std::memory_order_acquire);
  if (slot != nullptr) return slot;
  Control* shared = control();
  const auto process = static_cast<std::uint32_t>(getpid());
  pthread_mutex_lock(&slot_lock);
  slot = own_slot.load();
  if (slot == nullptr && shared != nullptr) {
    for (Slot& each : shared->slots) {
      std::uint32_t nobody = 0;
      // After exec, the process has the slot of the program before, whose memory is gone.
      if (each.process.load() == process || each.process.compare_exchange_strong(nobody, process)) {
        Empty(&each);
        slot = &each;
        break;
      }
    }
  }
  if (slot == nullptr) slot = &own_slot_of_last_resort;
  own_slot.store(slot, std::memory_order_release);
  pthread_mutex_unlock(&slot_lock);
  return slot;
}

LibrarySlot* TakeLibrarySlot(const char* name) {
  Control* shared = control();
  const std::uint64_t index = shared == nullptr ? kMostLibraries : shared->libraries_taken.fetch_add(1, kRelaxed);
  if (index >= kMostLibraries) return nullptr;
  LibrarySlot* slot = &shared->libraries[index];
  std::strncpy(slot->name, name, sizeof(slot->name) - 1);
  slot->process.store(static_cast<std::uint32_t>(getpid()), std::memory_order_release);
  return slot;
}

void ForgetLibrarySlots() {
  auto own = static_cast<std::uint32_t>(getpid());
  for (LibrarySlot& slot : control()->libraries) {
    std::uint32_t expected = own;
    slot.process.compare_exchange_strong(expected, kNoProcess);
  }
}

void ForgetSlot() {
  pthread_mutex_init(&slot_lock, nullptr);
  own_slot.store(nullptr);
  Empty(&own_slot_of_last_resort);
}

std::uint32_t LimitsOf(const char* account) {
  Control* shared = control();
  if (shared == nullptr) return 0;
  std::uint32_t limits = 0;
  for (std::uint32_t i = 0; i < shared->limit_count && i < kMostLimits; i++) {
    const char* name = shared->limits[i].name;
    if (*name == 0) continue;
    const std::size_t length = std::strlen(name);
    // `node-llama-cpp` also means `@node-llama-cpp/linux-x64-cuda`, and `libfoo` or `foo` the library libfoo.so.
    const auto matches = [&](const char* text) {
      return std::strncmp(text, name, length) == 0 && (text[length] == 0 || text[length] == '/' || text[length] == '.');
    };
    const bool has_prefix = std::strncmp(account, "lib", 3) == 0;
    if (matches(account) || (*account == '@' && matches(account + 1)) || (has_prefix && matches(account + 3))) limits |= 1u << i;
  }
  return limits;
}

bool Reserve(std::uint64_t bytes, std::uint32_t limits, bool is_managed, int* limit) {
  Slot* slot = OwnSlot();
  Control* shared = control();
  Count(slot, bytes, limits, is_managed);
  if (shared == nullptr || shared->limit_count == 0) return true;
  for (std::uint32_t i = 0, rest = limits; rest != 0; i++, rest >>= 1) {
    if ((rest & 1) != 0) shared->limits[i].is_used.store(1, kRelaxed);
  }
  for (bool is_retry = false;; is_retry = true) {
    int passed = -1;
    for (int i = 0; i < static_cast<int>(shared->limit_count) && i < kMostLimits; i++) {
      const bool holds = shared->limits[i].name[0] == 0 || (limits >> i & 1) != 0;
      if (holds && (bytes > shared->limits[i].bytes || SumOf(shared, i) > shared->limits[i].bytes)) passed = i;
    }
    if (passed < 0) return true;
    if (is_retry) {
      Return(bytes, limits, is_managed);
      slot->refusals.fetch_add(1, kRelaxed);
      *limit = passed;
      return false;
    }
    EmptySlotsOfTheDead(shared);
  }
}

void Reserved() {
  Slot* slot = OwnSlot();
  // Called under the ledger's lock: nobody else writes these.
  slot->allocations.store(slot->allocations.load(kRelaxed) + 1, kRelaxed);
  const std::uint64_t current = slot->current.load(kRelaxed);
  if (current > slot->peak.load(kRelaxed)) slot->peak.store(current, kRelaxed);
}

void Return(std::uint64_t bytes, std::uint32_t limits, bool is_managed) { Count(OwnSlot(), ~bytes + 1, limits, is_managed); }

void Remaining(std::uint32_t limits, std::uint64_t* left, std::uint64_t* smallest) {
  *left = *smallest = ~std::uint64_t{0};
  Control* shared = control();
  if (shared == nullptr || shared->limit_count == 0) return;
  EmptySlotsOfTheDead(shared);
  for (int i = 0; i < static_cast<int>(shared->limit_count) && i < kMostLimits; i++) {
    if (shared->limits[i].name[0] != 0 && (limits >> i & 1) == 0) continue;
    const std::uint64_t used = SumOf(shared, i);
    const std::uint64_t bytes = shared->limits[i].bytes;
    const std::uint64_t free = bytes > used ? bytes - used : 0;
    if (free < *left) *left = free;
    if (bytes < *smallest) *smallest = bytes;
  }
}

}  // namespace cistern::interpose
