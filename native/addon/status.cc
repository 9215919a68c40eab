#include "addon/bindings.h"
#include "software/software_device.h"

namespace cistern {
namespace {

struct StatusText {
  Status status;
  const char* name;
  const char* description;
};

constexpr StatusText kOwnStatuses[] = {
    {kInvalidArgument, "CISTERN_INVALID_ARGUMENT", "an argument has the wrong type or is out of range"},
    {kStaleHandle, "CISTERN_STALE_HANDLE", "the handle is not live in this environment"},
    {kForeignPointer, "CISTERN_FOREIGN_POINTER", "the pointer was not allocated here"},
    {kDoubleFree, "CISTERN_DOUBLE_FREE", "the pointer is already freed"},
    {kWrongSize, "CISTERN_WRONG_SIZE", "the pointer was allocated with another size"},
    {kAddressTooLarge, "CISTERN_ADDRESS_TOO_LARGE", "the address is above 2^53 - 1"},
    {kNoBackend, "CISTERN_NO_BACKEND", "no backend is open, or another one is"},
    {kHostFunctionReady, "CISTERN_HOST_FUNCTION_READY", "a host function is ready to run"},
    {kHostOutOfMemory, "CISTERN_HOST_OUT_OF_MEMORY", "the host has no memory, or no file descriptor, left"},
    {kInvalidRange, "CISTERN_INVALID_RANGE", "the range is not inside known memory"},
    {kStaleMessage, "CISTERN_STALE_MESSAGE", "the message can no longer be attached"},
    {kNoAccess, "CISTERN_NO_ACCESS", "the stream's device has no access to the memory"},
    {kForeignMessage, "CISTERN_FOREIGN_MESSAGE", "no environment of this process made the message"},
    {kOwnMessage, "CISTERN_OWN_MESSAGE", "this process made the handle"},
    {kForbiddenProcess, "CISTERN_FORBIDDEN_PROCESS", "this process may not access the process that made the handle"},
    {kUnknownVersion, "CISTERN_UNKNOWN_VERSION", "the handle has another version"},
    {kOtherBackend, "CISTERN_OTHER_BACKEND", "the handle is for another kind of device"},
    {kNoSuchDevice, "CISTERN_NO_SUCH_DEVICE", "the handle is for a device that this process does not have"},
    {kTooManyImporters, "CISTERN_TOO_MANY_IMPORTERS", "too many processes have memory of the process open"},
    {kAsleep, "CISTERN_ASLEEP", "this process is asleep"},
    {kTooManyExports, "CISTERN_TOO_MANY_EXPORTS", "too many buffers are exported"},
};

using DescribeStatus = Status (*)(Status, const char**);

// Before a backend is open, the software device describes the driver's statuses, since it needs no
// driver for that.
Status ReturnText(const Environment& environment, const Napi::CallbackInfo& info, const char* StatusText::*own,
                  DescribeStatus DriverTable::*describe, Napi::Value* result) {
  const char* text = "";
  int status = 0;
  const bool valid = ReadInt(info[0], &status);
  if (valid) {
    for (const StatusText& candidate : kOwnStatuses) {
      if (candidate.status == status) text = candidate.*own;
    }
    const DriverTable& driver = environment.driver != nullptr ? *environment.driver : software::Table();
    if (status >= 0 && ((driver.*describe)(status, &text) != kSuccess || text == nullptr)) text = "";
  }
  *result = Napi::String::New(info.Env(), text);
  return valid ? kSuccess : kInvalidArgument;
}

}  // namespace

Status StatusName(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  return ReturnText(environment, info, &StatusText::name, &DriverTable::GetErrorName, result);
}

Status StatusDescription(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  return ReturnText(environment, info, &StatusText::description, &DriverTable::GetErrorString, result);
}

}  // namespace cistern
