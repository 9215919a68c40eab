#include "software/settings.h"

#include <array>
#include <cstring>

#include "software/device.h"

namespace cistern::software {
namespace {

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

std::atomic<bool> is_strict{false};
std::atomic<bool> frees_wait{true};
std::atomic<bool> has_concurrent_managed_access{true};
std::atomic<bool> is_coherent{false};
std::atomic<bool> has_pageable_access{false};
std::atomic<std::uint64_t> migration_nanoseconds{0};
std::atomic<std::uint32_t> unreachable_peers[kMaxDevices];

bool SetReachablePeers(const char* text) {
  PeerMasks masks;
  if (!ParsePeers(text, &masks)) return false;
  for (std::size_t i = 0; i < masks.size(); ++i) unreachable_peers[i] = ~masks[i];
  return true;
}

}  // namespace cistern::software
