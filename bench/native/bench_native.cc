// The native figures that cistern's own are compared with, as JSON on standard output.
//
//   bench_native software-async [--repetitions N]     the software device's pool and event calls, made from C++
//   bench_native malloc TRACE.bin [--library PATH] [--repetitions N]
//                                                     a trace through malloc and free of glibc, or mi_malloc and mi_free of PATH
//   bench_native null TRACE.bin [--repetitions N]     the same loop over the same trace around calls that do nothing
//   bench_native index TRACE.bin [--repetitions N]    the same loop over the same trace through the free-space index in C++, with
//                                                     a hash (FNV-1a) of the addresses
//   bench_native holes N [--library PATH] [--repetitions N]
//                                                     allocations and frees of 4 KiB among N free holes, as subjects/holes.mjs makes them
//
// TRACE.bin, little endian: uint32 magic 0x43545243, uint32 event count, uint32 slot count, then for each event
// uint32 slot, uint32 is_free, double bytes. A slot is a place for one live allocation.
//
// Every figure is nanoseconds per call: the median and the minimum over repetitions of a whole loop.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "software/software_device.h"
#include "suballocation/index_functions.h"

namespace {

using cistern::DevicePointer;
using cistern::DriverTable;
using cistern::kSuccess;

[[noreturn]] void Die(const std::string& reason) {
  std::fprintf(stderr, "bench_native: %s\n", reason.c_str());
  std::exit(1);
}

void Require(cistern::Status status, const char* what) {
  if (status != kSuccess) Die(std::string(what) + " returned status " + std::to_string(status));
}

std::int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

class Figures {
 public:
  void Add(std::int64_t nanoseconds, std::uint64_t calls) {
    values_.push_back(static_cast<double>(nanoseconds) / static_cast<double>(calls));
  }
  void Print(const char* name, const char* end) {
    std::sort(values_.begin(), values_.end());
    std::size_t middle = values_.size() / 2;
    double median = values_.size() % 2 == 1 ? values_[middle] : (values_[middle - 1] + values_[middle]) / 2;
    std::printf("  \"%s\": {\"median\": %.2f, \"minimum\": %.2f, \"maximum\": %.2f}%s\n", name, median, values_.front(), values_.back(),
                end);
  }

 private:
  std::vector<double> values_;
};

constexpr std::size_t kBlockBytes = 4096;

struct AsyncSetup {
  const DriverTable& driver = cistern::software::Table();
  cistern::Stream stream = nullptr;
  cistern::Pool pool = nullptr;
  cistern::Event event = nullptr;
  cistern::Event timed_event = nullptr;

