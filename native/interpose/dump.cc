#include "interpose/dump.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "interpose/control.h"

namespace cistern::interpose {
namespace {

constexpr std::uint16_t kUsed = 65535;  // a stack that is used and has no number yet

// The numbers that things have in the dump, from 1; 0: not defined yet. Too large for a stack.
struct Numbers {
  std::uint16_t layers[kPlaceCount];
  std::uint16_t accounts[1024];
  std::uint16_t stacks[65536];
  std::uint16_t ways[256];
  std::uint16_t layer_count, account_count, stack_count, way_count;
};
Numbers numbers;
RecordingFile file;

bool Create(unsigned number) {
  const char* folder = DumpFolder();
  int length = folder == nullptr ? 0 : static_cast<int>(std::strlen(folder));
  if (folder == nullptr) {
    folder = control()->file;
    length = static_cast<int>(std::strrchr(folder, '/') - folder);
  }
  char path[sizeof(control()->file) + 80];
  for (int copy = 1; copy < 1000; copy++) {
    // An earlier program with the same number may have left one.
    char counted[16] = "";
    if (copy > 1) snprintf(counted, sizeof(counted), "-%d", copy);
    snprintf(path, sizeof(path), "%.*s/out-of-memory-%d-%ld-%u%s.cistern", length, folder, static_cast<int>(getpid()),
             static_cast<long>(syscall(SYS_gettid)), number, counted);
    if (file.Create(path, false)) return true;
    if (errno != EEXIST) return false;
  }
  return false;
}

bool Define(std::uint32_t head, std::uint64_t index, const char* text, std::size_t length) {
  return file.Define(head, 0, static_cast<double>(index), text, length);
}
bool Define(std::uint32_t head, std::uint64_t index, const char* text) { return Define(head, index, text, std::strlen(text)); }

void DefineLayer(int place) {
  if (numbers.layers[place] != 0) return;
  char name[32];
  NameOfPlace(place, name, sizeof(name));
  Define(kDefineLayer, numbers.layer_count, name);
  numbers.layers[place] = ++numbers.layer_count;
}

std::uint32_t LayerOf(int place) { return static_cast<std::uint32_t>(numbers.layers[place] - 1); }

void PutAccount(std::uint16_t account) {
  if (account == 0) return;
  if (numbers.accounts[account] == 0) {
    numbers.accounts[account] = ++numbers.account_count;
    Define(kDefineAccount, numbers.account_count, AccountName(account));
  }
  file.Put(kAccount, 0, numbers.accounts[account], 0);
}

// Whether the entry is an allocation, rather than a name or a part of one.
bool IsAllocation(const Entry& entry) {
  switch (static_cast<Class>(entry.key & 15)) {
    case Class::kAddress:
    case Class::kRegistered:
    case Class::kArray:
    case Class::kExternalMemory:
      return true;
    case Class::kMemory:
      return entry.bytes > 0;
    default:
      return false;
  }
}

void DefineStacks(const Dump& dump) {
  dump.book.ForEach([&](const Entry& entry) {
    if (IsAllocation(entry) && entry.stack != 0) numbers.stacks[entry.stack] = kUsed;
  });
  dump.book.ForEach([&](const Entry& entry) {
    if (static_cast<Class>(entry.key & 15) != Class::kStack || numbers.stacks[entry.bytes] != kUsed || entry.memory == 0) return;
    char text[kMostTextBytes];
    const std::size_t length = dump.recording.ReadText(entry.pointer, text, entry.memory < sizeof(text) ? entry.memory : sizeof(text));
    if (length == 0) return;
    numbers.stacks[entry.bytes] = ++numbers.stack_count;
    Define(kDefineStack, numbers.stack_count, text, length);
  });
}

void PutAllocation(const Dump& dump, const Entry& entry) {
  PutAccount(entry.account);
  const std::uint16_t stack = numbers.stacks[entry.stack];
  if (stack != 0 && stack != kUsed) file.Put(kStack, 0, stack, 0);
  const auto pointer = static_cast<double>(entry.pointer);
  file.Put(kAllocate | LayerOf(entry.layer) << 8, 0, pointer, static_cast<double>(entry.bytes));
  if (entry.way == 0) return;
  if (numbers.ways[entry.way] == 0) {
    numbers.ways[entry.way] = ++numbers.way_count;
    Define(kDefineLabel, numbers.way_count, dump.ways[entry.way - 1]);
  }
  file.Put(kLabel | LayerOf(entry.layer) << 8, 0, pointer, numbers.ways[entry.way]);
}

}  // namespace

const char* DumpFolder() {
  const char* folder = getenv("CISTERN_DUMP_ON_OUT_OF_MEMORY");
  return folder == nullptr || *folder == 0 ? nullptr : folder;
}

bool WriteDump(const Dump& dump, unsigned number) {
  if (!Create(number)) return false;
  std::memset(&numbers, 0, sizeof(numbers));
  DefineLayer(dump.request.place);
  dump.book.ForEach([&](const Entry& entry) {
    if (IsAllocation(entry)) DefineLayer(entry.layer);
  });
  Define(kDefineStream, 0, "host");
  char thread[32];
  snprintf(thread, sizeof(thread), "%ld", static_cast<long>(syscall(SYS_gettid)));
  Define(kDefineThread, 0, thread);
  file.Put(kThread, 0, 0, 0);
  Define(kDefineNote, 0, dump.note);
  DefineStacks(dump);
  dump.book.ForEach([&](const Entry& entry) {
    if (IsAllocation(entry)) PutAllocation(dump, entry);
  });
  PutAccount(dump.request.account);
  if (dump.stack_length > 0) {
    Define(kDefineStack, ++numbers.stack_count, dump.stack, dump.stack_length);
    file.Put(kStack, 0, numbers.stack_count, 0);
  }
  const SplitBytes bytes = Split(dump.request.bytes);
  const bool is_written = file.Put(kFailure | LayerOf(dump.request.place) << 8, 0, bytes.rest, bytes.rounded);
  file.Seal();
  file.Abandon();
  return is_written;
}

}  // namespace cistern::interpose
