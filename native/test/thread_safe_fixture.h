// Shared by the cases that use an arena for native threads: a global arena, and a table over it.
#ifndef CISTERN_TEST_THREAD_SAFE_FIXTURE_H_
#define CISTERN_TEST_THREAD_SAFE_FIXTURE_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arenas/resource_table.h"
#include "fixture.h"

namespace cistern::test {

using arenas::AllArenas;
using arenas::DeallocationEvents;
using arenas::EndedArena;
using arenas::GlobalArena;
using arenas::ThreadSafeArena;
using arenas::ThreadSafeSettings;

inline constexpr std::uint64_t kSuperblock = 64 * 1024;

inline std::uint64_t NextTenant() {
  static std::atomic<std::uint64_t> last{1};
  return ++last;
}

inline std::atomic<int> ended_arenas{0};
// What the driver had refused to take back at the end of a thread-safe arena.
inline std::atomic<std::size_t> left_events{0};
inline std::atomic<int> left_streams{0};

inline void FreeEndedArena(const EndedArena& ended) {
  OnDevice device(ended.device);
  CHECK_OK(ended.backend->CtxSynchronize());
  for (const arenas::FreeEvent& each : ended.events) CHECK_OK(ended.backend->EventDestroy(each.event));
  if (ended.stream != nullptr) CHECK_OK(ended.backend->StreamDestroy(ended.stream));
  if (ended.allocation == 0) {
    left_events += ended.events.size();
    left_streams += ended.stream != nullptr ? 1 : 0;
    return;
  }
  CHECK_OK(ended.backend->MemFree(ended.allocation));
  ended_arenas += 1;
}

// A global arena, which ends with its last tenant.
class Global {
 public:
  explicit Global(std::uint64_t bytes, const DriverTable& table = driver) : id_(NextTenant()) {
    AllArenas().leave = FreeEndedArena;
    DevicePointer block = 0;
    CHECK_OK(table.MemAlloc(&block, bytes + kSuperblock));
    auto arena = std::make_unique<GlobalArena>();
    arena->backend = &table;
    arena->bytes = bytes;
    arena->superblock_bytes = kSuperblock;
    arena->Fill(block, bytes + kSuperblock);
    arena->tenants[id_].opens = 1;
    const std::lock_guard<std::mutex> lock(AllArenas().mutex);
    number = ++AllArenas().last_number;
    AllArenas().by_number.emplace(number, std::move(arena));
  }
  ~Global() { Close(); }
  Global(const Global&) = delete;

  void Close() {
    const std::lock_guard<std::mutex> lock(AllArenas().mutex);
    const auto found = AllArenas().by_number.find(number);
    if (found == AllArenas().by_number.end() || found->second->tenants.count(id_) == 0) return;
    found->second->tenants.at(id_).opens = 0;
    if (LeaveIfUnneeded(AllArenas(), number, id_)) LeaveArena(AllArenas(), number);
  }
  std::uint64_t UsedBytes() const {
    const std::lock_guard<std::mutex> lock(AllArenas().mutex);
    return AllArenas().by_number.at(number)->used_bytes;
  }
  // The ranges tile the block, everybody's are counted, and an event has as many users as ranges. No call may run.
  void Validate() const {
    const std::lock_guard<std::mutex> lock(AllArenas().mutex);
    const GlobalArena& arena = *AllArenas().by_number.at(number);
    std::uint64_t end = arena.base, used_bytes = 0;
    std::map<std::uint64_t, std::uint64_t> bytes;
    std::map<const arenas::FreeEvent*, int> users;
    for (const auto& [begin, range] : arena.ranges) {
      CHECK(begin == end);
      end = range.end;
      if (range.freed != nullptr) users[range.freed] += 1;
      if (range.owner == arenas::kNobody) continue;
      bytes[range.owner] += range.end - begin;
      used_bytes += range.end - begin;
    }
    CHECK(end == arena.base + arena.bytes);
    CHECK(used_bytes == arena.used_bytes);
    for (const auto& [id, tenant] : arena.tenants) CHECK(tenant.bytes == bytes[id]);
    for (const arenas::FreeEvent& each : arena.events) CHECK(each.users == users[&each]);
  }

  std::uint64_t number = 0;

 private:
  const std::uint64_t id_;
};

// A table, with the calls of a C program.
class Resource {
 public:
  explicit Resource(const Global& global, DeallocationEvents events = DeallocationEvents::kEager, const DriverTable& table = driver) {
    ThreadSafeSettings settings;
    settings.arena = global.number;
    settings.id = NextTenant();
    settings.events = events;
    CHECK_OK(driver.CtxGetCurrent(&settings.context));
    settings.await_device = [this](const DriverTable* each) {
      waits += 1;
      return each->CtxSynchronize();
    };
    std::shared_ptr<ThreadSafeArena> opened;
    CHECK_OK(ThreadSafeArena::Open(
        settings, &table, [](ThreadSafeArena* each) { delete each; }, &opened));
    arena = opened;
    c = arenas::NewResourceTable(std::move(opened), 0, CISTERN_DEVICE);
  }
  ~Resource() { Release(); }
  Resource(const Resource&) = delete;

  void Release() {
    if (c != nullptr) c->release(c->state);
    c = nullptr;
  }
  DevicePointer Allocate(std::uint64_t bytes, Stream stream, std::uint64_t alignment = 256) const {
    std::uint64_t pointer = 0;
    const std::int32_t result = c->allocate(c->state, bytes, alignment, Handle(stream), &pointer);
    if (result != CISTERN_OK) std::printf("    %s\n", c->last_error(c->state));
    CHECK(result == CISTERN_OK);
    return pointer;
  }
  std::int32_t TryAllocate(std::uint64_t bytes, Stream stream, DevicePointer* pointer, std::uint64_t alignment = 256) const {
    std::uint64_t address = 0;
    const std::int32_t result = c->allocate(c->state, bytes, alignment, Handle(stream), &address);
    *pointer = address;
    return result;
  }
  std::int32_t TryFree(DevicePointer pointer, std::uint64_t bytes, Stream stream) const {
    return c->deallocate(c->state, pointer, bytes, 256, Handle(stream));
  }
  void Free(DevicePointer pointer, std::uint64_t bytes, Stream stream) const { CHECK(TryFree(pointer, bytes, stream) == CISTERN_OK); }
  cistern_resource_statistics Statistics() const {
    cistern_resource_statistics statistics = {};
    statistics.size = sizeof statistics;
    c->statistics(c->state, &statistics);
    return statistics;
  }
  std::string LastError() const { return c->last_error(c->state); }

  const cistern_thread_safe_resource* c = nullptr;
  std::weak_ptr<ThreadSafeArena> arena;
  std::atomic<int> waits{0};

 private:
  static std::uint64_t Handle(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream); }
};

}  // namespace cistern::test

#endif  // CISTERN_TEST_THREAD_SAFE_FIXTURE_H_