  AsyncSetup() {
    Require(driver.Init(0), "cuInit");
    cistern::Context context = nullptr;
    Require(driver.DevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    Require(driver.CtxSetCurrent(context), "cuCtxSetCurrent");
    Require(driver.StreamCreateWithPriority(&stream, cistern::kStreamNonBlocking, 0), "cuStreamCreateWithPriority");
    Require(driver.EventCreate(&event, cistern::kEventDisableTiming), "cuEventCreate");
    Require(driver.EventCreate(&timed_event, cistern::kEventDefault), "cuEventCreate");
    cistern::PoolProperties properties = {};
    properties.alloc_type = 1;
    properties.location = {cistern::kLocationDevice, 0};
    Require(driver.MemPoolCreate(&pool, &properties), "cuMemPoolCreate");
    std::uint64_t keep_everything = ~std::uint64_t{0};
    Require(driver.MemPoolSetAttribute(pool, cistern::kPoolReleaseThreshold, &keep_everything), "cuMemPoolSetAttribute");
  }

  DevicePointer Allocate() const {
    DevicePointer pointer = 0;
    if (driver.MemAllocFromPoolAsync(&pointer, kBlockBytes, pool, stream) != kSuccess) Die("an allocation failed");
    return pointer;
  }
  void Free(DevicePointer pointer) const {
    if (driver.MemFreeAsync(pointer, stream) != kSuccess) Die("a free failed");
  }
};

template <typename Body>
Figures Measure(int repetitions, std::uint64_t calls, Body body) {
  Figures figures;
  body();
  for (int i = 0; i < repetitions; ++i) {
    std::int64_t start = Now();
    body();
    figures.Add(Now() - start, calls);
  }
  return figures;
}

// Allocates all blocks, then frees them in the given order; the two loops are measured separately.
void MeasureMany(const AsyncSetup& setup, int repetitions, const std::vector<std::size_t>& order, Figures* allocations, Figures* frees) {
  std::vector<DevicePointer> blocks(order.size());
  constexpr int kRounds = 100;
  for (int i = 0; i <= repetitions; ++i) {
    std::int64_t allocating = 0;
    std::int64_t freeing = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::int64_t start = Now();
      for (DevicePointer& block : blocks) block = setup.Allocate();
      std::int64_t middle = Now();
      for (std::size_t index : order) setup.Free(blocks[index]);
      freeing += Now() - middle;
      allocating += middle - start;
    }
    if (i == 0) continue;  // warms up
    allocations->Add(allocating, kRounds * order.size());
    frees->Add(freeing, kRounds * order.size());
  }
}

// At random places among live blocks, frees one block at a time and allocates another one.
Figures MeasureChurn(const AsyncSetup& setup, int repetitions, std::size_t live) {
  constexpr std::uint64_t kSteps = 100000;
  std::vector<DevicePointer> blocks(live);
  for (DevicePointer& block : blocks) block = setup.Allocate();
  std::uint64_t random = 88172645463325252u;
  Figures figures = Measure(repetitions, 2 * kSteps, [&] {
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      DevicePointer& block = blocks[random % live];
      setup.Free(block);
      block = setup.Allocate();
    }
  });
  for (DevicePointer block : blocks) setup.Free(block);
  return figures;
}

int RunSoftwareAsync(int repetitions) {
  AsyncSetup setup;
  constexpr std::uint64_t kCalls = 200000;
  constexpr std::size_t kLive = 1000;
  // The null subject: a call through the table that does almost nothing.
  Figures null_call = Measure(repetitions, kCalls, [&] {
    int version = 0;
    for (std::uint64_t i = 0; i < kCalls; ++i) setup.driver.DriverGetVersion(&version);
  });
  Figures pairs = Measure(repetitions, 2 * kCalls, [&] {
    for (std::uint64_t i = 0; i < kCalls; ++i) setup.Free(setup.Allocate());
  });
  std::vector<std::size_t> in_order(kLive);
  for (std::size_t i = 0; i < kLive; ++i) in_order[i] = i;
  std::vector<std::size_t> scattered = in_order;
  for (std::size_t i = 0; i < kLive; ++i) std::swap(scattered[i], scattered[i * 7919 % kLive]);
  Figures allocations;
  Figures frees;
  MeasureMany(setup, repetitions, in_order, &allocations, &frees);
  Figures scattered_allocations;
  Figures scattered_frees;
  MeasureMany(setup, repetitions, scattered, &scattered_allocations, &scattered_frees);
  Figures churn = MeasureChurn(setup, repetitions, kLive);
  Figures record = Measure(repetitions, kCalls, [&] {
    for (std::uint64_t i = 0; i < kCalls; ++i) setup.driver.EventRecord(setup.event, setup.stream);
  });
  Figures timed_record = Measure(repetitions, kCalls, [&] {
    for (std::uint64_t i = 0; i < kCalls; ++i) setup.driver.EventRecord(setup.timed_event, setup.stream);
  });
  Figures query = Measure(repetitions, kCalls, [&] {
    for (std::uint64_t i = 0; i < kCalls; ++i) setup.driver.EventQuery(setup.event);
  });
  Figures synchronize = Measure(repetitions, kCalls, [&] {
    for (std::uint64_t i = 0; i < kCalls; ++i) setup.driver.StreamSynchronize(setup.stream);
  });
  cistern::Stream other = nullptr;
  Require(setup.driver.StreamCreateWithPriority(&other, cistern::kStreamNonBlocking, 0), "cuStreamCreateWithPriority");
  Figures wait = Measure(repetitions, kCalls, [&] {
    for (std::uint64_t i = 0; i < kCalls; ++i) setup.driver.StreamWaitEvent(other, setup.event, 0);
  });
  Figures plain = Measure(repetitions, 2 * kCalls, [&] {
    DevicePointer pointer = 0;
    for (std::uint64_t i = 0; i < kCalls; ++i) {
      setup.driver.MemAlloc(&pointer, kBlockBytes);
      setup.driver.MemFree(pointer);
    }
  });
  std::printf("{\n  \"mode\": \"software-async\", \"blockBytes\": %zu, \"live\": %zu, \"repetitions\": %d,\n", kBlockBytes, kLive,
              repetitions);
  null_call.Print("null", ",");
  pairs.Print("pairs", ",");
  allocations.Print("allocateMany", ",");
  frees.Print("freeMany", ",");
  scattered_allocations.Print("allocateScattered", ",");
  scattered_frees.Print("freeScattered", ",");
  churn.Print("churn", ",");
  record.Print("eventRecord", ",");
  timed_record.Print("eventRecordTimed", ",");
  query.Print("eventQuery", ",");
  wait.Print("streamWaitEvent", ",");
  synchronize.Print("streamSynchronize", ",");
  plain.Print("plainPairs", "");
  std::printf("}\n");
  return 0;
}

