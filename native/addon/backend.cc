#include <algorithm>
#include <array>
#include <mutex>

#include "addon/bindings.h"
#include "addon/orphans.h"
#include "cuda/loader.h"
#include "platform/thread.h"
#include "software/software_device.h"

namespace cistern {
namespace {

enum : int { kCudaBackend = 0, kSoftwareBackend = 1 };

bool ReadCall(const Napi::Value& value, Call* call) {
  std::string name;
  if (!ReadString(value, &name)) return false;
  for (int number = 0; number < kCallCount; ++number) {
    if (name != kCallNames[number]) continue;
    *call = static_cast<Call>(number);
    return true;
  }
  return false;
}

}  // namespace

Status OpenBackend(Environment& environment, const Napi::CallbackInfo& info) {
  int kind;
  if (!ReadInt(info[0], &kind) || (kind != kCudaBackend && kind != kSoftwareBackend)) return kInvalidArgument;
  const DriverTable* table = kind == kCudaBackend ? cuda::Load().table : &software::Table();
  if (table == nullptr) return kNoBackend;
  const Status status = environment.OpenBackend(table);
  if (status == kSuccess) environment.ReapOrphans();
  return status;
}

Status CudaUnavailableReason(Environment&, const Napi::CallbackInfo& info, Napi::Value* result) {
  *result = Napi::String::New(info.Env(), cuda::Load().reason);
  return kSuccess;
}

Status DriverTableAddress(Environment& environment, const Napi::CallbackInfo&) {
  environment.Out(1, static_cast<double>(reinterpret_cast<std::uintptr_t>(environment.backend)));
  return environment.backend != nullptr ? kSuccess : kNoBackend;
}

Status MissingDriverFunctions(Environment&, const Napi::CallbackInfo& info, Napi::Value* result) {
  *result = Napi::String::New(info.Env(), cuda::Load().missing);
  return kSuccess;
}

Status ConfigureSoftware(Environment&, const Napi::CallbackInfo& info) {
  static std::mutex mutex;
  static bool is_configured = false;
  std::uint64_t total_bytes;
  int device_count;
  bool is_strict, has_access, is_coherent, frees_wait, has_pageable_access;
  std::uint64_t nanoseconds;
  if (!ReadInteger(info[0], &total_bytes) || !ReadInt(info[1], &device_count) || device_count < 0) return kInvalidArgument;
  std::string peers;
  const bool has_peers = ReadString(info[6], &peers);
  bool is_only_first = false;
  if (!ReadBoolean(info[8], &is_only_first)) is_only_first = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (is_only_first && is_configured) return kSuccess;
  const Status status = software::Configure(total_bytes, device_count);
  if (status != kSuccess) return status;
  if (ReadBoolean(info[2], &is_strict)) software::SetStrict(is_strict);
  if (ReadBoolean(info[3], &has_access)) software::SetConcurrentManagedAccess(has_access);
  if (ReadInteger(info[4], &nanoseconds)) software::SetMigrationCost(nanoseconds);
  if (ReadBoolean(info[5], &is_coherent)) software::SetCoherent(is_coherent);
  if (ReadBoolean(info[7], &frees_wait)) software::SetFreesWait(frees_wait);
  if (ReadBoolean(info[9], &has_pageable_access)) software::SetPageableAccess(has_pageable_access);
  if (has_peers && !software::SetPeers(peers.c_str())) return kErrorInvalidValue;
  is_configured = true;
  return kSuccess;
}

Status ManagedActivity(Environment& environment, const Napi::CallbackInfo& info) {
  int place;
  if (!ReadInt(info[0], &place)) return kInvalidArgument;
  const software::ManagedActivity activity = software::ActivityAt(place);
  int cell = 1;
  for (const std::uint64_t number :
       {activity.resident_bytes, activity.peak_resident_bytes, activity.bytes_from_host, activity.bytes_from_devices,
        activity.evicted_bytes, activity.remote_bytes, activity.faults, activity.evictions, activity.thrashes}) {
    environment.Out(cell++, static_cast<double>(number));
  }
  return kSuccess;
}

Status ResetManagedActivity(Environment&, const Napi::CallbackInfo&) {
  software::ResetManagedActivity();
  return kSuccess;
}

Status ResidentBytes(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t address, bytes;
  int place;
  if (!ReadInteger(info[0], &address) || !ReadInteger(info[1], &bytes) || !ReadInt(info[2], &place)) return kInvalidArgument;
  environment.Out(1, static_cast<double>(software::ResidentBytes(address, bytes, place)));
  return kSuccess;
}

Status AccessFromHost(Environment&, const Napi::CallbackInfo& info) {
  std::uint64_t address, bytes;
  bool is_write;
  if (!ReadInteger(info[0], &address) || !ReadInteger(info[1], &bytes) || !ReadBoolean(info[2], &is_write)) return kInvalidArgument;
  software::AccessFromHost(address, bytes, is_write);
  return kSuccess;
}

Status BeginManagedMoves(Environment& environment, const Napi::CallbackInfo& info) {
  Napi::Int32Array pending;
  if (!ReadArray(info[0], &pending) || pending.ElementLength() < 1) return kInvalidArgument;
  environment.EndManagedMoves();
  const bool has_begun = software::BeginManagedMoves(pending.Data());
  if (has_begun) {
    environment.pending_moves = pending.Data();
    environment.pending_moves_array = Napi::Persistent(pending);
  }
  environment.Out(1, has_begun ? 1 : 0);
  return kSuccess;
}

Status TakeManagedMoves(Environment& environment, const Napi::CallbackInfo& info) {
  Napi::Float64Array array;
  if (!ReadArray(info[0], &array)) return kInvalidArgument;
  constexpr std::size_t kCellsOfMove = 7;
  std::array<software::ManagedMove, 256> moves;
  const std::size_t room = std::min(moves.size(), array.ElementLength() / kCellsOfMove);
  const std::size_t count = software::TakeManagedMoves(environment.pending_moves, moves.data(), room);
  double* cells = array.Data();
  for (std::size_t i = 0; i < count; ++i) {
    const software::ManagedMove& move = moves[i];
    *cells++ = static_cast<double>(move.nanoseconds);
    *cells++ = static_cast<double>(move.address);
    *cells++ = static_cast<double>(move.bytes);
    *cells++ = move.place;
    *cells++ = static_cast<double>(move.reason);
    *cells++ = move.device;
    *cells++ = static_cast<double>(move.stream);
  }
  environment.Out(1, static_cast<double>(count));
  return kSuccess;
}

Status EndManagedMoves(Environment& environment, const Napi::CallbackInfo&) {
  environment.EndManagedMoves();
  return kSuccess;
}

Status SetLatency(Environment&, const Napi::CallbackInfo& info) {
  Call call;
  std::uint64_t nanoseconds;
  if (!ReadCall(info[0], &call) || !ReadInteger(info[1], &nanoseconds)) return kInvalidArgument;
  software::SetLatency(call, nanoseconds);
  return kSuccess;
}

Status FailCall(Environment& environment, const Napi::CallbackInfo& info) {
  Call call;
  std::uint64_t nth;
  int status;
  if (!ReadCall(info[0], &call) || !ReadInteger(info[1], &nth) || !ReadInt(info[2], &status)) return kInvalidArgument;
  environment.Out(1, software::FailCall(call, nth, status) ? 1 : 0);
  return kSuccess;
}

Status FailCallAfter(Environment&, const Napi::CallbackInfo& info) {
  Call first, call;
  std::uint64_t nth;
  int status;
  if (!ReadCall(info[0], &first) || !ReadCall(info[1], &call)) return kInvalidArgument;
  if (!ReadInteger(info[2], &nth) || !ReadInt(info[3], &status)) return kInvalidArgument;
  software::FailCallAfter(first, call, nth, status);
  return kSuccess;
}

Status LiveStreams(Environment& environment, const Napi::CallbackInfo&) {
  environment.Out(1, software::LiveStreams());
  return kSuccess;
}

Status DriverVersion(Environment& environment, const Napi::CallbackInfo&) {
  if (environment.driver == nullptr) return kNoBackend;
  int version = 0;
  const Status status = environment.Counted<Call::kDriverGetVersion>(&version);
  if (status == kSuccess) environment.Out(1, version);
  return status;
}

Status OnKeptOrphans(Environment& environment, const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction()) return kInvalidArgument;
  environment.on_kept_orphans = Napi::Persistent(info[0].As<Napi::Function>());
  return kSuccess;
}

Status ReadKeptOrphans(Environment& environment, const Napi::CallbackInfo&) {
  if (environment.driver == nullptr) return kNoBackend;
  environment.Out(1, environment.wait_to_free);
  environment.Out(2, static_cast<double>(OrphanedBytes(environment)));
  return kSuccess;
}

Status ThreadId(Environment& environment, const Napi::CallbackInfo&) {
  environment.Out(1, static_cast<double>(CurrentThreadId()));
  return kSuccess;
}

}  // namespace cistern
