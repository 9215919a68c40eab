#include "addon/bindings.h"
#include "addon/thread_id.h"
#include "cuda/loader.h"
#include "software/software_device.h"

namespace cistern {
namespace {

enum : int { kCudaBackend = 0, kSoftwareBackend = 1 };

bool ReadCall(const Arguments& arguments, int index, Call* call) {
  std::string name;
  if (!arguments.String(index, &name)) return false;
  for (int number = 0; number < kCallCount; ++number) {
    if (name != kCallNames[number]) continue;
    *call = static_cast<Call>(number);
    return true;
  }
  return false;
}

}  // namespace

Status OpenBackend(Environment& environment, Arguments& arguments) {
  int kind;
  if (!arguments.Int(0, &kind) || (kind != kCudaBackend && kind != kSoftwareBackend)) return kInvalidArgument;
  const DriverTable* table = kind == kCudaBackend ? cuda::Load().table : &software::Table();
  if (table == nullptr) return kNoBackend;
  const Status status = environment.OpenBackend(table);
  if (status == kSuccess) environment.ReapOrphans();
  return status;
}

Status CudaUnavailableReason(Environment&, Arguments& arguments) {
  const std::string reason = cuda::Load().reason;
  napi_create_string_utf8(arguments.env(), reason.data(), reason.size(), &arguments.result);
  return kSuccess;
}

Status ConfigureSoftware(Environment&, Arguments& arguments) {
  std::uint64_t total_bytes;
  int device_count;
  bool is_strict;
  if (!arguments.Integer(0, &total_bytes) || !arguments.Int(1, &device_count) || device_count < 0) return kInvalidArgument;
  const bool sets_strict = arguments.Boolean(2, &is_strict);
  const Status status = software::Configure(total_bytes, device_count);
  if (status == kSuccess && sets_strict) software::SetStrict(is_strict);
  return status;
}

Status SetLatency(Environment&, Arguments& arguments) {
  Call call;
  std::uint64_t nanoseconds;
  if (!ReadCall(arguments, 0, &call) || !arguments.Integer(1, &nanoseconds)) return kInvalidArgument;
  software::SetLatency(call, nanoseconds);
  return kSuccess;
}

Status FailCall(Environment& environment, Arguments& arguments) {
  Call call;
  std::uint64_t nth;
  int status;
  if (!ReadCall(arguments, 0, &call) || !arguments.Integer(1, &nth) || !arguments.Int(2, &status)) return kInvalidArgument;
  environment.Out(1, software::FailCall(call, nth, status) ? 1 : 0);
  return kSuccess;
}

Status FailCallAfter(Environment&, Arguments& arguments) {
  Call first, call;
  std::uint64_t nth;
  int status;
  if (!ReadCall(arguments, 0, &first) || !ReadCall(arguments, 1, &call)) return kInvalidArgument;
  if (!arguments.Integer(2, &nth) || !arguments.Int(3, &status)) return kInvalidArgument;
  software::FailCallAfter(first, call, nth, status);
  return kSuccess;
}

Status DriverVersion(Environment& environment, Arguments&) {
  if (environment.driver == nullptr) return kNoBackend;
  int version = 0;
  const Status status = environment.Counted<Call::kDriverGetVersion>(&version);
  if (status == kSuccess) environment.Out(1, version);
  return status;
}

Status ThreadId(Environment& environment, Arguments&) {
  environment.Out(1, static_cast<double>(CurrentThreadId()));
  return kSuccess;
}

}  // namespace cistern