struct TraceEvent {
  std::uint32_t slot;
  std::uint32_t is_free;
  double bytes;
};
static_assert(sizeof(TraceEvent) == 16, "the file's layout");

struct Trace {
  std::uint32_t slot_count;
  std::vector<TraceEvent> events;
};

Trace ReadTrace(const char* path) {
  constexpr std::uint32_t kMagic = 0x43545243;
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr) Die(std::string("cannot open ") + path);
  std::uint32_t header[3];
  if (std::fread(header, sizeof header, 1, file) != 1 || header[0] != kMagic) Die(std::string(path) + " is not a trace");
  Trace trace{header[2], std::vector<TraceEvent>(header[1])};
  if (std::fread(trace.events.data(), sizeof(TraceEvent), header[1], file) != header[1]) Die(std::string(path) + " is truncated");
  std::fclose(file);
  for (const TraceEvent& event : trace.events) {
    if (event.slot >= trace.slot_count || !(event.bytes >= 0)) Die(std::string(path) + " holds an event that makes no sense");
  }
  return trace;
}

struct Allocator {
  void* (*allocate)(std::size_t bytes);
  void (*free)(void* pointer);
};

void* AllocateNothing(std::size_t bytes) { return reinterpret_cast<void*>(bytes | 1); }
void FreeNothing(void*) {}

int Replay(const char* subject, const char* path, Allocator allocator, int repetitions) {
  Trace trace = ReadTrace(path);
  std::vector<void*> slots(trace.slot_count, nullptr);
  // Through volatile pointers: the compiler must not see that the memory is unused.
  void* (*volatile allocate)(std::size_t) = allocator.allocate;
  void (*volatile release)(void*) = allocator.free;
  Figures figures;
  for (int i = 0; i <= repetitions; ++i) {
    std::uint64_t failures = 0;
    std::int64_t start = Now();
    for (const TraceEvent& event : trace.events) {
      if (event.is_free != 0) {
        release(slots[event.slot]);
        slots[event.slot] = nullptr;
      } else {
        slots[event.slot] = allocate(static_cast<std::size_t>(event.bytes));
        failures += slots[event.slot] == nullptr;
      }
    }
    std::int64_t elapsed = Now() - start;
    if (i > 0) figures.Add(elapsed, trace.events.empty() ? 1 : trace.events.size());
    for (void*& slot : slots) {
      if (slot != nullptr) release(slot);
      slot = nullptr;
    }
    if (failures != 0) Die(std::to_string(failures) + " allocations failed");
  }
  std::printf("{\n  \"mode\": \"%s\", \"trace\": \"%s\", \"events\": %zu, \"repetitions\": %d,\n", subject, path, trace.events.size(),
              repetitions);
  figures.Print("nanosecondsPerOperation", "");
  std::printf("}\n");
  return 0;
}

