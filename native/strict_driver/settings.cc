#include "strict_driver/settings.h"

#include <cstdlib>

namespace cistern::strict {
namespace {

const char* Text(const char* name) { return std::getenv((std::string("STRICT_DRIVER_") + name).c_str()); }

template <typename Number>
void Read(const char* name, Number* value) {
  if (const char* text = Text(name)) *value = static_cast<Number>(std::strtoull(text, nullptr, 0));
}

void ReadMegabytes(const char* name, std::size_t* bytes) {
  if (const char* text = Text(name)) *bytes = static_cast<std::size_t>(std::strtoull(text, nullptr, 0)) << 20;
}

std::vector<std::string> Split(const char* text, char separator) {
  std::vector<std::string> parts;
  if (text == nullptr || *text == '\0') return parts;
  parts.emplace_back();
  for (; *text != '\0'; ++text) {
    if (*text == separator) {
      parts.emplace_back();
    } else {
      parts.back() += *text;
    }
  }
  return parts;
}

std::vector<Failure> Failures(const char* name) {
  std::vector<Failure> failures;
  for (const std::string& each : Split(Text(name), ',')) {
    const std::vector<std::string> fields = Split(each.c_str(), ':');
    if (fields.size() != 3) continue;
    failures.push_back({fields[0], std::strtoull(fields[1].c_str(), nullptr, 0), std::atoi(fields[2].c_str())});
  }
  return failures;
}

Settings ReadAll() {
  Settings read;
  Read("VERSION", &read.version);
  Read("DEVICES", &read.devices);
  Read("COMPUTE_CAPABILITY", &read.compute_capability);
  ReadMegabytes("MEMORY_MB", &read.memory_bytes);
  ReadMegabytes("CONTEXT_MB", &read.context_bytes);
  if (const char* text = Text("PEERS")) read.peers = text;
  read.missing = Split(Text("MISSING"), ',');
  Read("POOLS", &read.has_pools);
  Read("VIRTUAL_MEMORY", &read.has_virtual_memory);
  Read("SHARED_POOLS", &read.shares_pools);
  Read("EXPORTS_MEMORY", &read.exports_memory);
  Read("CONCURRENT_MANAGED", &read.has_concurrent_managed_access);
  Read("STREAM_MEMORY_OPERATIONS", &read.has_stream_memory_operations);
  Read("KERNELS", &read.has_kernels);
  Read("HOST_PAGE_TABLES", &read.uses_host_page_tables);
  read.has_pageable_access = read.uses_host_page_tables;
  Read("PAGEABLE_ACCESS", &read.has_pageable_access);
  Read("PINNED_IS_MANAGED", &read.pinned_memory_is_managed);
  Read("PINNED_HAS_RANGE", &read.pinned_memory_has_range);
  Read("REGISTERED_POINTERS", &read.host_pointers_of_registered);
  Read("MANAGED_TYPE", &read.managed_memory_type);
  Read("FIXED_DEFAULT_IDS", &read.default_streams_have_fixed_ids);
  Read("DELAY_US", &read.delay_microseconds);
  Read("SEED", &read.seed);
  Read("SERIAL_CALLBACKS", &read.serializes_callbacks);
  Read("ALLOC_SYNCS", &read.allocation_waits);
  Read("FREE_SYNCS", &read.free_waits);
  Read("PAGEABLE_WAITS", &read.copy_from_pageable_waits);
  Read("LOCKS_WHILE_WAITING", &read.locks_while_waiting);
  Read("REUSE_HANDLES", &read.reuses_handles);
  Read("USED_FALLS_AT_ONCE", &read.used_memory_falls_at_once);
  Read("EXIT_WAITS", &read.exit_waits);
  Read("FILL", &read.fills_new_memory);
  Read("CHECKPOINT_MANAGED", &read.checkpoints_managed_memory);
  Read("CHECKPOINT_FINAL", &read.refused_checkpoints_are_final);
  Read("MILD_CAPTURES", &read.captures_are_mild);
  read.failures = Failures("FAIL");
  read.faults = Failures("STICKY");
  if (const char* text = Text("LOG")) read.log = text;
  Read("STALL_SECONDS", &read.stall_seconds);
  Read("ABORT_SECONDS", &read.abort_seconds);
  Read("TRACE", &read.traces_calls);
  return read;
}

}  // namespace

bool CanReach(DeviceOrdinal device, DeviceOrdinal peer) {
  if (device == peer || settings().peers == "none") return false;
  if (settings().peers == "all") return true;
  const std::string one = std::to_string(device) + "-" + std::to_string(peer);
  const std::string other = std::to_string(peer) + "-" + std::to_string(device);
  for (const std::string& pair : Split(settings().peers.c_str(), ',')) {
    if (pair == one || pair == other) return true;
  }
  return false;
}

const Settings& settings() {
  static const Settings& read = *new Settings(ReadAll());
  return read;
}

}  // namespace cistern::strict
