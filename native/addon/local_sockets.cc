// Sockets and the descriptors that come over them, for memory that outlives its process. No call needs a driver.
//
// A call that the system refuses leaves CUDA's 304 (operating system), and the number of errno.h in mailbox[1].
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "addon/bindings.h"
#include "platform/local_socket.h"

namespace cistern {
namespace {

Status Refused(Environment& environment, int error) {
  environment.Out(1, error);
  return kErrorOperatingSystem;
}

// Hands a descriptor to JavaScript; it is closed again if the table is full.
Status HandOut(Environment& environment, int place, MemoryFile file) {
  const std::uint64_t handle = environment.descriptors.Add(std::make_shared<MemoryFile>(std::move(file)));
  environment.Out(place, static_cast<double>(handle));
  return handle != 0 ? kSuccess : kHostOutOfMemory;
}

Status FindDescriptor(Environment& environment, const Napi::Value& value, int* descriptor) {
  double number;
  if (!ReadNumber(value, &number)) return kInvalidArgument;
  std::shared_ptr<MemoryFile>* found;
  const Status status = environment.descriptors.Find(number, &found);
  if (status == kSuccess) *descriptor = (*found)->descriptor();
  return status;
}

}  // namespace

Status ListenLocal(Environment& environment, const Napi::CallbackInfo& info) {
  std::string path;
  if (!ReadString(info[0], &path)) return kInvalidArgument;
  MemoryFile socket;
  MemoryFile lock;
  const int error = ListenAt(path, &socket, &lock);
  if (error != 0) return Refused(environment, error);
  const Status status = HandOut(environment, 1, std::move(socket));
  return status == kSuccess ? HandOut(environment, 2, std::move(lock)) : status;
}

Status ConnectLocal(Environment& environment, const Napi::CallbackInfo& info) {
  std::string path;
  int milliseconds;
  if (!ReadString(info[0], &path) || !ReadInt(info[1], &milliseconds) || milliseconds < 1) return kInvalidArgument;
  MemoryFile socket;
  const int error = ConnectTo(path, milliseconds, &socket);
  return error == 0 ? HandOut(environment, 1, std::move(socket)) : Refused(environment, error);
}

Status AcceptLocal(Environment& environment, const Napi::CallbackInfo& info) {
  int listener;
  const Status status = FindDescriptor(environment, info[0], &listener);
  if (status != kSuccess) return status;
  MemoryFile socket;
  std::int32_t process = 0;
  const int error = AcceptFrom(listener, &socket, &process);
  if (error != 0) return Refused(environment, error);
  environment.Out(2, process);
  return HandOut(environment, 1, std::move(socket));
}

Status SendLocal(Environment& environment, const Napi::CallbackInfo& info) {
  int socket;
  int descriptor = -1;
  double sent;
  std::string message;
  Status status = FindDescriptor(environment, info[0], &socket);
  if (status != kSuccess) return status;
  if (!ReadString(info[1], &message) || !ReadNumber(info[2], &sent)) return kInvalidArgument;
  if (sent != 0) status = FindDescriptor(environment, info[2], &descriptor);
  if (status != kSuccess) return status;
  const int error = SendOver(socket, message, descriptor);
  return error == 0 ? Status{kSuccess} : Refused(environment, error);
}

Status ReceiveLocal(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  int socket;
  const Status status = FindDescriptor(environment, info[0], &socket);
  if (status != kSuccess) return status;
  std::string message;
  MemoryFile descriptor;
  const int error = ReceiveOver(socket, &message, &descriptor);
  if (error != 0) return Refused(environment, error);
  *result = Napi::String::New(info.Env(), message);
  environment.Out(1, 0);
  return descriptor.IsOpen() ? HandOut(environment, 1, std::move(descriptor)) : Status{kSuccess};
}

Status PollLocal(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  Napi::Float64Array handles;
  int milliseconds;
  if (!ReadArray(info[0], &handles) || !ReadInt(info[1], &milliseconds) || milliseconds < -1) return kInvalidArgument;
  if (handles.ElementLength() == 0) return kInvalidArgument;
  std::vector<int> sockets;
  for (std::size_t index = 0; index < handles.ElementLength(); ++index) {
    std::shared_ptr<MemoryFile>* found;
    const Status status = environment.descriptors.Find(handles[index], &found);
    if (status != kSuccess) return status;
    sockets.push_back((*found)->descriptor());
  }
  std::vector<std::size_t> ready;
  const int error = AwaitMessages(sockets, milliseconds, &ready);
  if (error != 0) return Refused(environment, error);
  Napi::Float64Array places = Napi::Float64Array::New(info.Env(), ready.size());
  for (std::size_t index = 0; index < ready.size(); ++index) places[index] = static_cast<double>(ready[index]);
  *result = places;
  return kSuccess;
}

Status CloseDescriptor(Environment& environment, const Napi::CallbackInfo& info) {
  int descriptor;
  const Status status = FindDescriptor(environment, info[0], &descriptor);
  if (status == kSuccess) environment.descriptors.Remove(static_cast<std::uint64_t>(info[0].As<Napi::Number>().DoubleValue()));
  return status;
}

}  // namespace cistern
