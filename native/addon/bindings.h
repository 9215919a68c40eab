// The functions of the addon. NativeBinding in src/driver/native.ts documents each one.
//
// A hot function takes its inputs from the mailbox, from index 0 on; the others take arguments. A
// function that gives JavaScript more than numbers stores that in `result`. The returned status
// becomes mailbox[0].
#ifndef CISTERN_ADDON_BINDINGS_H_
#define CISTERN_ADDON_BINDINGS_H_

#include <new>
#include <system_error>

#include "addon/arguments.h"
#include "addon/environment.h"

namespace cistern {

// The live stream that an argument names.
inline Status FindStream(Environment& environment, const Napi::Value& value, StreamEntry** stream) {
  double handle;
  return ReadNumber(value, &handle) ? environment.streams.Find(handle, stream) : kInvalidArgument;
}

// Runs a function's body. No C++ exception may pass into JavaScript's frames. cistern throws none,
// but the standard library throws if the host has no memory left or cannot start more threads, and
// node-addon-api throws if Node-API refuses a call, as it does while a worker is being terminated.
template <typename Body>
auto Guarded(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return kHostOutOfMemory;
  } catch (const std::system_error&) {
    return kHostOutOfMemory;
  } catch (const Napi::Error&) {
    return kInvalidArgument;
  }
}

// module.cc
Status Initialize(Environment& environment, const Napi::CallbackInfo& info);

