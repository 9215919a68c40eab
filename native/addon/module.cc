// The value that `require` of the addon returns: one property for each member of NativeBinding.

#include <type_traits>

#include "addon/bindings.h"
#include "platform/library.h"

namespace cistern {
namespace {

// A hot function is raw Node-API, since it must not pay for what a Napi::CallbackInfo reads ahead:
// docs/design/001.
template <auto function>
napi_value CallHot(napi_env env, napi_callback_info info) {
  void* data = nullptr;
  napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &data);
  Environment& environment = *static_cast<Environment*>(data);
  environment.calls += 1;
  environment.Out(0, Guarded([&] { return function(environment); }));
  return nullptr;
}

template <auto function>
Napi::Value CallCold(const Napi::CallbackInfo& info) {
  Environment& environment = *static_cast<Environment*>(info.Data());
  environment.calls += 1;
  Napi::Value result;
  environment.Out(0, Guarded([&] {
                    if constexpr (std::is_invocable_v<decltype(function), Environment&, const Napi::CallbackInfo&>) {
                      return function(environment, info);
                    } else {
                      return function(environment, info, &result);
                    }
                  }));
  return result;
}

template <auto function>
Napi::Function Hot(Napi::Env env, const char* name, Environment* environment) {
  napi_value value;
  const napi_status status = napi_create_function(env, name, NAPI_AUTO_LENGTH, CallHot<function>, environment, &value);
  if (status != napi_ok) throw Napi::Error::New(env);
  return Napi::Function(env, value);
}

template <auto function>
Napi::Function Cold(Napi::Env env, const char* name, Environment* environment) {
  return Napi::Function::New<CallCold<function>>(env, name, environment);
}

struct Function {
  const char* name;
  Napi::Function (*create)(Napi::Env env, const char* name, Environment* environment);
};

constexpr Function kFunctions[] = {
    {"initialize", Cold<Initialize>},
    {"openBackend", Cold<OpenBackend>},
    {"cudaUnavailableReason", Cold<CudaUnavailableReason>},
    {"driverTable", Cold<DriverTableAddress>},
    {"missingDriverFunctions", Cold<MissingDriverFunctions>},
    {"configureSoftware", Cold<ConfigureSoftware>},
    {"managedActivity", Cold<ManagedActivity>},
    {"resetManagedActivity", Cold<ResetManagedActivity>},
    {"residentBytes", Cold<ResidentBytes>},
    {"accessFromHost", Cold<AccessFromHost>},
    {"beginManagedMoves", Cold<BeginManagedMoves>},
    {"takeManagedMoves", Cold<TakeManagedMoves>},
    {"endManagedMoves", Cold<EndManagedMoves>},
    {"setLatency", Cold<SetLatency>},
    {"failCall", Cold<FailCall>},
    {"failCallAfter", Cold<FailCallAfter>},
    {"liveStreams", Cold<LiveStreams>},
    {"driverVersion", Cold<DriverVersion>},
    {"statusName", Cold<StatusName>},
    {"statusDescription", Cold<StatusDescription>},
    {"threadId", Cold<ThreadId>},
    {"onKeptOrphans", Cold<OnKeptOrphans>},
    {"readKeptOrphans", Cold<ReadKeptOrphans>},
    {"deviceCount", Cold<DeviceCount>},
    {"deviceName", Cold<DeviceName>},
    {"deviceUuid", Cold<DeviceUuid>},
    {"deviceTotalBytes", Cold<DeviceTotalBytes>},
    {"deviceAttribute", Cold<DeviceAttribute>},
    {"deviceStreamPriorityRange", Cold<DeviceStreamPriorityRange>},
    {"deviceMemoryInfo", Cold<DeviceMemoryInfo>},
    {"deviceIsInUse", Cold<DeviceIsInUse>},
    {"openNvml", Cold<OpenNvml>},
    {"nvmlDevice", Cold<NvmlDevice>},
    {"openToolMemory", Cold<OpenToolMemory>},
    {"tellToolMemory", Cold<TellToolMemory>},
    {"enterAccountOutside", Cold<EnterAccountOutside>},
    {"leaveAccountOutside", Cold<LeaveAccountOutside>},
    {"stepProcess", Cold<StepProcess>},
    {"beginProcessSleep", Cold<BeginProcessSleep>},
    {"noteProcessAsleep", Cold<NoteProcessAsleep>},
    {"endProcessSleep", Cold<EndProcessSleep>},
    {"synchronizeDevice", Cold<SynchronizeDevice>},
    {"canAccessPeer", Cold<CanAccessPeer>},
    {"enablePeerAccess", Cold<EnablePeerAccess>},
    {"disablePeerAccess", Cold<DisablePeerAccess>},
    {"createStream", Cold<CreateStream>},
    {"wrapStream", Cold<WrapStream>},
    {"releaseStream", Cold<ReleaseStream>},
    {"streamId", Cold<StreamId>},
    {"streamAddress", Cold<StreamAddress>},
    {"streamInfo", Cold<StreamInfo>},
    {"synchronizeStream", Cold<SynchronizeStream>},
    {"queryStream", Hot<QueryStream>},
    {"streamCompletion", Cold<StreamCompletion>},
    {"launchHostFunction", Cold<LaunchHostFunction>},
    {"runHostFunctions", Cold<RunHostFunctions>},
    {"waitForHostFunction", Cold<WaitForHostFunction>},
    {"outstandingHostFunctions", Hot<OutstandingHostFunctions>},
    {"releaseAllStalls", Cold<ReleaseAllStalls>},
    {"holdStream", Cold<HoldStream>},
    {"releaseHold", Cold<ReleaseHold>},
    {"beginCapture", Cold<BeginCapture>},
    {"endCapture", Cold<EndCapture>},
    {"abandonCapture", Cold<AbandonCapture>},
    {"captureStatus", Cold<CaptureStatus>},
    {"destroyGraph", Cold<DestroyGraph>},
    {"instantiateGraph", Cold<InstantiateGraph>},
    {"destroyGraphExec", Cold<DestroyGraphExec>},
    {"updateGraphExec", Cold<UpdateGraphExec>},
    {"launchGraph", Cold<LaunchGraph>},
    {"uploadGraph", Cold<UploadGraph>},
    {"addChildGraph", Cold<AddChildGraph>},
    {"countGraphNodes", Cold<CountGraphNodes>},
    {"writeGraph", Cold<WriteGraph>},
    {"retainInCapture", Cold<RetainInCapture>},
    {"retainInGraph", Cold<RetainInGraph>},
    {"onEndedParts", Cold<OnEndedParts>},
    {"takeEndedPart", Hot<TakeEndedPart>},
    {"createEvent", Cold<CreateEvent>},
    {"destroyEvent", Cold<DestroyEvent>},
    {"recordEvent", Hot<RecordEvent>},
    {"waitEvent", Hot<WaitEvent>},
    {"queryEvent", Hot<QueryEvent>},
    {"synchronizeEvent", Cold<SynchronizeEvent>},
    {"eventCompletion", Cold<EventCompletion>},
    {"elapsedMilliseconds", Cold<ElapsedMilliseconds>},
    {"allocate", Hot<Allocate>},
    {"deallocate", Hot<Deallocate>},
    {"allocateAsync", Hot<AllocateAsync>},
    {"deallocateAsync", Hot<DeallocateAsync>},
    {"createPool", Cold<CreatePool>},
    {"exportTensor", Cold<ExportTensor>},
    {"inspectTensor", Cold<InspectTensor>},
    {"takeTensor", Cold<TakeTensor>},
    {"releaseTensor", Cold<ReleaseTensor>},
    {"openPool", Cold<OpenPool>},
    {"makePoolCurrent", Cold<MakePoolCurrent>},
    {"poolAddress", Cold<PoolAddress>},
    {"destroyPool", Cold<DestroyPool>},
    {"poolAllocations", Cold<PoolAllocations>},
    {"trimPool", Cold<TrimPool>},
    {"poolAttribute", Cold<PoolAttribute>},
    {"setPoolAttribute", Cold<SetPoolAttribute>},
    {"reserveAddresses", Cold<ReserveAddresses>},
    {"freeAddresses", Cold<FreeAddresses>},
    {"allocateVirtual", Cold<AllocateVirtual>},
    {"deallocateVirtual", Cold<DeallocateVirtual>},
    {"liveExtents", Cold<LiveExtents>},
    {"absentBytes", Cold<AbsentBytes>},
    {"awaitBeforeSleep", Cold<AwaitBeforeSleep>},
    {"unmapVirtual", Cold<UnmapVirtual>},
    {"mapVirtual", Cold<MapVirtual>},
    {"mapLasting", Cold<MapLasting>},
    {"protectLasting", Cold<ProtectLasting>},
    {"listenLocal", Cold<ListenLocal>},
    {"connectLocal", Cold<ConnectLocal>},
    {"acceptLocal", Cold<AcceptLocal>},
    {"sendLocal", Cold<SendLocal>},
    {"receiveLocal", Cold<ReceiveLocal>},
    {"pollLocal", Cold<PollLocal>},
    {"closeDescriptor", Cold<CloseDescriptor>},
    {"copy", Cold<Copy>},
    {"copyFromHost", Cold<CopyFromHost>},
    {"copyToHostSync", Cold<CopyToHostSync>},
    {"copyToHost", Cold<CopyToHost>},
    {"set", Cold<Set>},
    {"advise", Cold<Advise>},
    {"prefetch", Cold<Prefetch>},
    {"rangeAttribute", Cold<RangeAttribute>},
    {"viewFromHost", Cold<ViewFromHost>},
    {"endView", Cold<EndView>},
    {"pointerInfo", Cold<PointerInfo>},
    {"beginOrderCheck", Cold<BeginOrderCheck>},
    {"endOrderCheck", Cold<EndOrderCheck>},
    {"takeOrderReports", Cold<TakeOrderReports>},
    {"touch", Cold<Touch>},
    {"declareAllocation", Cold<DeclareAllocation>},
    {"declareFree", Cold<DeclareFree>},
    {"onReturned", Cold<OnReturned>},
    {"onCollectionRequest", Cold<OnCollectionRequest>},
    {"askToCollect", Cold<AskToCollect>},
    {"awaitCollections", Cold<AwaitCollections>},
    {"answerCollectionRequest", Cold<AnswerCollectionRequest>},
    {"onKeptRequest", Cold<OnKeptRequest>},
    {"noteKept", Cold<NoteKept>},
    {"askForKept", Cold<AskForKept>},
    {"keptElsewhere", Cold<KeptElsewhere>},
    {"handOver", Cold<HandOverMemory>},
    {"handOverInfo", Cold<HandOverInfo>},
    {"attachHandOver", Cold<AttachHandOver>},
    {"handOn", Cold<HandOn>},
    {"giveBack", Cold<GiveBack>},
    {"discardMessage", Cold<DiscardMessage>},
    {"recallHandOver", Cold<RecallHandOver>},
    {"handOverStream", Cold<HandOverStream>},
    {"handOverEvent", Cold<HandOverEvent>},
    {"attachStream", Cold<AttachStream>},
    {"attachEvent", Cold<AttachEvent>},
    {"takeReturned", Cold<TakeReturned>},
    {"followReturned", Cold<FollowReturned>},
    {"onArenaRequest", Cold<OnArenaRequest>},
    {"openArena", Cold<OpenArena>},
    {"closeArena", Cold<CloseArena>},
    {"allocateSuperblocks", Cold<AllocateSuperblocks>},
    {"freeSuperblocks", Cold<FreeSuperblocks>},
    {"arenaInfo", Cold<ArenaInfo>},
    {"askForSuperblocks", Cold<AskForSuperblocks>},
    {"isAskedForSuperblocks", Hot<IsAskedForSuperblocks>},
    {"takeArenaRequest", Cold<TakeArenaRequest>},
    {"answerArenaRequest", Cold<AnswerArenaRequest>},
    {"openThreadSafeArena", Cold<OpenThreadSafeArena>},
    {"closeThreadSafeArena", Cold<CloseThreadSafeArena>},
    {"allocateThreadSafe", Hot<AllocateThreadSafe>},
    {"deallocateThreadSafe", Hot<DeallocateThreadSafe>},
    {"allocateManyThreadSafe", Cold<AllocateManyThreadSafe>},
    {"deallocateManyThreadSafe", Cold<DeallocateManyThreadSafe>},
    {"checkManyThreadSafe", Cold<CheckManyThreadSafe>},
    {"claimThreadSafe", Cold<ClaimThreadSafe>},
    {"threadSafeStatistics", Cold<ThreadSafeStatistics>},
    {"resetThreadSafePeak", Cold<ResetThreadSafePeak>},
    {"threadSafeTable", Cold<ThreadSafeTable>},
    {"openShare", Cold<OpenShare>},
    {"closeShare", Cold<CloseShare>},
    {"countAllocation", Hot<CountAllocation>},
    {"countFree", Hot<CountFree>},
    {"countFailure", Cold<CountFailure>},
    {"readShare", Cold<ReadShare>},
    {"settleShare", Cold<SettleShare>},
    {"onAdmissions", Cold<OnAdmissions>},
    {"openAdmission", Cold<OpenAdmission>},
    {"closeAdmission", Cold<CloseAdmission>},
    {"takeUnpromised", Hot<TakeUnpromised>},
    {"giveUnpromised", Hot<GiveUnpromised>},
    {"askForAdmission", Cold<AskForAdmission>},
    {"holdAdmission", Cold<HoldAdmission>},
    {"endAdmissionHold", Cold<EndAdmissionHold>},
    {"withdrawAdmission", Cold<WithdrawAdmission>},
    {"shrinkAdmission", Cold<ShrinkAdmission>},
    {"endAdmission", Cold<EndAdmission>},
    {"stopAdmission", Cold<StopAdmission>},
    {"takeAdmission", Cold<TakeAdmission>},
    {"readAdmission", Cold<ReadAdmission>},
    {"validateAdmission", Cold<ValidateAdmission>},
    {"settleAdmission", Cold<SettleAdmission>},
    {"exportMemory", Cold<ExportMemory>},
    {"refreshExport", Cold<RefreshExport>},
    {"noticeEndedImporters", Cold<NoticeEndedImporters>},
    {"exportIsUsed", Cold<ExportIsUsed>},
    {"closeExport", Cold<CloseExport>},
    {"reopenExport", Cold<ReopenExport>},
    {"endExport", Cold<EndExport>},
    {"openImport", Cold<OpenImport>},
    {"closeImport", Cold<CloseImport>},
    {"watch", Cold<Watch>},
    {"unwatch", Cold<Unwatch>},
    {"collectedSlots", Cold<CollectedSlots>},
    {"copyTogether", Cold<CopyTogether>},
};

Napi::Array FunctionNames(Napi::Env env) {
  const Napi::Array names = Napi::Array::New(env, kCallCount);
  for (int index = 0; index < kCallCount; ++index) names.Set(static_cast<std::uint32_t>(index), kCallNames[index]);
  names.Freeze();
  return names;
}

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  // Node unloads an addon with the last environment that uses it, while threads of the devices may
  // still be in its code.
  KeepLibraryLoaded();
  try {
    Environment* environment = new Environment(env);
    env.SetInstanceData(environment);
    environment->Start();
    for (const Function& function : kFunctions) exports.Set(function.name, function.create(env, function.name, environment));
    exports.Set("functionNames", FunctionNames(env));
    exports.Set("version", CISTERN_VERSION);
    return exports;
  } catch (const std::bad_alloc&) {
    throw Napi::Error::New(env, "there is not enough host memory for the state of cistern's addon");
  } catch (const Napi::Error&) {
    throw Napi::Error::New(env, "cistern's addon could not be set up: Node-API refused a call");
  }
}

}  // namespace

Status Initialize(Environment& environment, const Napi::CallbackInfo& info) {
  Napi::Float64Array mailbox;
  Napi::Float64Array counters;
  if (!ReadArray(info[0], &mailbox) || mailbox.ElementLength() < Environment::kMailboxLength) return kInvalidArgument;
  if (!ReadArray(info[1], &counters) || counters.ElementLength() < Environment::kCounterCount) return kInvalidArgument;
  environment.Bind(mailbox, counters);
  return kSuccess;
}

NODE_API_MODULE(cistern, Init)

}  // namespace cistern
