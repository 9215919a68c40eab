#include <algorithm>
#include <memory>
#include <utility>

#include "software/calls.h"
#include "software/legacy_order.h"
#include "software/resolve.h"
#include "software/settings.h"
#include "software/transfer.h"

namespace cistern::software::calls {
namespace {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

// What a captured stream or event stands for will only run when a graph is launched, so nobody can
// wait for it, or ask whether it has run.
Status CheckWaitFor(StreamState& stream) {
  return IsCapturing(stream) ? RefuseInCapture(stream, kErrorCaptureUnsupported) : CheckUnsafeCall();
}

Status CheckWaitFor(const EventState& event) {
  if (IsCaptured(event)) return RefuseWaitForCaptured(event);
  return CheckUnsafeCall();
}

// Reading what a stream is counts as potentially unsafe while the stream is captured.
Status CheckRead(const StreamState& stream) { return IsCapturing(stream) ? CheckUnsafeCall() : kSuccess; }

// NVIDIA's driver refuses these in every mode.
Status CheckFixed(StreamState& stream) {
  return IsCapturing(stream) ? RefuseInCapture(stream, kErrorCaptureUnsupported) : Status{kSuccess};
}

}  // namespace

Status CtxGetStreamPriorityRange(int* least, int* greatest) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return kSuccess;
}

Status StreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (stream == nullptr || flags > kStreamNonBlocking) return kErrorInvalidValue;
  StreamState* state;
  status = CreateStream(*device, StreamRole::kCreated, flags, std::clamp(priority, kGreatestPriority, kLeastPriority), &state);
  if (status == kSuccess) *stream = HandleOf<Stream>(*state);
  return status;
}

Status StreamDestroy(Stream stream) {
  StreamState* state = stream_table.Find(HandleBits(stream));
  if (state == nullptr || state->role != StreamRole::kCreated) return kErrorInvalidHandle;
  return CloseStream(*state, HandleBits(stream));
}

Status StreamSynchronize(Stream stream) {
  StreamState* state;
  Status status = ResolveStreamToUse(stream, &state);
  if (status == kSuccess) status = CheckWaitFor(*state);
  if (status != kSuccess) return status;
  Device& device = *state->device;
  if (state->role == StreamRole::kLegacy && device.busy_blocking_streams.load(std::memory_order_acquire) != 0) {
    for (Mark mark : device.PendingMarks(true)) WaitForMark(mark);
  }
  WaitForMark(CurrentMark(*state));
  ReclaimPools(device, Reclaim::kAboveThreshold);
  return kSuccess;
}

Status StreamQuery(Stream stream) {
  StreamState* state;
  Status status = ResolveStreamToUse(stream, &state);
  if (status == kSuccess) status = CheckWaitFor(*state);
  if (status != kSuccess) return status;
  if (!IsIdle(*state)) return kErrorNotReady;
  bool is_behind_others = state->role == StreamRole::kLegacy && state->device->busy_blocking_streams.load(std::memory_order_acquire) != 0;
  return is_behind_others ? kErrorNotReady : kSuccess;
}

Status StreamGetId(Stream stream, unsigned long long* id) {
  StreamState* state;
  Status status = ResolveStream(stream, &state);
  if (status == kSuccess) status = CheckFixed(*state);
  if (status != kSuccess) return status;
  if (id == nullptr) return kErrorInvalidValue;
  // "The Id is unique for the life of the program"; it is doubtful whether that includes the
  // default streams of two devices.
  *id = !IsStrict() || state->role == StreamRole::kCreated ? state->id : state->role == StreamRole::kLegacy ? 1 : 2;
  return kSuccess;
}

Status StreamGetFlags(Stream stream, unsigned* flags) {
  StreamState* state;
  Status status = ResolveStream(stream, &state);
  if (status == kSuccess) status = CheckFixed(*state);
  if (status != kSuccess) return status;
  if (flags == nullptr) return kErrorInvalidValue;
  *flags = state->flags;
  return kSuccess;
}

Status StreamGetCtx(Stream stream, Context* context) {
  StreamState* state;
  Status status = ResolveStream(stream, &state);
  if (status == kSuccess) status = CheckRead(*state);
  if (status != kSuccess) return status;
  if (context == nullptr) return kErrorInvalidValue;
  *context = state->device->context();
  return kSuccess;
}

Status StreamGetPriority(Stream stream, int* priority) {
  StreamState* state;
  Status status = ResolveStream(stream, &state);
  if (status == kSuccess) status = CheckRead(*state);
  if (status != kSuccess) return status;
  if (priority == nullptr) return kErrorInvalidValue;
  *priority = state->priority;
  return kSuccess;
}

