#include "software/settings.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "platform/system.h"
#include "software/device.h"

namespace cistern::software {
namespace {

// A whole number, then nothing or one of B, KiB, MiB, GiB, TiB. 0 if the text is invalid or the
// number too large.
std::uint64_t ParseBytes(const char* text) {
  std::uint64_t value = 0;
  const char* end = text;
  for (; *end >= '0' && *end <= '9'; ++end) {
    value = value * 10 + static_cast<std::uint64_t>(*end - '0');
    if (value > kMaxTotalBytes) return 0;
  }
  if (end == text) return 0;
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int shift = *end == '\0' ? 0 : -1;
  for (int i = 0; i < 5; ++i) {
    if (std::strcmp(end, kUnits[i]) == 0) shift = 10 * i;
  }
  return shift < 0 || value > kMaxTotalBytes >> shift ? 0 : value << shift;
}

bool IsSetTo(const char* variable, const char* value) { return EnvironmentVariable(variable) == value; }

// 0 unless the variable is a whole number of at most 18 digits.
std::uint64_t NumberFromEnvironment(const char* variable) {
  constexpr std::size_t kMaxDigits = 18;
  const std::string text = EnvironmentVariable(variable).value_or("");
  if (text.size() > kMaxDigits || text.find_first_not_of("0123456789") != std::string::npos) return 0;
  return std::strtoull(text.c_str(), nullptr, 10);
}

using PeerMasks = std::array<std::uint32_t, kMaxDevices>;

bool ReadDevice(const char** text, int* device) {
  if (**text < '0' || **text >= '0' + kMaxDevices) return false;
  *device = *(*text)++ - '0';
  return true;
}

bool ParsePeers(const char* text, PeerMasks* masks) {
  const bool is_all = std::strcmp(text, "all") == 0;
  masks->fill(is_all ? ~0U : 0);
  if (is_all || std::strcmp(text, "none") == 0) return true;
  for (;;) {
    int first;
    int second;
    if (!ReadDevice(&text, &first) || *text++ != '-' || !ReadDevice(&text, &second) || first == second) return false;
    (*masks)[static_cast<std::size_t>(first)] |= 1U << second;
    (*masks)[static_cast<std::size_t>(second)] |= 1U << first;
    if (*text == '\0') return true;
    if (*text++ != ',') return false;
  }
}

}  // namespace

std::atomic<std::uint32_t> reachable_peers[kMaxDevices];
std::atomic<bool> are_peers_set{false};

bool SetReachablePeers(const char* text) {
  PeerMasks masks;
  if (!ParsePeers(text, &masks)) return false;
  for (std::size_t i = 0; i < masks.size(); ++i) reachable_peers[i] = masks[i];
  are_peers_set = true;
  return true;
}

std::atomic<bool> is_strict{IsSetTo("CISTERN_SOFTWARE_STRICT", "1")};
std::atomic<bool> frees_wait{!IsSetTo("CISTERN_SOFTWARE_FREES_WAIT", "0")};
std::atomic<bool> has_concurrent_managed_access{!IsSetTo("CISTERN_SOFTWARE_CONCURRENT_MANAGED", "0")};
std::atomic<bool> is_coherent{IsSetTo("CISTERN_SOFTWARE_COHERENT", "1")};
std::atomic<std::uint64_t> migration_nanoseconds{NumberFromEnvironment("CISTERN_SOFTWARE_MIGRATION_NS")};

Status CompleteSettings(Settings* settings) {
  Settings complete = *settings;
  if (complete.total_bytes == 0) {
    const std::optional<std::string> text = EnvironmentVariable("CISTERN_SOFTWARE_MEMORY");
    complete.total_bytes = text ? ParseBytes(text->c_str()) : std::min(MachineMemory() / 2, kMaxTotalBytes);
    if (complete.total_bytes == 0) return kErrorInvalidValue;
  }
  if (complete.device_count == 0) {
    const std::string text = EnvironmentVariable("CISTERN_SOFTWARE_DEVICES").value_or("1");
    if (text.size() != 1 || text[0] < '1' || text[0] > '0' + kMaxDevices) return kErrorInvalidValue;
    complete.device_count = text[0] - '0';
  }
  if (!are_peers_set) {
    if (!SetReachablePeers(EnvironmentVariable("CISTERN_SOFTWARE_PEERS").value_or("all").c_str())) return kErrorInvalidValue;
  }
  *settings = complete;
  return kSuccess;
}

}  // namespace cistern::software
