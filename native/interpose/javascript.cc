#include "interpose/javascript.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#include <atomic>
#include <cstring>

#include "interpose/real_dlsym.h"

namespace cistern::interpose {
namespace {

// V8's own layouts, which are these in Node 20, 22 and 24. A handle is one pointer.
using Isolate = void;
using Handle = void*;
struct RegisterState {
  void* pc;
  void* sp;
  void* fp;
  void* lr;
  void* callee_saved;
};
struct SampleInfo {
  size_t frames_count;
  void* external_callback_entry;
  void* context;
  void* embedder_context;
  uint16_t vm_state;  // 32 bits in Node 20, 16 since
  uint16_t embedder_state;
  void* reserved[8];
};
struct Location {
  int line;  // both from 0
  int column;
};
// JavaScript has called native code. Since Node 22, V8 does not note that unless it is profiled.
constexpr uint16_t kJavaScript = 0;
constexpr uint16_t kExternal = 6;
// How texts are written: with a character in place of half ones.
constexpr int kReplaceInvalid = 8;

constexpr int kMostFrames = 32;
constexpr int kDetailed = 127;

// The functions of V8 that Node exports, because addons use them.
struct V8 {
  Isolate* (*try_get_current)();
  bool (*in_context)(Isolate*);
  void (*get_stack_sample)(Isolate*, const RegisterState&, void** frames, size_t limit, SampleInfo*);
  void (*open_scope)(void* scope, Isolate*);
  void (*close_scope)(void* scope);
  Handle (*current_stack)(Isolate*, int limit, int options);
  int (*frame_count)(Handle stack);
  Handle (*frame)(Handle stack, Isolate*, uint32_t index);
  Location (*location)(Handle frame);
  Handle (*script)(Handle frame);
  Handle (*function)(Handle frame);
  void (*open_text)(void* text, Isolate*, Handle string, int options);  // without options before Node 24
  void (*close_text)(void* text);
  bool is_known;
};

V8 Find() {
  const WithoutError without_error;
  V8 v8 = {};
  const auto find = [&](auto* function, const char* name) {
    void* address = RealDlsym()(RTLD_DEFAULT, name);
    std::memcpy(function, &address, sizeof(address));
    return address != nullptr;
  };
  // Texts are the last: their function has two names.
  v8.is_known =
      find(&v8.try_get_current, "_ZN2v87Isolate13TryGetCurrentEv") && find(&v8.in_context, "_ZN2v87Isolate9InContextEv") &&
      find(&v8.get_stack_sample, "_ZN2v87Isolate14GetStackSampleERKNS_13RegisterStateEPPvmPNS_10SampleInfoE") &&
      find(&v8.open_scope, "_ZN2v811HandleScopeC1EPNS_7IsolateE") && find(&v8.close_scope, "_ZN2v811HandleScopeD1Ev") &&
      find(&v8.current_stack, "_ZN2v810StackTrace17CurrentStackTraceEPNS_7IsolateEiNS0_17StackTraceOptionsE") &&
      find(&v8.frame_count, "_ZNK2v810StackTrace13GetFrameCountEv") && find(&v8.frame, "_ZNK2v810StackTrace8GetFrameEPNS_7IsolateEj") &&
      find(&v8.location, "_ZNK2v810StackFrame11GetLocationEv") && find(&v8.script, "_ZNK2v810StackFrame24GetScriptNameOrSourceURLEv") &&
      find(&v8.function, "_ZNK2v810StackFrame15GetFunctionNameEv") && find(&v8.close_text, "_ZN2v86String9Utf8ValueD1Ev") &&
      (find(&v8.open_text, "_ZN2v86String9Utf8ValueC1EPNS_7IsolateENS_5LocalINS_5ValueEEENS0_12WriteOptionsE") ||
       find(&v8.open_text, "_ZN2v86String9Utf8ValueC1EPNS_7IsolateENS_5LocalINS_5ValueEEE"));
  return v8;
}

// Copies a string of V8, cut off, without what would break a line.
void Copy(const V8& v8, Isolate* isolate, Handle string, const char* otherwise, char* to, size_t capacity) {
  alignas(16) char text[64] = {};
  const char* from = nullptr;
  if (string != nullptr) {
    v8.open_text(text, isolate, string, kReplaceInvalid);
    std::memcpy(&from, text, sizeof(from));
  }
  snprintf(to, capacity, "%s", from != nullptr && *from != 0 ? from : otherwise);
  if (string != nullptr) v8.close_text(text);
  for (char* at = to; *at != 0; at++) {
    if (*at == '\n' || *at == '\r') *at = ' ';
  }
}

}  // namespace

std::size_t JavaScriptStack(char* text, std::size_t capacity) {
  static const V8 v8 = Find();
  if (!v8.is_known) return 0;
  Isolate* isolate = v8.try_get_current();
  // Without a context, the isolate is idle or about to end.
  if (isolate == nullptr || !v8.in_context(isolate)) return 0;
  // During a collection V8's heap must not be touched. This call does not touch it.
  RegisterState registers = {reinterpret_cast<void*>(&JavaScriptStack), &registers, __builtin_frame_address(0), nullptr, nullptr};
  SampleInfo info = {};
  info.vm_state = 0xffff;
  void* frame_of_sample = nullptr;
  v8.get_stack_sample(isolate, registers, &frame_of_sample, 0, &info);
  if (info.vm_state != kJavaScript && info.vm_state != kExternal) return 0;

  alignas(16) char scope[128];
  v8.open_scope(scope, isolate);
  std::size_t length = 0;
  const Handle stack = v8.current_stack(isolate, kMostFrames, kDetailed);
  const int count = stack == nullptr ? 0 : v8.frame_count(stack);
  for (int i = 0; i < count; i++) {
    const Handle frame = v8.frame(stack, isolate, static_cast<uint32_t>(i));
    if (frame == nullptr) break;
    char function[256], script[1024], line[1400];
    Copy(v8, isolate, v8.function(frame), "<anonymous>", function, sizeof(function));
    Copy(v8, isolate, v8.script(frame), "<anonymous>", script, sizeof(script));
    const Location location = v8.location(frame);
    const int written = snprintf(line, sizeof(line), "%s (%s:%d:%d)\n", function, script, location.line + 1, location.column + 1);
    if (length + static_cast<std::size_t>(written) >= capacity) break;
    std::memcpy(text + length, line, static_cast<std::size_t>(written));
    length += static_cast<std::size_t>(written);
  }
  v8.close_scope(scope);
  return length;
}

}  // namespace cistern::interpose
