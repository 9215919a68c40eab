#include "addon/shared_counts.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "addon/bindings.h"
#include "addon/orphans.h"
#include "addon/tally.h"
#include "platform/lasting.h"

namespace cistern {

struct SharedCounts {
  struct EndedShare {
    std::uint64_t environment;
    std::int64_t bytes;
    std::int64_t allocations;
  };

  using Key = std::pair<bool, std::string>;  // whether there is a limit, and the name

  SharedCounts(Key its_key, std::int64_t its_limit) : key(std::move(its_key)), limit(its_limit) {}

  const Key key;
  const std::int64_t limit;  // in bytes
  Tally bytes;
  Tally allocations;
  std::atomic<std::int64_t> failures{0};

  // The mutex of the table guards these.
  int environments = 0;
  std::vector<EndedShare> ended;  // with room for those that have not
};

namespace {

struct SharedCountsTable {
  std::mutex mutex;
  std::map<SharedCounts::Key, std::shared_ptr<SharedCounts>> by_key;
};

SharedCountsTable& AllCounts() {
  static Lasting<SharedCountsTable> table;
  return *table;
}

// The table's mutex must be held.
void ForgetIfUnused(const SharedCounts& counts) {
  if (counts.environments > 0 || !counts.ended.empty()) return;
  AllCounts().by_key.erase(AllCounts().by_key.find(counts.key));
}

// Counts of an ended environment no more bytes than it has left. Its allocations count until it has
// left none. The table's mutex must be held.
void Settle(SharedCounts& counts) {
  const auto is_freed = [&](SharedCounts::EndedShare& share) {
    const std::int64_t left = static_cast<std::int64_t>(BytesLeftBy(share.environment));
    if (left < share.bytes) {
      counts.bytes.current -= share.bytes - left;
      share.bytes = left;
    }
    if (left > 0) return false;
    counts.allocations.current -= share.allocations;
    return true;
  };
  counts.ended.erase(std::remove_if(counts.ended.begin(), counts.ended.end(), is_freed), counts.ended.end());
}

// The table's mutex must be held.
void Leave(Environment& environment, std::uint64_t handle, Share& share) {
  const std::shared_ptr<SharedCounts> counts = share.counts;
  counts->environments -= 1;
  ForgetIfUnused(*counts);
  environment.shares.Remove(handle);
}

Status FindShare(Environment& environment, const Napi::CallbackInfo& info, std::uint64_t* handle, Share** share) {
  if (!ReadInteger(info[0], handle)) return kInvalidArgument;
  return environment.shares.Find(static_cast<double>(*handle), share);
}

Status ReadAmount(Environment& environment, Share** share, std::int64_t* bytes) {
  std::uint64_t amount;
  if (!environment.In(1, &amount)) return kInvalidArgument;
  *bytes = static_cast<std::int64_t>(amount);
  return environment.shares.Find(environment.In(0), share);
}

}  // namespace

void SettleShares() {
  SharedCountsTable& table = AllCounts();
  const std::lock_guard<std::mutex> lock(table.mutex);
  for (auto entry = table.by_key.begin(); entry != table.by_key.end();) {
    const std::shared_ptr<SharedCounts> counts = entry++->second;  // which may be forgotten
    Settle(*counts);
    ForgetIfUnused(*counts);
  }
}

void EndSharesOf(Environment& environment) {
  {
    const std::lock_guard<std::mutex> lock(AllCounts().mutex);
    environment.shares.ForEach([&](std::uint64_t handle, Share& share) {
      if (share.bytes != 0 || share.allocations != 0) share.counts->ended.push_back({environment.id(), share.bytes, share.allocations});
      Leave(environment, handle, share);
    });
  }
  // Memory that no driver knows, of a resource written in JavaScript, ended with the environment.
  SettleShares();
}

Status OpenShare(Environment& environment, const Napi::CallbackInfo& info) {
  std::string name;
  bool is_limited;
  std::uint64_t limit;
  if (!ReadBoolean(info[0], &is_limited) || !ReadString(info[1], &name) || !ReadInteger(info[2], &limit)) return kInvalidArgument;
  const SharedCounts::Key key{is_limited, name};
  SettleShares();
  SharedCountsTable& table = AllCounts();
  const std::lock_guard<std::mutex> lock(table.mutex);
  const auto known = table.by_key.find(key);
  const bool is_known = known != table.by_key.end();
  const std::shared_ptr<SharedCounts> counts =
      is_known ? known->second : std::make_shared<SharedCounts>(key, static_cast<std::int64_t>(limit));
  if (!is_known) table.by_key.emplace(key, counts);
  std::uint64_t handle = 0;
  environment.shares.ForEach([&](std::uint64_t each, const Share& share) {
    if (share.counts == counts) handle = each;
  });
  if (handle == 0) {
    counts->ended.reserve(counts->ended.size() + static_cast<std::size_t>(counts->environments) + 1);
    handle = environment.shares.Add({counts, 0, 0, 0});
    if (handle == 0) {
      ForgetIfUnused(*counts);
      return kHostOutOfMemory;
    }
    counts->environments += 1;
  }
  environment.shares.Peek(handle)->opens += 1;
  environment.Out(1, static_cast<double>(handle));
  environment.Out(2, static_cast<double>(counts->limit));
  return kSuccess;
}

Status CloseShare(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  Share* share;
  const Status status = FindShare(environment, info, &handle, &share);
  if (status != kSuccess) return status;
  if (share->opens == 0) return kStaleHandle;
  share->opens -= 1;
  if (share->opens > 0 || share->bytes != 0 || share->allocations != 0) return kSuccess;
  const std::lock_guard<std::mutex> lock(AllCounts().mutex);
  Leave(environment, handle, *share);
  return kSuccess;
}

Status CountAllocation(Environment& environment) {
  Share* share;
  std::int64_t bytes;
  const Status status = ReadAmount(environment, &share, &bytes);
  if (status != kSuccess) return status;
  SharedCounts& counts = *share->counts;
  if (!counts.bytes.AddWithin(counts.limit, bytes)) {
    environment.Out(1, 0);
    return kSuccess;
  }
  counts.allocations.Add(1);
  share->bytes += bytes;
  share->allocations += 1;
  environment.Out(1, 1);
  return kSuccess;
}

Status CountFree(Environment& environment) {
  Share* share;
  std::int64_t bytes;
  const Status status = ReadAmount(environment, &share, &bytes);
  if (status != kSuccess) return status;
  if (bytes > share->bytes || share->allocations == 0) return kInvalidArgument;
  share->counts->bytes.current -= bytes;
  share->counts->allocations.current -= 1;
  share->bytes -= bytes;
  share->allocations -= 1;
  if (share->opens > 0 || share->bytes != 0 || share->allocations != 0) return kSuccess;
  const std::lock_guard<std::mutex> lock(AllCounts().mutex);
  Leave(environment, static_cast<std::uint64_t>(environment.In(0)), *share);
  return kSuccess;
}

Status CountFailure(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  Share* share;
  const Status status = FindShare(environment, info, &handle, &share);
  if (status == kSuccess) share->counts->failures += 1;
  return status;
}

Status ReadShare(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  Share* share;
  const Status status = FindShare(environment, info, &handle, &share);
  if (status != kSuccess) return status;
  SharedCounts& counts = *share->counts;
  const std::lock_guard<std::mutex> lock(AllCounts().mutex);
  Settle(counts);
  int cell = 1;
  for (const Tally* tally : {&counts.bytes, &counts.allocations}) {
    environment.Out(cell++, static_cast<double>(tally->current));
    environment.Out(cell++, static_cast<double>(tally->peak));
    environment.Out(cell++, static_cast<double>(tally->total));
  }
  environment.Out(7, static_cast<double>(counts.failures));
  environment.Out(8, counts.environments);
  return kSuccess;
}

Status SettleShare(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  Share* share;
  const Status status = FindShare(environment, info, &handle, &share);
  if (status != kSuccess) return status;
  {
    const std::lock_guard<std::mutex> lock(AllCounts().mutex);
    if (share->counts->ended.empty()) return kSuccess;
  }
  if (environment.driver != nullptr) environment.ReapOrphans();
  // Another environment may have taken them first.
  AwaitFrees();
  SettleShares();
  return kSuccess;
}

}  // namespace cistern
