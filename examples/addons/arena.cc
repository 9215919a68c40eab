// An addon in C++ with node-addon-api: an arena cuts memory of its own out of one block that it takes
// from a resource, gives the parts to JavaScript as buffers, and gives the block back at its end. A
// buffer keeps its arena alive.
#include <cistern.h>
#include <napi.h>

namespace {

cistern_interface& InterfaceOf(Napi::Env env) { return *env.GetInstanceData<cistern_interface>(); }

class Arena : public Napi::ObjectWrap<Arena> {
 public:
  static Napi::Function Define(Napi::Env env) {
    return DefineClass(
        env, "Arena",
        {InstanceMethod<&Arena::Take>("take"), InstanceMethod<&Arena::Close>("close"), InstanceAccessor<&Arena::Live>("live")});
  }

  // new Arena(resource, bytes, stream): the stream is a driver's handle.
  explicit Arena(const Napi::CallbackInfo& info) : Napi::ObjectWrap<Arena>(info) {
    cistern_resource resource = Resource(info.Env(), info[0]);
    bytes_ = static_cast<std::uint64_t>(info[1].ToNumber().Int64Value());
    stream_ = static_cast<std::uint64_t>(info[2].ToNumber().Int64Value());
    device_ = resource.device;
    Check(info.Env(), resource.allocate(&resource, bytes_, stream_, &begin_));
    resource_ = Napi::Persistent(info[0].As<Napi::Object>());
  }

 private:
  static void Check(Napi::Env env, napi_status status) {
    if (status != napi_ok) throw Napi::Error::New(env);  // takes the pending exception along
  }

  static cistern_resource Resource(Napi::Env env, napi_value value) {
    cistern_resource resource = {};
    resource.size = sizeof resource;
    Check(env, cistern_get_resource(env, &InterfaceOf(env), value, &resource));
    return resource;
  }

  // take(bytes): the next bytes of the block as a buffer.
  Napi::Value Take(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    const auto bytes = static_cast<std::uint64_t>(info[0].ToNumber().Int64Value());
    if (bytes > bytes_ - used_) throw Napi::RangeError::New(env, "the arena is full");
    cistern_foreign_memory part = {};
    part.size = sizeof part;
    part.pointer = begin_ + used_;
    part.byte_length = bytes;
    part.stream = stream_;
    part.device = device_;
    part.data = this;
    part.release = [](void* arena, std::uint64_t, std::uint64_t) {
      static_cast<Arena*>(arena)->live_ -= 1;
      static_cast<Arena*>(arena)->Unref();
    };
    napi_value buffer;
    Check(env, cistern_wrap(env, &InterfaceOf(env), &part, &buffer));
    Ref();
    live_ += 1;
    used_ += (bytes + 255) / 256 * 256;
    return Napi::Value(env, buffer);
  }

  // close(): frees the block.
  void Close(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    if (live_ > 0) throw Napi::Error::New(env, "buffers of the arena are live");
    if (begin_ == 0) return;
    const cistern_resource resource = Resource(env, resource_.Value());
    Check(env, resource.deallocate(&resource, begin_, bytes_, stream_));
    begin_ = bytes_ = used_ = 0;
  }

  Napi::Value Live(const Napi::CallbackInfo& info) { return Napi::Number::New(info.Env(), live_); }

  Napi::ObjectReference resource_;
  std::uint64_t begin_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t used_ = 0;
  std::uint64_t stream_ = 0;
  std::int32_t device_ = 0;
  int live_ = 0;
};

void Open(const Napi::CallbackInfo& info) {
  if (cistern_open(info.Env(), info[0], &InterfaceOf(info.Env())) != napi_ok) throw Napi::Error::New(info.Env());
}

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new cistern_interface{sizeof(cistern_interface), nullptr});
  exports.Set("open", Napi::Function::New<Open>(env, "open"));
  exports.Set("Arena", Arena::Define(env));
  return exports;
}

}  // namespace

NODE_API_MODULE(arena, Init)
