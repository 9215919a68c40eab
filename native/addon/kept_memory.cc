#include "addon/kept_memory.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "addon/bindings.h"
#include "addon/memory.h"
#include "platform/lasting.h"

namespace cistern {
namespace {

using Clock = std::chrono::steady_clock;

// How many resources an error names.
constexpr std::size_t kMostNamed = 3;

// A kind of memory, and its device if it is that of one.
using KeptPlace = std::pair<std::uint64_t, int>;

struct MemoryKeeper {
  KeptPlace place;
  int device;
  std::string label;
  double bytes;  // infinity: only the driver knows
};

// KeptRequests for the memory of a place to one environment, by their numbers.
struct KeptRequests {
  double bytes = 0;
  std::uint64_t asked = 0;
  std::uint64_t taken = 0;
  std::uint64_t answered = 0;
  Clock::time_point unanswered_since{};
};

struct KeptMember {
  std::shared_ptr<EventLoop> loop;
  const DriverTable* backend = nullptr;
  int thread = 0;
  std::map<std::uint64_t, MemoryKeeper> keepers;
  std::map<KeptPlace, KeptRequests> requests;

  bool Keeps(const KeptPlace& place) const {
    return std::any_of(keepers.begin(), keepers.end(), [&](const auto& entry) { return entry.second.place == place; });
  }
};

struct KeptMemory {
  std::mutex mutex;
  std::condition_variable answered;  // or an environment has ended

