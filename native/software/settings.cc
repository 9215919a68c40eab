#include "software/settings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "software/device.h"

namespace cistern::software {
namespace {

std::string ReadLine(const std::string& path, const char* prefix) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  char line[4096];
  std::string found;
  while (found.empty() && std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, prefix, std::strlen(prefix)) != 0) continue;
    found = line + std::strlen(prefix);
    found.erase(found.find_last_not_of("\n") + 1);
  }
  std::fclose(file);
  return found;
}

// Control groups nest, and the lowest of their limits applies.
std::uint64_t ControlGroupLimit() {
  std::uint64_t limit = ~std::uint64_t{0};
  std::string group = ReadLine("/proc/self/cgroup", "0::");
  for (;;) {
    std::string text = ReadLine("/sys/fs/cgroup" + group + "/memory.max", "");
    if (!text.empty() && text[0] >= '0' && text[0] <= '9') limit = std::min<std::uint64_t>(limit, std::strtoull(text.c_str(), nullptr, 10));
    std::size_t slash = group.rfind('/');
    if (slash == std::string::npos || group.empty()) return limit;
    group.erase(slash);
  }
}

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

bool IsSetTo(const char* variable, const char* value) {
  const char* text = std::getenv(variable);
  return text != nullptr && std::strcmp(text, value) == 0;
}

// 0 unless the variable is a whole number of at most 18 digits.
std::uint64_t NumberFromEnvironment(const char* variable) {
  constexpr std::size_t kMaxDigits = 18;
  const char* text = std::getenv(variable);
  if (text == nullptr || std::strlen(text) > kMaxDigits || std::strspn(text, "0123456789") != std::strlen(text)) return 0;
  return std::strtoull(text, nullptr, 10);
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
std::atomic<bool> has_concurrent_managed_access{!IsSetTo("CISTERN_SOFTWARE_CONCURRENT_MANAGED", "0")};
std::atomic<bool> is_coherent{IsSetTo("CISTERN_SOFTWARE_COHERENT", "1")};
std::atomic<std::uint64_t> migration_nanoseconds{NumberFromEnvironment("CISTERN_SOFTWARE_MIGRATION_NS")};

std::uint64_t MachineMemory() {
  static const std::uint64_t bytes = std::min(
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)), ControlGroupLimit());
  return bytes;
}

Status CompleteSettings(Settings* settings) {
  Settings complete = *settings;
  if (complete.total_bytes == 0) {
    const char* text = std::getenv("CISTERN_SOFTWARE_MEMORY");
    complete.total_bytes = text == nullptr ? std::min(MachineMemory() / 2, kMaxTotalBytes) : ParseBytes(text);
    if (complete.total_bytes == 0) return kErrorInvalidValue;
  }
  if (complete.device_count == 0) {
    const char* text = std::getenv("CISTERN_SOFTWARE_DEVICES");
    complete.device_count = 1;
    if (text != nullptr) {
      if (text[0] < '1' || text[0] > '0' + kMaxDevices || text[1] != '\0') return kErrorInvalidValue;
      complete.device_count = text[0] - '0';
    }
  }
  if (!are_peers_set) {
    const char* text = std::getenv("CISTERN_SOFTWARE_PEERS");
    if (!SetReachablePeers(text == nullptr ? "all" : text)) return kErrorInvalidValue;
  }
  *settings = complete;
  return kSuccess;
}

}  // namespace cistern::software
