// The account of this thread under `cistern run`, whose library is preloaded (native/interpose/thread_scope.cc).
#include "addon/bindings.h"
#include "platform/library.h"

namespace cistern {

// What LeaveAccountOutside needs; without `cistern run` nothing happens.
Status EnterAccountOutside(Environment&, const Napi::CallbackInfo& info, Napi::Value* result) {
  std::string name;
  if (!ReadString(info[0], &name)) return kInvalidArgument;
  const auto enter = reinterpret_cast<unsigned (*)(const char*)>(FindProgramSymbol("cistern_run_enter_account"));
  *result = Napi::Number::New(info.Env(), enter == nullptr ? 0 : enter(name.c_str()));
  return kSuccess;
}

Status LeaveAccountOutside(Environment&, const Napi::CallbackInfo& info) {
  int before;
  if (!ReadInt(info[0], &before) || before < 0) return kInvalidArgument;
  const auto leave = reinterpret_cast<void (*)(unsigned)>(FindProgramSymbol("cistern_run_leave_account"));
  if (leave != nullptr) leave(static_cast<unsigned>(before));
  return kSuccess;
}

}  // namespace cistern