  // The mutex guards the rest.
  std::map<std::uint64_t, KeptMember> members;  // those that can be asked, by id
  std::map<KeptPlace, double> returned;         // because somebody asked, ever
  std::uint64_t last_keeper = 0;
  std::uint64_t last_request = 0;
};

KeptMemory& AllKept() {
  static Lasting<KeptMemory> all;
  return *all;
}

bool ReadKeptPlace(const Napi::CallbackInfo& info, std::size_t at, KeptPlace* place, int* device) {
  if (!ReadInteger(info[at], &place->first) || place->first > static_cast<std::uint64_t>(MemoryKind::kHost)) return false;
  if (!ReadInt(info[at + 1], device) || *device < 0) return false;
  place->second = place->first == static_cast<std::uint64_t>(MemoryKind::kDevice) ? *device : 0;
  return true;
}

struct KeptRequest {
  KeptPlace place;
  int device;  // of one that keeps memory
  double bytes;
  std::uint64_t number;
};

// As formatBytes of src/basics/units.ts writes it.
std::string HeldText(double bytes) {
  if (std::isinf(bytes)) return "memory";
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f %s", std::floor(bytes) == bytes ? 0 : bytes < 10 ? 2 : 1, bytes, kUnits[unit]);
  return text;
}

// The next request to an environment that it has not taken.
bool TakeKeptRequest(const Environment& environment, KeptRequest* request) {
  KeptMemory& all = AllKept();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto self = all.members.find(environment.id());
  if (self == all.members.end()) return false;
  for (auto& [place, requests] : self->second.requests) {
    if (requests.taken == requests.asked) continue;
    requests.taken = requests.asked;
    const auto& keepers = self->second.keepers;
    const auto keeper =
        std::find_if(keepers.begin(), keepers.end(), [&, key = place](const auto& each) { return each.second.place == key; });
    *request = {place, keeper == keepers.end() ? -1 : keeper->second.device, requests.bytes, requests.asked};
    return true;
  }
  return false;
}

// How many bytes JavaScript returned, at most the bytes asked for or a little more.
double CallForBytes(Environment& environment, const KeptRequest& request, double bytes) {
  const Napi::HandleScope scope(environment.env);
  const napi_value arguments[] = {
      Napi::Number::New(environment.env, static_cast<double>(request.place.first)),
      Napi::Number::New(environment.env, request.device),
      Napi::Number::New(environment.env, bytes),
  };
  napi_value returned;
  double number = 0;
  const Napi::FunctionReference& function = environment.on_kept_request;
  if (napi_call_function(environment.env, environment.env.Undefined(), function.Value(), 3, arguments, &returned) == napi_ok) {
    return napi_get_value_double(environment.env, returned, &number) == napi_ok && number > 0 ? number : 0;
  }
  napi_value error;
  if (environment.env.IsExceptionPending()) napi_get_and_clear_last_exception(environment.env, &error);
  return 0;
}

}  // namespace

void DeliverKeptRequests(Environment& environment) {
  if (environment.on_kept_request.IsEmpty()) return;
  KeptRequest request;
  while (TakeKeptRequest(environment, &request)) {
    double returned = 0;
    for (double last = 1; last > 0 && returned < request.bytes && request.device >= 0; returned += last) {
      last = CallForBytes(environment, request, request.bytes - returned);
    }
    KeptMemory& all = AllKept();
    const std::lock_guard<std::mutex> lock(all.mutex);
    KeptRequests& requests = all.members.at(environment.id()).requests[request.place];
    requests.answered = std::max(requests.answered, request.number);
    requests.unanswered_since = Clock::now();
    all.returned[request.place] += returned;
    all.answered.notify_all();
  }
}

void EndKeptMemoryOf(const Environment& environment) {
  KeptMemory& all = AllKept();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto self = all.members.find(environment.id());
  if (self == all.members.end()) return;
  // The next attempt of whoever waits frees what it left.
  for (const auto& [number, keeper] : self->second.keepers) all.returned[keeper.place] += 1;
  all.members.erase(self);
  all.answered.notify_all();
}

Status OnKeptRequest(Environment& environment, const Napi::CallbackInfo& info) {
  int thread;
  if (!ReadInt(info[0], &thread) || !info[1].IsFunction()) return kInvalidArgument;
  environment.on_kept_request = Napi::Persistent(info[1].As<Napi::Function>());
  KeptMemory& all = AllKept();
  const std::lock_guard<std::mutex> lock(all.mutex);
  KeptMember& self = all.members[environment.id()];
  self.loop = environment.loop;
  self.thread = thread;
  return kSuccess;
}

Status NoteKept(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number;
  KeptPlace place;
  int device;
  double bytes;
  if (!ReadInteger(info[0], &number) || !ReadNumber(info[4], &bytes) || !(bytes >= 0 || bytes <= 0)) return kInvalidArgument;
  environment.Out(1, static_cast<double>(number));
  KeptMemory& all = AllKept();
  if (number == 0) {
    std::string label;
    if (!ReadKeptPlace(info, 1, &place, &device) || !ReadString(info[3], &label)) return kInvalidArgument;
    if (bytes <= 0) return kSuccess;
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto self = all.members.find(environment.id());
    if (self == all.members.end()) return kSuccess;
    self->second.backend = environment.backend;
    self->second.keepers.emplace(all.last_keeper + 1, MemoryKeeper{place, device, std::move(label), bytes});
    all.last_keeper += 1;
    environment.Out(1, static_cast<double>(all.last_keeper));
    return kSuccess;
  }
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto self = all.members.find(environment.id());
  if (self == all.members.end()) return kStaleHandle;
  const auto keeper = self->second.keepers.find(number);
  if (keeper == self->second.keepers.end()) return kStaleHandle;
  keeper->second.bytes += bytes;
  if (keeper->second.bytes > 0) return kSuccess;
  self->second.keepers.erase(keeper);
  environment.Out(1, 0);
  return kSuccess;
}

Status AskForKept(Environment& environment, const Napi::CallbackInfo& info) {
  KeptPlace place;
  int device;
  double bytes, milliseconds;
  if (!ReadKeptPlace(info, 0, &place, &device) || !ReadNumber(info[2], &bytes) || !(bytes >= 0)) return kInvalidArgument;
  if (!ReadNumber(info[3], &milliseconds) || !(milliseconds >= 0 && milliseconds <= 1000)) return kInvalidArgument;
  environment.Out(1, 0);
  const auto patience = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(milliseconds));
  KeptMemory& all = AllKept();
  std::unique_lock<std::mutex> lock(all.mutex);
  const auto visit_others = [&](auto&& visit) {
    for (auto& [id, member] : all.members) {
      if (id != environment.id() && member.backend == environment.backend && member.Keeps(place)) visit(member);
    }
  };
  bool is_any = false;
  visit_others([&](const KeptMember&) { is_any = true; });
  if (!is_any) return kSuccess;
  const std::uint64_t request = ++all.last_request;
  const Clock::time_point start = Clock::now();
  visit_others([&](KeptMember& member) {
    KeptRequests& requests = member.requests[place];
    const bool is_first = requests.answered == requests.asked;
    if (is_first) requests.unanswered_since = start;
    requests.bytes = is_first ? bytes : std::max(requests.bytes, bytes);
    requests.asked = request;
    EventLoop& loop = *member.loop;
    const std::lock_guard<std::mutex> loop_lock(loop.mutex);
    loop.PostWake();
  });
  // One that waits itself answers.
  all.answered.notify_all();
  const double before = all.returned[place];
  for (;;) {
    const auto self = all.members.find(environment.id());
    if (self != all.members.end()) {
      KeptRequests& own = self->second.requests[place];
      if (own.answered < own.asked) {
        own.answered = own.taken = own.asked;
        all.answered.notify_all();
      }
    }
    Clock::time_point latest = start;
    visit_others([&](KeptMember& member) {
      const KeptRequests& requests = member.requests[place];
      if (requests.answered < request) latest = std::max(latest, requests.unanswered_since + patience);
    });
    if (all.returned[place] - before >= bytes || Clock::now() >= latest) break;
    all.answered.wait_until(lock, latest);
  }
  environment.Out(1, all.returned[place] - before);
  return kSuccess;
}

Status KeptElsewhere(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  KeptPlace place;
  int device;
  if (!ReadKeptPlace(info, 0, &place, &device)) return kInvalidArgument;
  std::vector<std::pair<double, std::string>> largest;
  double sum = 0;
  {
    KeptMemory& all = AllKept();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const auto& [id, member] : all.members) {
      if (id == environment.id() || member.backend != environment.backend) continue;
      const std::string thread = member.thread == 0 ? "the main thread" : "worker " + std::to_string(member.thread);
      const auto requests = member.requests.find(place);
      const bool is_silent = requests != member.requests.end() && requests->second.answered < requests->second.asked;
      for (const auto& [number, keeper] : member.keepers) {
        if (keeper.place != place) continue;
        sum += keeper.bytes;
        largest.emplace_back(
            keeper.bytes, thread + "'s " + keeper.label + " holds " + HeldText(keeper.bytes) + (is_silent ? ", and did not answer" : ""));
      }
    }
  }
  std::stable_sort(largest.begin(), largest.end(), [](const auto& one, const auto& other) { return one.first > other.first; });
  if (largest.size() > kMostNamed) largest.resize(kMostNamed);
  std::string text;
  for (const auto& [bytes, line] : largest) text += (text.empty() ? "" : ", ") + line;
  environment.Out(1, sum);
  *result = Napi::String::New(info.Env(), text);
  return kSuccess;
}

}  // namespace cistern