// Bytes from `kIndexBase` on, in one lane.
constexpr double kIndexBase = 1099511627776.0;
constexpr std::uint32_t kIndexUnits = 0x7fffffff;
constexpr double kUnitBytes = 256;

int ReplayIndex(const char* path, int repetitions) {
  namespace index_of = cistern::suballocation;
  const Trace trace = ReadTrace(path);
  std::vector<double> slots(trace.slot_count, -1);
  std::vector<double> sizes(trace.slot_count, 0);
  Figures figures;
  std::uint64_t hash = 0;
  for (int i = 0; i <= repetitions; ++i) {
    index_of::IndexModule module;
    const std::uint32_t index = index_of::createIndex(&module);
    const std::uint32_t lane = index_of::addLane(&module, index);
    if (index == 0 || lane == 0 || !index_of::addSegment(&module, index, kIndexBase, kIndexUnits, lane)) Die("no memory for an index");
    if (i == 0) {  // warms up
      hash = 14695981039346656037u;
    }
    std::uint64_t failures = 0;
    const std::int64_t start = Now();
    for (const TraceEvent& event : trace.events) {
      if (event.is_free != 0) {
        failures += index_of::freeAt(&module, index, slots[event.slot], static_cast<std::uint32_t>(sizes[event.slot]), lane) == 0;
      } else {
        const auto units = static_cast<std::uint32_t>(std::ceil(event.bytes / kUnitBytes));
        const auto slack = static_cast<std::uint32_t>(units * kUnitBytes - event.bytes);
        const double address = index_of::allocate(&module, index, units, slack, lane, ~0u);
        failures += address < 0;
        slots[event.slot] = address;
        sizes[event.slot] = event.bytes;
        if (i == 0) hash = (hash ^ static_cast<std::uint64_t>(address)) * 1099511628211u;
      }
    }
    if (i > 0) figures.Add(Now() - start, trace.events.empty() ? 1 : trace.events.size());
    if (failures != 0) Die(std::to_string(failures) + " operations failed");
  }
  std::printf("{\n  \"mode\": \"index\", \"trace\": \"%s\", \"events\": %zu, \"repetitions\": %d, \"hash\": \"%016llx\",\n", path,
              trace.events.size(), repetitions, static_cast<unsigned long long>(hash));
  figures.Print("nanosecondsPerOperation", "");
  std::printf("}\n");
  return 0;
}

// xorshift32, as in support/numbers.mjs.
class SeededNumbers {
 public:
  double Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return static_cast<double>(state_) / 4294967296.0;
  }
  // From 256 bytes to 256 << orders.
  std::size_t MixedSize(int orders) { return static_cast<std::size_t>(std::floor(std::exp2(8 + orders * Next()))); }

 private:
  std::uint32_t state_ = 2463534242u;
};