// backend.cc
Status OpenBackend(Environment& environment, const Napi::CallbackInfo& info);
Status CudaUnavailableReason(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status DriverTableAddress(Environment& environment, const Napi::CallbackInfo& info);
Status MissingDriverFunctions(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status ConfigureSoftware(Environment& environment, const Napi::CallbackInfo& info);
Status ManagedActivity(Environment& environment, const Napi::CallbackInfo& info);
Status ResetManagedActivity(Environment& environment, const Napi::CallbackInfo& info);
Status ResidentBytes(Environment& environment, const Napi::CallbackInfo& info);
Status AccessFromHost(Environment& environment, const Napi::CallbackInfo& info);
Status BeginManagedMoves(Environment& environment, const Napi::CallbackInfo& info);
Status TakeManagedMoves(Environment& environment, const Napi::CallbackInfo& info);
Status EndManagedMoves(Environment& environment, const Napi::CallbackInfo& info);
Status SetLatency(Environment& environment, const Napi::CallbackInfo& info);
Status FailCall(Environment& environment, const Napi::CallbackInfo& info);
Status FailCallAfter(Environment& environment, const Napi::CallbackInfo& info);
Status LiveStreams(Environment& environment, const Napi::CallbackInfo& info);
Status DriverVersion(Environment& environment, const Napi::CallbackInfo& info);
Status ThreadId(Environment& environment, const Napi::CallbackInfo& info);

// nvml.cc
Status OpenNvml(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status NvmlDevice(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);

// tool_memory.cc
Status OpenToolMemory(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status TellToolMemory(Environment& environment, const Napi::CallbackInfo& info);

// outside.cc
Status EnterAccountOutside(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status LeaveAccountOutside(Environment& environment, const Napi::CallbackInfo& info);

// process_sleep.cc
Status StepProcess(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status BeginProcessSleep(Environment& environment, const Napi::CallbackInfo& info);
Status NoteProcessAsleep(Environment& environment, const Napi::CallbackInfo& info);
Status EndProcessSleep(Environment& environment, const Napi::CallbackInfo& info);

Status OnKeptOrphans(Environment& environment, const Napi::CallbackInfo& info);
Status ReadKeptOrphans(Environment& environment, const Napi::CallbackInfo& info);

// status.cc
Status StatusName(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status StatusDescription(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);

// devices.cc
Status DeviceCount(Environment& environment, const Napi::CallbackInfo& info);
Status DeviceName(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status DeviceUuid(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status DeviceTotalBytes(Environment& environment, const Napi::CallbackInfo& info);
Status DeviceAttribute(Environment& environment, const Napi::CallbackInfo& info);
Status DeviceStreamPriorityRange(Environment& environment, const Napi::CallbackInfo& info);
Status DeviceMemoryInfo(Environment& environment, const Napi::CallbackInfo& info);
Status DeviceIsInUse(Environment& environment, const Napi::CallbackInfo& info);
Status SynchronizeDevice(Environment& environment, const Napi::CallbackInfo& info);

// streams.cc
Status CreateStream(Environment& environment, const Napi::CallbackInfo& info);
Status WrapStream(Environment& environment, const Napi::CallbackInfo& info);
Status ReleaseStream(Environment& environment, const Napi::CallbackInfo& info);
Status StreamId(Environment& environment, const Napi::CallbackInfo& info);
Status StreamAddress(Environment& environment, const Napi::CallbackInfo& info);
Status StreamInfo(Environment& environment, const Napi::CallbackInfo& info);
Status SynchronizeStream(Environment& environment, const Napi::CallbackInfo& info);
Status QueryStream(Environment& environment);

// host_functions.cc
Status LaunchHostFunction(Environment& environment, const Napi::CallbackInfo& info);
Status RunHostFunctions(Environment& environment, const Napi::CallbackInfo& info);
Status WaitForHostFunction(Environment& environment, const Napi::CallbackInfo& info);
Status OutstandingHostFunctions(Environment& environment);
Status ReleaseAllStalls(Environment& environment, const Napi::CallbackInfo& info);
Status HoldStream(Environment& environment, const Napi::CallbackInfo& info);
Status ReleaseHold(Environment& environment, const Napi::CallbackInfo& info);

// events.cc
Status CreateEvent(Environment& environment, const Napi::CallbackInfo& info);
Status DestroyEvent(Environment& environment, const Napi::CallbackInfo& info);
Status RecordEvent(Environment& environment);
Status WaitEvent(Environment& environment);
Status QueryEvent(Environment& environment);
Status SynchronizeEvent(Environment& environment, const Napi::CallbackInfo& info);
Status ElapsedMilliseconds(Environment& environment, const Napi::CallbackInfo& info);

// completions.cc
Status StreamCompletion(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status EventCompletion(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);

// captures.cc
Status BeginCapture(Environment& environment, const Napi::CallbackInfo& info);
Status EndCapture(Environment& environment, const Napi::CallbackInfo& info);
Status AbandonCapture(Environment& environment, const Napi::CallbackInfo& info);
Status CaptureStatus(Environment& environment, const Napi::CallbackInfo& info);

// graphs.cc
Status DestroyGraph(Environment& environment, const Napi::CallbackInfo& info);
Status InstantiateGraph(Environment& environment, const Napi::CallbackInfo& info);
Status DestroyGraphExec(Environment& environment, const Napi::CallbackInfo& info);
Status UpdateGraphExec(Environment& environment, const Napi::CallbackInfo& info);
Status LaunchGraph(Environment& environment, const Napi::CallbackInfo& info);
Status UploadGraph(Environment& environment, const Napi::CallbackInfo& info);
Status AddChildGraph(Environment& environment, const Napi::CallbackInfo& info);
Status CountGraphNodes(Environment& environment, const Napi::CallbackInfo& info);
Status WriteGraph(Environment& environment, const Napi::CallbackInfo& info);

// user_objects.cc
Status RetainInCapture(Environment& environment, const Napi::CallbackInfo& info);
Status RetainInGraph(Environment& environment, const Napi::CallbackInfo& info);
Status OnEndedParts(Environment& environment, const Napi::CallbackInfo& info);
Status TakeEndedPart(Environment& environment);

// memory.cc
Status Allocate(Environment& environment);
Status Deallocate(Environment& environment);

// dlpack.cc
Status ExportTensor(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status InspectTensor(Environment& environment, const Napi::CallbackInfo& info);
Status TakeTensor(Environment& environment, const Napi::CallbackInfo& info);
Status ReleaseTensor(Environment& environment, const Napi::CallbackInfo& info);

// pools.cc
Status AllocateAsync(Environment& environment);
Status DeallocateAsync(Environment& environment);
Status CreatePool(Environment& environment, const Napi::CallbackInfo& info);
Status OpenPool(Environment& environment, const Napi::CallbackInfo& info);
Status MakePoolCurrent(Environment& environment, const Napi::CallbackInfo& info);
Status PoolAddress(Environment& environment, const Napi::CallbackInfo& info);
Status DestroyPool(Environment& environment, const Napi::CallbackInfo& info);
Status PoolAllocations(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status TrimPool(Environment& environment, const Napi::CallbackInfo& info);
Status PoolAttribute(Environment& environment, const Napi::CallbackInfo& info);
Status SetPoolAttribute(Environment& environment, const Napi::CallbackInfo& info);

// virtual_memory.cc
Status ReserveAddresses(Environment& environment, const Napi::CallbackInfo& info);
Status FreeAddresses(Environment& environment, const Napi::CallbackInfo& info);
Status AllocateVirtual(Environment& environment, const Napi::CallbackInfo& info);
Status DeallocateVirtual(Environment& environment, const Napi::CallbackInfo& info);
Status LiveExtents(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status AbsentBytes(Environment& environment, const Napi::CallbackInfo& info);
Status AwaitBeforeSleep(Environment& environment, const Napi::CallbackInfo& info);
Status UnmapVirtual(Environment& environment, const Napi::CallbackInfo& info);
Status MapVirtual(Environment& environment, const Napi::CallbackInfo& info);

// lasting_memory.cc
Status MapLasting(Environment& environment, const Napi::CallbackInfo& info);
Status ProtectLasting(Environment& environment, const Napi::CallbackInfo& info);

// local_sockets.cc
Status ListenLocal(Environment& environment, const Napi::CallbackInfo& info);
Status ConnectLocal(Environment& environment, const Napi::CallbackInfo& info);
Status AcceptLocal(Environment& environment, const Napi::CallbackInfo& info);
Status SendLocal(Environment& environment, const Napi::CallbackInfo& info);
Status ReceiveLocal(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status PollLocal(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status CloseDescriptor(Environment& environment, const Napi::CallbackInfo& info);

// peers.cc
Status CanAccessPeer(Environment& environment, const Napi::CallbackInfo& info);
Status EnablePeerAccess(Environment& environment, const Napi::CallbackInfo& info);
Status DisablePeerAccess(Environment& environment, const Napi::CallbackInfo& info);

// copies.cc
Status Copy(Environment& environment, const Napi::CallbackInfo& info);
Status CopyFromHost(Environment& environment, const Napi::CallbackInfo& info);
Status CopyToHostSync(Environment& environment, const Napi::CallbackInfo& info);
Status CopyToHost(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status Set(Environment& environment, const Napi::CallbackInfo& info);

// managed_memory.cc
Status Advise(Environment& environment, const Napi::CallbackInfo& info);
Status Prefetch(Environment& environment, const Napi::CallbackInfo& info);
Status RangeAttribute(Environment& environment, const Napi::CallbackInfo& info);

// host_views.cc
Status ViewFromHost(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status EndView(Environment& environment, const Napi::CallbackInfo& info);

// ranges.cc
Status PointerInfo(Environment& environment, const Napi::CallbackInfo& info);

// order.cc
Status BeginOrderCheck(Environment& environment, const Napi::CallbackInfo& info);
Status EndOrderCheck(Environment& environment, const Napi::CallbackInfo& info);
Status TakeOrderReports(Environment& environment, const Napi::CallbackInfo& info);
Status Touch(Environment& environment, const Napi::CallbackInfo& info);
Status DeclareAllocation(Environment& environment, const Napi::CallbackInfo& info);
Status DeclareFree(Environment& environment, const Napi::CallbackInfo& info);

// hand_overs.cc
Status OnReturned(Environment& environment, const Napi::CallbackInfo& info);
Status OnCollectionRequest(Environment& environment, const Napi::CallbackInfo& info);
Status AskToCollect(Environment& environment, const Napi::CallbackInfo& info);
Status AwaitCollections(Environment& environment, const Napi::CallbackInfo& info);
Status AnswerCollectionRequest(Environment& environment, const Napi::CallbackInfo& info);
Status HandOverMemory(Environment& environment, const Napi::CallbackInfo& info);
Status HandOverInfo(Environment& environment, const Napi::CallbackInfo& info);
Status AttachHandOver(Environment& environment, const Napi::CallbackInfo& info);
Status HandOn(Environment& environment, const Napi::CallbackInfo& info);
Status GiveBack(Environment& environment, const Napi::CallbackInfo& info);
Status DiscardMessage(Environment& environment, const Napi::CallbackInfo& info);
Status RecallHandOver(Environment& environment, const Napi::CallbackInfo& info);
Status HandOverStream(Environment& environment, const Napi::CallbackInfo& info);
Status HandOverEvent(Environment& environment, const Napi::CallbackInfo& info);
Status AttachStream(Environment& environment, const Napi::CallbackInfo& info);
Status AttachEvent(Environment& environment, const Napi::CallbackInfo& info);
Status TakeReturned(Environment& environment, const Napi::CallbackInfo& info);
Status FollowReturned(Environment& environment, const Napi::CallbackInfo& info);

// kept_memory.cc
Status OnKeptRequest(Environment& environment, const Napi::CallbackInfo& info);
Status NoteKept(Environment& environment, const Napi::CallbackInfo& info);
Status AskForKept(Environment& environment, const Napi::CallbackInfo& info);
Status KeptElsewhere(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);

// global_arena.cc
Status OnArenaRequest(Environment& environment, const Napi::CallbackInfo& info);
Status OpenArena(Environment& environment, const Napi::CallbackInfo& info);
Status CloseArena(Environment& environment, const Napi::CallbackInfo& info);
Status AllocateSuperblocks(Environment& environment, const Napi::CallbackInfo& info);
Status FreeSuperblocks(Environment& environment, const Napi::CallbackInfo& info);
Status ArenaInfo(Environment& environment, const Napi::CallbackInfo& info);
Status AskForSuperblocks(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result);
Status IsAskedForSuperblocks(Environment& environment);
Status TakeArenaRequest(Environment& environment, const Napi::CallbackInfo& info);
Status AnswerArenaRequest(Environment& environment, const Napi::CallbackInfo& info);

// thread_safe_arenas.cc
Status OpenThreadSafeArena(Environment& environment, const Napi::CallbackInfo& info);
Status CloseThreadSafeArena(Environment& environment, const Napi::CallbackInfo& info);
Status AllocateThreadSafe(Environment& environment);
Status DeallocateThreadSafe(Environment& environment);
Status AllocateManyThreadSafe(Environment& environment, const Napi::CallbackInfo& info);
Status DeallocateManyThreadSafe(Environment& environment, const Napi::CallbackInfo& info);
Status CheckManyThreadSafe(Environment& environment, const Napi::CallbackInfo& info);
Status ClaimThreadSafe(Environment& environment, const Napi::CallbackInfo& info);
Status ThreadSafeStatistics(Environment& environment, const Napi::CallbackInfo& info);
Status ResetThreadSafePeak(Environment& environment, const Napi::CallbackInfo& info);
Status ThreadSafeTable(Environment& environment, const Napi::CallbackInfo& info);

// shared_counts.cc
Status OpenShare(Environment& environment, const Napi::CallbackInfo& info);
Status CloseShare(Environment& environment, const Napi::CallbackInfo& info);
Status CountAllocation(Environment& environment);
Status CountFree(Environment& environment);
Status CountFailure(Environment& environment, const Napi::CallbackInfo& info);
Status ReadShare(Environment& environment, const Napi::CallbackInfo& info);
Status SettleShare(Environment& environment, const Napi::CallbackInfo& info);

// admission.cc
Status OnAdmissions(Environment& environment, const Napi::CallbackInfo& info);
Status OpenAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status CloseAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status TakeUnpromised(Environment& environment);
Status GiveUnpromised(Environment& environment);
Status AskForAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status HoldAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status EndAdmissionHold(Environment& environment, const Napi::CallbackInfo& info);
Status WithdrawAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status ShrinkAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status EndAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status StopAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status TakeAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status ReadAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status ValidateAdmission(Environment& environment, const Napi::CallbackInfo& info);
Status SettleAdmission(Environment& environment, const Napi::CallbackInfo& info);

// ipc.cc
Status ExportMemory(Environment& environment, const Napi::CallbackInfo& info);
Status RefreshExport(Environment& environment, const Napi::CallbackInfo& info);
Status NoticeEndedImporters(Environment& environment, const Napi::CallbackInfo& info);
Status ExportIsUsed(Environment& environment, const Napi::CallbackInfo& info);
Status CloseExport(Environment& environment, const Napi::CallbackInfo& info);
Status ReopenExport(Environment& environment, const Napi::CallbackInfo& info);
Status EndExport(Environment& environment, const Napi::CallbackInfo& info);
Status OpenImport(Environment& environment, const Napi::CallbackInfo& info);
Status CloseImport(Environment& environment, const Napi::CallbackInfo& info);

// copies_together.cc
Status CopyTogether(Environment& environment, const Napi::CallbackInfo& info);

// weak_references.cc
Status Watch(Environment& environment, const Napi::CallbackInfo& info);
Status Unwatch(Environment& environment, const Napi::CallbackInfo& info);
Status CollectedSlots(Environment& environment, const Napi::CallbackInfo& info);

}  // namespace cistern

#endif  // CISTERN_ADDON_BINDINGS_H_
