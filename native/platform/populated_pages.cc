#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "platform/memory.h"
#include "platform/thread.h"

namespace cistern {
namespace {

// What a thread takes at a time, if there is that much for each: a multiple of any large page, so that no two threads clear the same one.
constexpr std::uint64_t kMostPieceBytes = std::uint64_t{32} << 20;
constexpr std::uint64_t kLeastPieceBytes = std::uint64_t{4} << 20;

// Shared by the threads that populate a mapping, and gone with the last of them.
struct Population {
  std::atomic<std::uint64_t> next{0};
  std::uint64_t end = 0;
  std::uint64_t piece_bytes = kMostPieceBytes;
  std::atomic<bool> has_failed{false};
  std::mutex mutex;
  std::condition_variable changed;
  bool has_begun = false;
  unsigned working = 0;  // other threads that are not done

  // Takes pieces until there are none.
  void Work() {
    while (!has_failed) {
      const std::uint64_t piece = next.fetch_add(piece_bytes);
      if (piece >= end) return;
      if (!PopulatePages(piece, std::min(piece_bytes, end - piece))) has_failed = true;
    }
  }

  void WorkBeside() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return has_begun; });
    lock.unlock();
    Work();
    lock.lock();
    working -= 1;
    changed.notify_all();
  }
};

void* RunPopulation(void* argument) {
  const std::unique_ptr<std::shared_ptr<Population>> population(static_cast<std::shared_ptr<Population>*>(argument));
  (*population)->WorkBeside();
  return nullptr;
}

}  // namespace

std::uint64_t PopulatedPieceBytes(std::uint64_t bytes, unsigned threads) {
  const std::uint64_t share = (bytes / threads + kLeastPieceBytes - 1) / kLeastPieceBytes * kLeastPieceBytes;
  return std::clamp(share, kLeastPieceBytes, kMostPieceBytes);
}

void* MapPopulatedPages(std::uint64_t bytes, unsigned threads, int node) {
  const std::uint64_t page = PageBytes();
  if (bytes > ~std::uint64_t{0} - page) return nullptr;
  bytes = (bytes + page - 1) / page * page;
  void* mapped = MapPagesToPin(bytes);
  if (mapped == nullptr) return nullptr;
  if (node >= 0) PreferNode(reinterpret_cast<std::uintptr_t>(mapped), bytes, node);
  const auto population = std::make_shared<Population>();
  population->next = reinterpret_cast<std::uintptr_t>(mapped);
  population->end = population->next + bytes;
  population->piece_bytes = PopulatedPieceBytes(bytes, threads);
  const std::uint64_t pieces = (bytes + population->piece_bytes - 1) / population->piece_bytes;
  // All of them start before any page is touched: the stack of a new thread is mapped, which would wait for those
  // that are populating.
  for (std::uint64_t started = 1; started < std::min<std::uint64_t>(threads, pieces); ++started) {
    auto argument = std::make_unique<std::shared_ptr<Population>>(population);
    if (!StartThread(RunPopulation, argument.get(), "cistern-pages")) break;  // the others do its part
    argument.release();
    const std::lock_guard<std::mutex> lock(population->mutex);
    population->working += 1;
  }
  {
    const std::lock_guard<std::mutex> lock(population->mutex);
    population->has_begun = true;
    population->changed.notify_all();
  }
  population->Work();
  std::unique_lock<std::mutex> lock(population->mutex);
  population->changed.wait(lock, [&] { return population->working == 0; });
  if (!population->has_failed) return mapped;
  UnmapPages(mapped, bytes);
  return nullptr;
}

}  // namespace cistern