int RunHoles(std::size_t holes, Allocator allocator, int repetitions) {
  constexpr std::size_t kSeparatorBytes = 256;
  constexpr std::uint64_t kSteps = 100000;
  constexpr std::size_t kBurst = 25;
  void* (*volatile allocate)(std::size_t) = allocator.allocate;
  void (*volatile release)(void*) = allocator.free;
  SeededNumbers random;
  std::vector<std::size_t> hole_sizes(holes);
  for (std::size_t& bytes : hole_sizes) bytes = random.MixedSize(12);
  std::vector<std::size_t> mixed_sizes(4096);
  for (std::size_t& bytes : mixed_sizes) bytes = random.MixedSize(8);
  std::vector<void*> blocks(holes);
  for (std::size_t i = 0; i < holes; ++i) {
    blocks[i] = allocate(hole_sizes[i]);
    if (blocks[i] == nullptr || allocate(kSeparatorBytes) == nullptr) Die("an allocation failed");
  }
  for (std::size_t i = holes - 1; i > 0; --i) std::swap(blocks[i], blocks[static_cast<std::size_t>(random.Next() * (i + 1))]);
  for (void* block : blocks) release(block);

  Figures pairs = Measure(repetitions, kSteps, [&] {
    for (std::uint64_t i = 0; i < kSteps; ++i) release(allocate(kBlockBytes));
  });
  Figures mixed_pairs = Measure(repetitions, kSteps, [&] {
    for (std::uint64_t i = 0; i < kSteps; ++i) release(allocate(mixed_sizes[i % mixed_sizes.size()]));
  });
  Figures allocations;
  Figures frees;
  void* burst[kBurst];
  for (int i = 0; i <= repetitions; ++i) {
    std::int64_t allocating = 0;
    std::int64_t freeing = 0;
    for (std::uint64_t round = 0; round < kSteps / kBurst; ++round) {
      std::int64_t start = Now();
      for (void*& block : burst) block = allocate(kBlockBytes);
      std::int64_t middle = Now();
      for (void* block : burst) release(block);
      freeing += Now() - middle;
      allocating += middle - start;
    }
    if (i == 0) continue;  // warms up
    allocations.Add(allocating, kSteps);
    frees.Add(freeing, kSteps);
  }
  std::printf("{\n  \"mode\": \"holes\", \"holes\": %zu, \"repetitions\": %d,\n", holes, repetitions);
  pairs.Print("pair", ",");
  allocations.Print("allocate", ",");
  frees.Print("free", ",");
  mixed_pairs.Print("mixedPair", "");
  std::printf("}\n");
  return 0;
}

Allocator LoadAllocator(const char* library) {
  if (library == nullptr) return {std::malloc, std::free};
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) Die(dlerror());
  Allocator allocator = {reinterpret_cast<void* (*)(std::size_t)>(dlsym(handle, "mi_malloc")),
                         reinterpret_cast<void (*)(void*)>(dlsym(handle, "mi_free"))};
  if (allocator.allocate == nullptr || allocator.free == nullptr) Die(std::string(library) + " has no mi_malloc and mi_free");
  return allocator;
}

}  // namespace

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  const char* trace = nullptr;
  const char* library = nullptr;
  int repetitions = 15;
  for (int i = 2; i < argc; ++i) {
    bool has_value = i + 1 < argc;
    if (has_value && std::strcmp(argv[i], "--library") == 0) {
      library = argv[++i];
    } else if (has_value && std::strcmp(argv[i], "--repetitions") == 0) {
      repetitions = std::max(1, std::atoi(argv[++i]));
    } else if (trace == nullptr && argv[i][0] != '-') {
      trace = argv[i];
    } else {
      Die(std::string("unknown argument ") + argv[i]);
    }
  }
  if (std::strcmp(mode, "software-async") == 0) return RunSoftwareAsync(repetitions);
  if (trace == nullptr) {
    Die("usage: bench_native software-async | malloc TRACE.bin [--library PATH] | null TRACE.bin | index TRACE.bin | holes N [--library "
        "PATH]"
        "  [--repetitions N]");
  }
  if (std::strcmp(mode, "malloc") == 0) return Replay(library == nullptr ? "glibc" : library, trace, LoadAllocator(library), repetitions);
  if (std::strcmp(mode, "index") == 0) return ReplayIndex(trace, repetitions);
  if (std::strcmp(mode, "null") == 0) return Replay("null", trace, {AllocateNothing, FreeNothing}, repetitions);
  if (std::strcmp(mode, "holes") == 0) {
    int holes = std::atoi(trace);
    if (holes < 1) Die(std::string("not a number of holes: ") + trace);
    return RunHoles(static_cast<std::size_t>(holes), LoadAllocator(library), repetitions);
  }
  Die(std::string("unknown mode ") + mode);
}
