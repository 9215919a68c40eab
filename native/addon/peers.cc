#include "addon/peers.h"

#include <cstdint>
#include <memory>

#include "addon/address_space.h"
#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/host_functions.h"

namespace cistern {
namespace {

struct Pair {
  int device;  // whose streams get access
  int peer;    // whose memory it is
};

Status ReadPair(Environment& environment, const Napi::CallbackInfo& info, Pair* pair) {
  if (!ReadInt(info[0], &pair->device) || !ReadInt(info[1], &pair->peer)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  return environment.HasDevice(pair->device) && environment.HasDevice(pair->peer) ? kSuccess : kInvalidArgument;
}

AccessDescription Describe(const Environment& environment, int device, int flags) {
  return {{kLocationDevice, environment.DriverDevice(device)}, flags};
}

// The access to pools and virtual memory that exist. Pools that were made elsewhere belong to others.
Status SetAccess(Environment& environment, Pair pair, int flags) {
  const AccessDescription access = Describe(environment, pair.device, flags);
  const AccessDescription* first = &access;
  Status status = kSuccess;
  environment.pools.ForEach([&](std::uint64_t, const PoolEntry& entry) {
    if (status != kSuccess || entry.device != pair.peer || !entry.owned || !entry.is_on_device) return;
    status = environment.Counted<Call::kMemPoolSetAccess>(entry.pool, first, std::size_t{1});
  });
  struct Piece {
    std::uint64_t begin;
    std::uint64_t end;
    bool is_read_only;
  };
  std::vector<Piece> ranges;
  environment.address_spaces.ForEach([&](std::uint64_t, const std::shared_ptr<AddressSpace>& space) {
    if (space->device != pair.peer) return;
    const std::size_t first_of_space = ranges.size();
    space->ForEachPiece([&](std::uint64_t begin, std::uint64_t end) {
      if (ranges.size() > first_of_space && ranges.back().end == begin) {
        ranges.back().end = end;
      } else {
        ranges.push_back({begin, end, space->is_read_only});
      }
    });
  });
  const AccessDescription reading = Describe(environment, pair.device, flags == kAccessReadWrite ? int{kAccessRead} : flags);
  for (const auto& [begin, end, is_read_only] : ranges) {
    if (status != kSuccess) return status;
    status = environment.Counted<Call::kMemSetAccess>(DevicePointer{begin}, static_cast<std::size_t>(end - begin),
                                                      is_read_only ? &reading : first, std::size_t{1});
  }
  return status;
}

}  // namespace

std::vector<AccessDescription> AccessTo(const Environment& environment, int device, int flags) {
  std::vector<AccessDescription> access{Describe(environment, device, flags)};
  for (auto pair = environment.peers.lower_bound({device, 0}); pair != environment.peers.end() && pair->first == device; ++pair) {
    access.push_back(Describe(environment, pair->second, flags));
  }
  return access;
}

Status GivePoolAccess(Environment& environment, Pool pool, int device) {
  const std::vector<AccessDescription> access = AccessTo(environment, device, kAccessReadWrite);
  if (access.size() == 1) return kSuccess;
  const AccessDescription* of_peers = access.data() + 1;
  return environment.Counted<Call::kMemPoolSetAccess>(pool, of_peers, access.size() - 1);
}

Status GiveHostPoolAccess(Environment& environment, Pool pool) {
  std::vector<AccessDescription> access;
  for (int device = 0; environment.HasDevice(device); ++device) access.push_back(Describe(environment, device, kAccessReadWrite));
  const AccessDescription* first = access.data();
  return environment.Counted<Call::kMemPoolSetAccess>(pool, first, access.size());
}

Status CanAccessPeer(Environment& environment, const Napi::CallbackInfo& info) {
  Pair pair;
  Status status = ReadPair(environment, info, &pair);
  if (status != kSuccess) return status;
  int can_access = 0;
  status = environment.Counted<Call::kDeviceCanAccessPeer>(&can_access, environment.DriverDevice(pair.device),
                                                           environment.DriverDevice(pair.peer));
  if (status == kSuccess) environment.Out(1, can_access != 0 ? 1 : 0);
  return status;
}

Status EnablePeerAccess(Environment& environment, const Napi::CallbackInfo& info) {
  Pair pair;
  Status status = ReadPair(environment, info, &pair);
  if (status != kSuccess) return status;
  Context peer;
  status = environment.ContextOf(pair.peer, &peer);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, pair.device);
  if (context.status() != kSuccess) return context.status();
  const bool is_known = environment.peers.count({pair.peer, pair.device}) != 0;
  const Status enabled = environment.Counted<Call::kCtxEnablePeerAccess>(peer, 0U);
  // Another environment, or another library, may have done this for the context.
  if (enabled != kSuccess && enabled != kErrorPeerAccessAlreadyEnabled) return enabled;
  status = SetAccess(environment, pair, kAccessReadWrite);
  if (status == kSuccess) {
    environment.peers.insert({pair.peer, pair.device});
  } else if (!is_known) {
    SetAccess(environment, pair, kAccessNone);
    if (enabled == kSuccess) environment.Counted<Call::kCtxDisablePeerAccess>(peer);
  }
  environment.Out(1, is_known ? 0 : 1);
  return status;
}

Status DisablePeerAccess(Environment& environment, const Napi::CallbackInfo& info) {
  Pair pair;
  Status status = ReadPair(environment, info, &pair);
  if (status == kSuccess) status = BeforeWaitingForDevice(environment);
  if (status != kSuccess) return status;
  Context peer;
  status = environment.ContextOf(pair.peer, &peer);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, pair.device);
  if (context.status() != kSuccess) return context.status();
  // The device's work may still use the memory.
  status = SynchronizeContext(environment, pair.device, true);
  if (status == kSuccess) status = SetAccess(environment, pair, kAccessNone);
  if (status != kSuccess) return status;
  status = environment.Counted<Call::kCtxDisablePeerAccess>(peer);
  if (status == kErrorPeerAccessNotEnabled) status = kSuccess;
  if (status != kSuccess) return status;
  environment.Out(1, environment.peers.erase({pair.peer, pair.device}) != 0 ? 1 : 0);
  return kSuccess;
}

}  // namespace cistern
