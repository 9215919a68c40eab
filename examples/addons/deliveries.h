// What threads of an addon deliver to the JavaScript of one environment, for as long as it lasts.
//
// A worker may end at any time: its program calls process.exit, or another thread calls terminate(). Node then deletes
// the environment's thread-safe functions, however many threads have acquired them, and a call of a deleted one aborts the
// process. So every call is made under a lock here, and none after the function's finalizer, which Node runs before it deletes
// the function, at every end of an environment.
//
// The threads must also find their code: Node unloads an addon with the last environment that has loaded it. Load it in
// the main thread as well, or link it with `-z nodelete`.
#ifndef CISTERN_EXAMPLES_DELIVERIES_H_
#define CISTERN_EXAMPLES_DELIVERIES_H_

#include <napi.h>

#include <memory>
#include <mutex>

// Otherwise node-addon-api ends the process when a call into JavaScript fails because its worker is being terminated.
#ifndef NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS
#error "define NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS for the whole addon"
#endif

// `Item` is what a thread delivers. Its destructor, which may run on any thread, gives back what nobody has taken.
template <typename Item>
class Deliveries {
 public:
  // `deliver` is called on JavaScript's thread for each item, and may throw a Napi::Error, an uncaught exception. On
  // JavaScript's thread. Threads keep the object.
  using Deliver = void (*)(Napi::Env env, Item& item);
  static std::shared_ptr<Deliveries> Open(Napi::Env env, Deliver deliver) {
    const std::shared_ptr<Deliveries> opened(new Deliveries(deliver));
    auto kept = std::make_unique<std::shared_ptr<Deliveries>>(opened);
    const Napi::String name = Napi::String::New(env, "deliveries");
    const napi_status status =
        napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, kept.get(), Finalize, opened.get(), CallJs, &opened->function_);
    if (status != napi_ok) throw Napi::Error::New(env);
    kept.release();  // Finalize's
    napi_unref_threadsafe_function(env, opened->function_);
    return opened;
  }

  // Keeps the event loop alive until one more item has been delivered. On JavaScript's thread.
  void Expect(Napi::Env env) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (expected_++ == 0) napi_ref_threadsafe_function(env, function_);
  }

  // Takes an item along, on any thread. False if the environment has ended: the item is still the caller's.
  bool Send(std::unique_ptr<Item>& item) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // After napi_closing, there may be no further call either.
    if (function_ != nullptr && napi_call_threadsafe_function(function_, item.get(), napi_tsfn_nonblocking) != napi_ok) function_ = nullptr;
    if (function_ == nullptr) return false;
    item.release();  // CallJs's
    return true;
  }

 private:
  explicit Deliveries(Deliver deliver) : deliver_(deliver) {}

  static void Finalize(napi_env, void* kept, void*) {
    const std::unique_ptr<std::shared_ptr<Deliveries>> self(static_cast<std::shared_ptr<Deliveries>*>(kept));
    const std::lock_guard<std::mutex> lock((*self)->mutex_);
    (*self)->function_ = nullptr;
  }

  // Without an environment, once for each item that waits when it ends.
  static void CallJs(napi_env env, napi_value, void* context, void* data) {
    const std::unique_ptr<Item> item(static_cast<Item*>(data));
    if (env == nullptr) return;
    auto& self = *static_cast<Deliveries*>(context);
    {
      const std::lock_guard<std::mutex> lock(self.mutex_);
      if (--self.expected_ == 0) napi_unref_threadsafe_function(env, self.function_);
    }
    try {
      self.deliver_(env, *item);
    } catch (const Napi::Error& error) {
      error.ThrowAsJavaScriptException();
    }
  }

  const Deliver deliver_;
  std::mutex mutex_;  // of the rest
  int expected_ = 0;
  napi_threadsafe_function function_ = nullptr;
};

#endif  // CISTERN_EXAMPLES_DELIVERIES_H_
