// What `require` of the addon gives: one property for each member of NativeBinding.

#include <new>
#include <system_error>

#include "addon/bindings.h"

namespace cistern {
namespace {

// No C++ exception may pass into JavaScript's frames. cistern throws none; the standard library does where the host has no memory left or
// may start no more threads.
template <typename Body>
Status Guarded(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return kHostOutOfMemory;
  } catch (const std::system_error&) {
    return kHostOutOfMemory;
  }
}

template <Status (*function)(Environment&)>
napi_value Hot(napi_env env, napi_callback_info info) {
  void* data = nullptr;
  napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &data);
  Environment& environment = *static_cast<Environment*>(data);
  environment.calls += 1;
  environment.Out(0, Guarded([&] { return function(environment); }));
  return nullptr;
}

template <Status (*function)(Environment&, Arguments&)>
napi_value Cold(napi_env env, napi_callback_info info) {
  Arguments arguments(env, info);
  Environment& environment = *static_cast<Environment*>(arguments.data());
  environment.calls += 1;
  environment.Out(0, Guarded([&] { return function(environment, arguments); }));
  return arguments.result;
}

struct Function {
  const char* name;
  napi_callback callback;
};

constexpr Function kFunctions[] = {
    {"initialize", Cold<Initialize>},
    {"openBackend", Cold<OpenBackend>},
    {"cudaUnavailableReason", Cold<CudaUnavailableReason>},
    {"configureSoftware", Cold<ConfigureSoftware>},
    {"setLatency", Cold<SetLatency>},
    {"failCall", Cold<FailCall>},
    {"failCallAfter", Cold<FailCallAfter>},
    {"driverVersion", Cold<DriverVersion>},
    {"statusName", Cold<StatusName>},
    {"statusDescription", Cold<StatusDescription>},
    {"threadId", Cold<ThreadId>},
    {"deviceCount", Cold<DeviceCount>},
    {"deviceName", Cold<DeviceName>},
    {"deviceUuid", Cold<DeviceUuid>},
    {"deviceTotalBytes", Cold<DeviceTotalBytes>},
    {"deviceAttribute", Cold<DeviceAttribute>},
    {"deviceStreamPriorityRange", Cold<DeviceStreamPriorityRange>},
    {"deviceMemoryInfo", Cold<DeviceMemoryInfo>},
    {"synchronizeDevice", Cold<SynchronizeDevice>},
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
    {"destroyPool", Cold<DestroyPool>},
    {"trimPool", Cold<TrimPool>},
    {"poolAttribute", Cold<PoolAttribute>},
    {"setPoolAttribute", Cold<SetPoolAttribute>},
    {"copy", Cold<Copy>},
    {"copyFromHost", Cold<CopyFromHost>},
    {"copyToHostSync", Cold<CopyToHostSync>},
    {"copyToHost", Cold<CopyToHost>},
    {"set", Cold<Set>},
    {"advise", Cold<Advise>},
    {"prefetch", Cold<Prefetch>},
    {"rangeAttribute", Cold<RangeAttribute>},
    {"pointerInfo", Cold<PointerInfo>},
    {"beginOrderCheck", Cold<BeginOrderCheck>},
    {"endOrderCheck", Cold<EndOrderCheck>},
    {"takeOrderReports", Cold<TakeOrderReports>},
    {"touch", Cold<Touch>},
    {"declareAllocation", Cold<DeclareAllocation>},
    {"declareFree", Cold<DeclareFree>},
    {"watch", Cold<Watch>},
    {"unwatch", Cold<Unwatch>},
    {"collectedSlots", Cold<CollectedSlots>},
};

bool DefineFunctions(napi_env env, napi_value exports, Environment* environment) {
  for (const Function& function : kFunctions) {
    napi_value value;
    if (napi_create_function(env, function.name, NAPI_AUTO_LENGTH, function.callback, environment, &value) != napi_ok ||
        napi_set_named_property(env, exports, function.name, value) != napi_ok) {
      return false;
    }
  }
  return true;
}

bool DefineFunctionNames(napi_env env, napi_value exports) {
  napi_value names;
  if (napi_create_array_with_length(env, kCallCount, &names) != napi_ok) return false;
  for (int index = 0; index < kCallCount; ++index) {
    napi_value name;
    if (napi_create_string_utf8(env, kCallNames[index], NAPI_AUTO_LENGTH, &name) != napi_ok ||
        napi_set_element(env, names, static_cast<std::uint32_t>(index), name) != napi_ok) {
      return false;
    }
  }
  return napi_object_freeze(env, names) == napi_ok && napi_set_named_property(env, exports, "functionNames", names) == napi_ok;
}

void DeleteEnvironment(napi_env, void* data, void*) { delete static_cast<Environment*>(data); }

}  // namespace

Status Initialize(Environment& environment, Arguments& arguments) {
  double* mailbox;
  double* counters;
  std::size_t mailbox_length, counters_length;
  if (!arguments.Float64Array(0, &mailbox, &mailbox_length) || mailbox_length < Environment::kMailboxLength) return kInvalidArgument;
  if (!arguments.Float64Array(1, &counters, &counters_length) || counters_length < Environment::kCounterCount) return kInvalidArgument;
  return environment.Bind(arguments[0], mailbox, arguments[1], counters);
}

}  // namespace cistern

NAPI_MODULE_INIT() {
  using cistern::Environment;
  Environment* environment = new (std::nothrow) Environment(env);
  if (environment == nullptr || napi_set_instance_data(env, environment, cistern::DeleteEnvironment, nullptr) != napi_ok) {
    delete environment;
    napi_throw_error(env, nullptr, "cistern's addon found no memory for its state");
    return nullptr;
  }
  if (!environment->Start() || !cistern::DefineFunctions(env, exports, environment) || !cistern::DefineFunctionNames(env, exports)) {
    napi_throw_error(env, nullptr, "cistern's addon could not be set up: Node-API refused a call");
    return nullptr;
  }
  return exports;
}
