#include "strict_driver/injection.h"

#include <chrono>
#include <map>
#include <thread>

namespace cistern::strict {
namespace {

struct Injection {
  std::uint64_t to_failure = 0;  // 0: none
  Status status = kSuccess;
  std::string next;
  std::uint64_t next_to_failure = 0;
  Status next_status = kSuccess;
  std::uint64_t latency_ns = 0;
};

std::map<std::string, Injection>& injections = *new std::map<std::string, Injection>;

}  // namespace

Status Inject(Lock& lock, const std::string& function) {
  const auto found = injections.find(function);
  if (found == injections.end()) return kSuccess;
  Injection& injection = found->second;
  Status status = kSuccess;
  if (injection.to_failure != 0 && --injection.to_failure == 0) {
    status = injection.status;
    if (injection.next_to_failure != 0) {
      Injection& next = injections[injection.next];
      next.to_failure = injection.next_to_failure;
      next.status = injection.next_status;
      injection.next_to_failure = 0;
    }
  }
  if (injection.latency_ns != 0) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(injection.latency_ns);
    lock.unlock();
    std::this_thread::sleep_until(end);
    lock.lock();
  }
  return status;
}

bool FailCall(const std::string& function, std::uint64_t nth, Status status) {
  Injection& injection = injections[function];
  const bool was_pending = injection.to_failure != 0;
  injection.to_failure = nth;
  injection.status = status;
  injection.next_to_failure = 0;
  return was_pending;
}

void FailCallAfter(const std::string& first, const std::string& function, std::uint64_t nth, Status status) {
  Injection& injection = injections[first];
  injection.next = function;
  injection.next_to_failure = nth;
  injection.next_status = status;
}

void SetLatency(const std::string& function, std::uint64_t nanoseconds) { injections[function].latency_ns = nanoseconds; }

}  // namespace cistern::strict