Status StreamWaitEvent(Stream stream, Event event, unsigned flags) {
  StreamState* state;
  EventState* event_state;
  Status status = ResolveStreamToUse(stream, &state);
  if (status == kSuccess) status = ResolveEvent(event, &event_state);
  if (status != kSuccess) return status;
  if (flags != 0) return kErrorInvalidValue;
  if (IsCapturing(*state) || IsCaptured(*event_state)) return CaptureWait(*state, *event_state);
  if (event_state->foreign != nullptr) {
    const std::uint64_t recording = event_state->foreign->Latest();
    if (event_state->foreign->IsOver(recording)) return kSuccess;
    return Submit(*state, ForeignWaitWork{event_state->foreign, recording}, nullptr);
  }
  Mark mark = event_state->mark.load(std::memory_order_acquire);
  return mark == 0 ? kSuccess : SubmitWait(*state, mark);
}

Status StreamWaitValue32(Stream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  StreamState* state;
  Status status = ResolveStreamOutsideCapture(stream, &state);
  if (status != kSuccess) return status;
  if (flags != kWaitValueGreaterOrEqual) return kErrorNotSupported;
  AddressKind kind = address % sizeof value == 0 ? Classify(address, sizeof value, false).kind : AddressKind::kInvalid;
  if (kind != AddressKind::kPinned && kind != AddressKind::kDevice) return kErrorInvalidValue;
  ValueWork work{reinterpret_cast<const std::atomic<std::uint32_t>*>(address), value};
  Status ordered = OrderWithLegacy(*state);
  if (ordered != kSuccess || (IsIdle(*state) && work.IsReached())) return ordered;
  return Submit(*state, work, nullptr);
}

Status EventCreate(Event* event, unsigned flags) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  constexpr unsigned kAllFlags = kEventBlockingSync | kEventDisableTiming | kEventInterprocess;
  if (event == nullptr || (flags & ~kAllFlags) != 0) return kErrorInvalidValue;
  if ((flags & kEventInterprocess) != 0 && (flags & kEventDisableTiming) == 0) return kErrorInvalidValue;
  EventState* state;
  status = CreateEvent(*device, flags, &state);
  if (status == kSuccess) *event = HandleOf<Event>(*state);
  return status;
}

Status EventDestroy(Event event) {
  EventState* state;
  Status status = ResolveEvent(event, &state);
  return status == kSuccess ? DestroyEvent(*state, HandleBits(event)) : status;
}

Status EventRecord(Event event, Stream stream) {
  EventState* state;
  StreamState* stream_state;
  Status status = ResolveEvent(event, &state);
  if (status == kSuccess) status = ResolveStreamToUse(stream, &stream_state);
  if (status != kSuccess) return status;
  if (state->device != stream_state->device) return kErrorInvalidHandle;
  return RecordEvent(*state, *stream_state);
}

Status EventQuery(Event event) {
  EventState* state;
  Status status = ResolveEvent(event, &state);
  if (status == kSuccess) status = CheckWaitFor(*state);
  if (status != kSuccess) return status;
  return IsComplete(*state) ? kSuccess : kErrorNotReady;
}

Status EventSynchronize(Event event) {
  EventState* state;
  Status status = ResolveEvent(event, &state);
  if (status == kSuccess) status = CheckWaitFor(*state);
  if (status != kSuccess) return status;
  Device& device = *state->device;
  if (const std::shared_ptr<const ForeignEvent> foreign = state->foreign) foreign->Await(foreign->Latest());
  Mark mark = state->mark.load(std::memory_order_acquire);
  if (mark != 0) WaitForMark(mark);
  ReclaimPools(device, Reclaim::kAboveThreshold);
  return kSuccess;
}

Status EventElapsedTime(float* milliseconds, Event start, Event end) {
  EventState* start_state;
  EventState* end_state;
  Status status = ResolveEvent(start, &start_state);
  if (status == kSuccess) status = ResolveEvent(end, &end_state);
  if (status != kSuccess) return status;
  if (milliseconds == nullptr) return kErrorInvalidValue;
  if (start_state->device != end_state->device) return kErrorInvalidHandle;
  return ElapsedTime(*start_state, *end_state, milliseconds);
}

Status IpcGetEventHandle(IpcEventHandle* handle, Event event) {
  EventState* state;
  Status status = ResolveEvent(event, &state);
  if (status != kSuccess) return status;
  if (handle == nullptr || state->slot == nullptr) return kErrorInvalidValue;
  return ExportEvent(*state->device, state->slot_index, state->generation, handle);
}

Status IpcOpenEventHandle(Event* event, IpcEventHandle handle) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (event == nullptr) return kErrorInvalidValue;
  ForeignEvent foreign;
  status = ImportEvent(handle, &foreign);
  EventState* state;
  if (status == kSuccess) status = OpenForeignEvent(*device, std::move(foreign), &state);
  if (status == kSuccess) *event = HandleOf<Event>(*state);
  return status;
}

Status LaunchHostFunc(Stream stream, HostFunction function, void* user_data) {
  StreamState* state;
  Status status = ResolveStreamToUse(stream, &state);
  if (status != kSuccess) return status;
  if (function == nullptr) return kErrorInvalidValue;
  if (IsCapturing(*state)) return CaptureWork(*state, kNodeHost, HostFunctionWork{function, user_data});
  return Submit(*state, HostFunctionWork{function, user_data}, nullptr);
}

}  // namespace cistern::software::calls
