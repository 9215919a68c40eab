// libFuzzer for JavaScript: run(arguments, counters, target) starts it on a thread of its own,
// which hands every input to `target` on JavaScript's thread and waits until finish(passed) is
// called. So a target may be asynchronous, and the event loop runs meanwhile. If an input does not
// pass, libFuzzer writes it to a file and ends the process, as it does after a crash or a
// sanitizer's report.

#include <node_api.h>
#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

extern "C" {
int LLVMFuzzerRunDriver(int* argc, char*** argv, int (*target)(const std::uint8_t* data, std::size_t size));
void __sanitizer_cov_8bit_counters_init(std::uint8_t* begin, std::uint8_t* end);
void __sanitizer_cov_pcs_init(const std::uintptr_t* begin, const std::uintptr_t* end);
}

namespace {

struct Input {
  const std::uint8_t* data;
  std::size_t size;
};

// One run per process; nothing is ever destroyed, since libFuzzer ends the process from its own thread.
struct Fuzzer {
  std::mutex mutex;
  std::condition_variable finished;
  bool is_finished = false;
  bool passed = false;
  napi_threadsafe_function target = nullptr;
  std::vector<std::string> arguments;
  std::vector<char*> argument_pointers;
};

Fuzzer& fuzzer = *new Fuzzer;

// On libFuzzer's thread.
int TestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input{data, size};
  std::unique_lock<std::mutex> lock(fuzzer.mutex);
  fuzzer.is_finished = false;
  if (napi_call_threadsafe_function(fuzzer.target, &input, napi_tsfn_blocking) != napi_ok) std::abort();
  fuzzer.finished.wait(lock, [] { return fuzzer.is_finished; });
  if (!fuzzer.passed) std::abort();
  return 0;
}

void RunLibFuzzer() {
  // libFuzzer ends with exit(), which would tear down what JavaScript's thread still uses.
  on_exit([](int status, void*) { _exit(status); }, nullptr);
  int count = static_cast<int>(fuzzer.arguments.size());
  for (std::string& argument : fuzzer.arguments) fuzzer.argument_pointers.push_back(argument.data());
  char** arguments = fuzzer.argument_pointers.data();
  std::exit(LLVMFuzzerRunDriver(&count, &arguments, TestOneInput));
}

void Check(napi_status status, const char* what) {
  if (status != napi_ok) napi_fatal_error("fuzzer", NAPI_AUTO_LENGTH, what, NAPI_AUTO_LENGTH);
}

// On JavaScript's thread.
void CallTarget(napi_env env, napi_value target, void*, void* data) {
  if (env == nullptr) return;
  const Input& input = *static_cast<const Input*>(data);
  void* copy = nullptr;
  napi_value bytes, receiver;
  Check(napi_create_buffer_copy(env, input.size, input.data, &copy, &bytes), "no buffer for an input");
  Check(napi_get_undefined(env, &receiver), "no receiver");
  Check(napi_call_function(env, receiver, target, 1, &bytes, nullptr), "the target threw");
}

napi_value Run(napi_env env, napi_callback_info info) {
  std::size_t count = 3;
  napi_value values[3];
  Check(napi_get_cb_info(env, info, &count, values, nullptr, nullptr), "no arguments");

  std::uint32_t argument_count = 0;
  Check(napi_get_array_length(env, values[0], &argument_count), "the first argument is not an array");
  for (std::uint32_t index = 0; index < argument_count; ++index) {
    napi_value value;
    std::size_t length = 0;
    Check(napi_get_element(env, values[0], index, &value), "no element");
    Check(napi_get_value_string_utf8(env, value, nullptr, 0, &length), "an argument is not a string");
    std::string text(length + 1, '\0');
    Check(napi_get_value_string_utf8(env, value, text.data(), text.size(), &length), "an argument is not a string");
    text.resize(length);
    fuzzer.arguments.push_back(text);
  }

  void* counters = nullptr;
  std::size_t counter_count = 0;
  Check(napi_get_typedarray_info(env, values[1], nullptr, &counter_count, &counters, nullptr, nullptr), "the counters are not an array");
  if (counter_count > 0) {
    napi_ref reference;
    Check(napi_create_reference(env, values[1], 1, &reference), "no reference");
    // JavaScript has no code addresses; libFuzzer uses these to count coverage.
    auto* places = new std::vector<std::uintptr_t>;
    for (std::size_t index = 0; index < counter_count; ++index) {
      places->push_back(index + 1);
      places->push_back(0);  // not the beginning of a function
    }
    __sanitizer_cov_8bit_counters_init(static_cast<std::uint8_t*>(counters), static_cast<std::uint8_t*>(counters) + counter_count);
    __sanitizer_cov_pcs_init(places->data(), places->data() + places->size());
  }

  napi_value name;
  Check(napi_create_string_utf8(env, "fuzzer", NAPI_AUTO_LENGTH, &name), "no name");
  Check(napi_create_threadsafe_function(env, values[2], nullptr, name, 0, 1, nullptr, nullptr, nullptr, CallTarget, &fuzzer.target),
        "the target is not a function");
  std::thread(RunLibFuzzer).detach();
  return nullptr;
}

napi_value Finish(napi_env env, napi_callback_info info) {
  std::size_t count = 1;
  napi_value value;
  bool passed = false;
  Check(napi_get_cb_info(env, info, &count, &value, nullptr, nullptr), "no arguments");
  Check(napi_get_value_bool(env, value, &passed), "finish takes a boolean");
  const std::lock_guard<std::mutex> lock(fuzzer.mutex);
  if (fuzzer.is_finished) return nullptr;  // the first word counts
  fuzzer.passed = passed;
  fuzzer.is_finished = true;
  fuzzer.finished.notify_one();
  return nullptr;
}

}  // namespace

NAPI_MODULE_INIT() {
  const napi_property_descriptor properties[] = {
      {"run", nullptr, Run, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"finish", nullptr, Finish, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
  };
  Check(napi_define_properties(env, exports, 2, properties), "no properties");
  return exports;
}
