#include "interpose/ledger.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "interpose/control.h"
#include "interpose/dump.h"
#include "interpose/recording_file.h"

namespace cistern::interpose {
namespace {

constexpr std::uint64_t kLastStream = 65535;
constexpr std::uint64_t kLastStack = 16383;
constexpr int kMostNotes = 20;
// A library that asks again and again must not fill the disk.
constexpr unsigned kMostDumps = 10;
// Where memory is shown that has no address of its own: above all that have one.
constexpr std::uint64_t kMadeUpBegin = std::uint64_t{1} << 48;
constexpr std::uint64_t kMadeUpEnd = std::uint64_t{1} << 52;

thread_local int depth;

// All that the lock protects.
struct Ledger {
  Book book;
  RecordingFile file;
  bool is_begun;
  bool has_ended;  // the file could not be written
  std::uint64_t origin;
  std::uint64_t made_up;
  std::uint64_t memories;
  int layers[kPlaceCount];  // the layer of each place plus 1; 0: not defined
  int layer_count;
  std::uint64_t stream_count;
  std::uint64_t last_stream;
  std::uint32_t last_stream_index;
  std::uint64_t stack_count;
  std::uint64_t thread_count;
  std::uint64_t last_thread;
  std::uint64_t last_account;
  std::uint64_t account_indexes[1024];
  LibrarySlot* libraries[1024];  // by account
  bool has_library_slots[1024];
  std::uint64_t account_count;
  const char* ways[64];
  int way_count;
  int defined_ways;
  int note_count;
  unsigned dump_count;
  std::uint64_t change_count;  // allocations and frees
  std::uint64_t changes_at_dump;
};
Ledger ledger;
pthread_mutex_t ledger_lock = PTHREAD_MUTEX_INITIALIZER;
std::atomic<std::uint64_t> bytes_since_stack{~std::uint64_t{0} >> 1};  // the first allocation has one
// Counts forks: what a thread knows of the file before one is void.
std::uint32_t epoch = 1;
thread_local std::uint32_t epoch_of_thread;
thread_local std::uint64_t thread_index;

class Lock {
 public:
  Lock() { pthread_mutex_lock(&ledger_lock); }
  ~Lock() { pthread_mutex_unlock(&ledger_lock); }
  Lock(const Lock&) = delete;
};

std::uint64_t Now() {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec) - ledger.origin;
}

void Say(const char* format, ...) {
  char text[4400];
  va_list values;
  va_start(values, format);
  const int length = vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  if (length > 0) (void)!write(STDERR_FILENO, text, static_cast<std::size_t>(length));
}

void End() {
  const int error = errno;
  ledger.has_ended = true;
  ledger.file.Abandon();
  Say("cistern: %s is not written any further: %s; the program goes on\n", control()->file, strerror(error));
}

bool Put(std::uint32_t head, std::uint64_t time, double first, double second) {
  if (ledger.has_ended) return false;
  if (ledger.file.Put(head, time, first, second)) return true;
  End();
  return false;
}

void Define(std::uint32_t head, std::uint64_t time, std::uint64_t index, const char* text, std::size_t length) {
  if (ledger.has_ended) return;
  if (!ledger.file.Define(head, time, static_cast<double>(index), text, length)) End();
}

void Define(std::uint32_t head, std::uint64_t time, std::uint64_t index, const char* text) {
  Define(head, time, index, text, std::strlen(text));
}

// The first process writes to the file that the command named, others to files beside it with their numbers.
void Begin() {
  if (ledger.is_begun) return;
  ledger.is_begun = true;
  ledger.origin = 0;
  ledger.origin = Now();
  ledger.made_up = kMadeUpBegin;
  ledger.last_thread = ledger.last_account = ~std::uint64_t{0};
  ledger.last_stream = kNoStream;
  ForgetLibrarySlots();
  Control* shared = control();
  const int before = errno;
  std::uint32_t is_taken = 0;
  bool is_created;
  if (shared->main_file_is_taken.compare_exchange_strong(is_taken, 1)) {
    OwnSlot()->has_main_file.store(1);
    is_created = ledger.file.Create(shared->file, true);
  } else {
    // run.cistern, run.123.cistern, and run.123-2.cistern for the next program of process 123.
    const char* slash = std::strrchr(shared->file, '/');
    const char* point = std::strrchr(shared->file, '.');
    const int stem = static_cast<int>(point != nullptr && point > slash + 1 ? point - shared->file : std::strlen(shared->file));
    char path[sizeof(shared->file) + 40];
    int number = 1;
    do {
      char counted[16] = "";
      if (number > 1) snprintf(counted, sizeof(counted), "-%d", number);
      snprintf(path, sizeof(path), "%.*s.%d%s%s", stem, shared->file, static_cast<int>(getpid()), counted, shared->file + stem);
      is_created = ledger.file.Create(path, false);
    } while (!is_created && errno == EEXIST && ++number < 1000);
  }
  if (!is_created) End();
  errno = before;
}

std::uint32_t LayerOf(int place, std::uint64_t time) {
  if (ledger.layers[place] != 0) return static_cast<std::uint32_t>(ledger.layers[place] - 1);
  const auto define = [&](int each) {
    char name[32];
    NameOfPlace(each, name, sizeof(name));
    Define(kDefineLayer, time, static_cast<std::uint64_t>(ledger.layer_count), name);
    ledger.layers[each] = ++ledger.layer_count;
  };
  // The first layer is the one that is shown first: it is that of a device.
  if (ledger.layer_count == 0) define(place < kMostDevices ? place : 0);
  if (ledger.layers[place] == 0) define(place);
  return static_cast<std::uint32_t>(ledger.layers[place] - 1);
}

std::uint32_t StreamOf(std::uint64_t stream, std::uint64_t time) {
  if (ledger.stream_count == 0) {
    Define(kDefineStream, time, 0, "host");
    ledger.stream_count = 1;
  }
  if (stream == kNoStream) return 0;
  if (stream == ledger.last_stream) return ledger.last_stream_index;
  Entry* entry = ledger.book.Add(Book::KeyOf(Class::kStream, stream));
  if (entry == nullptr) return 0;
  if (entry->bytes == 0) {
    if (ledger.stream_count > kLastStream) return kLastStream;
    char name[32];
    if (ledger.stream_count == kLastStream)
      std::strcpy(name, "(more streams)");
    else
      snprintf(name, sizeof(name), "0x%llx", static_cast<unsigned long long>(stream));
    entry->bytes = ledger.stream_count++;
    Define(kDefineStream, time, entry->bytes, name);
  }
  ledger.last_stream = stream;
  ledger.last_stream_index = static_cast<std::uint32_t>(entry->bytes);
  return ledger.last_stream_index;
}

void SetThread(std::uint64_t time) {
  if (epoch_of_thread != epoch) {
    epoch_of_thread = epoch;
    thread_index = ledger.thread_count < 65534 ? ledger.thread_count : 65534;
    char text[32];
    snprintf(text, sizeof(text), "%ld", static_cast<long>(syscall(SYS_gettid)));
    if (ledger.thread_count == 65534) std::strcpy(text, "(more threads)");
    if (ledger.thread_count <= 65534) Define(kDefineThread, time, ledger.thread_count++, text);
  }
  if (ledger.last_thread == thread_index) return;
  ledger.last_thread = thread_index;
  Put(kThread, time, static_cast<double>(thread_index), 0);
}

void SetAccount(std::uint16_t account, std::uint64_t time) {
  if (ledger.last_account == account) return;
  ledger.last_account = account;
  std::uint64_t& index = ledger.account_indexes[account];
  if (account != 0 && index == 0) {
    index = ++ledger.account_count;
    Define(kDefineAccount, time, index, AccountName(account));
  }
  Put(kAccount, time, static_cast<double>(index), 0);
}

// Returns its number, or 0.
std::uint16_t SetStack(const char* text, std::size_t length, std::uint64_t time) {
  if (length == 0) return 0;
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < length; i++) hash = (hash ^ static_cast<unsigned char>(text[i])) * 0x100000001b3u;
  Entry* entry = ledger.book.Add(Book::KeyOf(Class::kStack, hash >> 4));
  if (entry == nullptr) return 0;
  if (entry->bytes == 0) {
    if (ledger.stack_count < kLastStack) {
      entry->bytes = ++ledger.stack_count;
      if (entry->bytes == kLastStack) {
        Define(kDefineStack, time, entry->bytes, "(more stacks)");
      } else {
        Define(kDefineStack, time, entry->bytes, text, length);
        // For dumps.
        entry->pointer = ledger.file.text_offset();
        entry->memory = length;
      }
    } else {
      entry->bytes = kLastStack;
    }
  }
  Put(kStack, time, static_cast<double>(entry->bytes), 0);
  return static_cast<std::uint16_t>(entry->bytes);
}

// The number of a label, or 0.
std::uint8_t WayOf(const char* way) {
  if (way == nullptr) return 0;
  int index = 0;
  while (index < ledger.way_count && ledger.ways[index] != way) index++;
  if (index == 64) return 0;
  if (index == ledger.way_count) ledger.ways[ledger.way_count++] = way;
  return static_cast<std::uint8_t>(index + 1);
}

void Label(std::uint32_t layer, const Entry& entry, std::uint64_t time) {
  for (; ledger.defined_ways < entry.way; ledger.defined_ways++)
    Define(kDefineLabel, time, static_cast<std::uint64_t>(ledger.defined_ways) + 1, ledger.ways[ledger.defined_ways]);
  Put(kLabel | layer << 8, time, static_cast<double>(entry.pointer), entry.way);
}

bool IsDevice(int place) { return place < kMostDevices; }
// The pages of managed memory move to a device when it uses them. A library that takes it once a device is full must not pass a limit.
bool IsLimited(int place) { return IsDevice(place) || place == kManaged; }

// The limits have its bytes again.
void ReturnOf(const Entry& entry) {
  if (IsLimited(entry.layer)) Return(entry.bytes, entry.limits, entry.layer == kManaged);
}

// Keeps what the library holds, for whoever watches. Addresses of imported memory and of graphs have no memory of their own.
void CountForLibrary(const Entry& entry, bool is_added) {
  const bool is_device = IsDevice(entry.layer);
  if (!is_device && entry.layer != kManaged && entry.layer != kPinned && entry.layer != kRegistered) return;
  if (!ledger.has_library_slots[entry.account]) {
    ledger.has_library_slots[entry.account] = true;
    ledger.libraries[entry.account] = TakeLibrarySlot(entry.account == 0 ? "(more libraries)" : AccountName(entry.account));
  }
  LibrarySlot* slot = ledger.libraries[entry.account];
  if (slot == nullptr) return;
  // Only this process writes here, under the lock.
  constexpr auto kRelaxed = std::memory_order_relaxed;
  std::atomic<std::uint64_t>& bytes = is_device ? slot->device : slot->host;
  const std::uint64_t now = bytes.load(kRelaxed) + (is_added ? entry.bytes : ~entry.bytes + 1);
  bytes.store(now, kRelaxed);
  if (is_added) slot->allocations.store(slot->allocations.load(kRelaxed) + 1, kRelaxed);
  if (is_device && now > slot->device_peak.load(kRelaxed)) slot->device_peak.store(now, kRelaxed);
}

void PutFree(const Entry& entry, std::uint64_t stream, std::uint64_t time) {
  ledger.change_count++;
  CountForLibrary(entry, false);
  SetThread(time);
  const std::uint32_t layer = LayerOf(entry.layer, time);
  Put(kFree | layer << 8 | StreamOf(stream, time) << 16, time, static_cast<double>(entry.pointer), static_cast<double>(entry.bytes));
}

// The entry is a copy: the book may move when names are added to it.
void PutAllocate(Entry entry, std::uint64_t stream, std::uint64_t time, const char* stack, std::size_t stack_length) {
  ledger.change_count++;
  CountForLibrary(entry, true);
  SetThread(time);
  SetAccount(entry.account, time);
  const std::uint32_t layer = LayerOf(entry.layer, time);
  const std::uint32_t of_stream = StreamOf(stream, time);
  const std::uint16_t number = SetStack(stack, stack_length, time);
  Put(kAllocate | layer << 8 | of_stream << 16, time, static_cast<double>(entry.pointer), static_cast<double>(entry.bytes));
  if (entry.way != 0) Label(layer, entry, time);
  if (number == 0) return;
  if (Entry* kept = ledger.book.Find(entry.key)) kept->stack = number;
}

// What the libraries of this process hold, and the other processes of the run.
void Holders(char* text, std::size_t capacity) {
  std::size_t length = 0;
  const auto add = [&](const char* who, std::uint64_t number, std::uint64_t device, std::uint64_t host) {
    if ((device == 0 && host == 0) || length >= capacity) return;
    char process[32] = "";
    if (number != 0) snprintf(process, sizeof(process), "process %llu", static_cast<unsigned long long>(number));
    length += static_cast<std::size_t>(snprintf(text + length, capacity - length, "\n  %s%s: %llu bytes of devices", who, process,
                                                static_cast<unsigned long long>(device)));
    if (host != 0 && length < capacity)
      length += static_cast<std::size_t>(
          snprintf(text + length, capacity - length, ", %llu bytes of the host", static_cast<unsigned long long>(host)));
  };
  constexpr auto kRelaxed = std::memory_order_relaxed;
  for (LibrarySlot* library : ledger.libraries) {
    if (library != nullptr) add(library->name, 0, library->device.load(kRelaxed), library->host.load(kRelaxed));
  }
  for (const Slot& slot : control()->slots) {
    const std::uint32_t process = slot.process.load(kRelaxed);
    if (process != 0 && &slot != OwnSlot()) add("", process, slot.current.load(kRelaxed), 0);
  }
  if (length == 0) text[0] = 0;
}

// Called under the lock. cistern's own resources write a dump of their own, once nothing that they try has helped.
void PutDump(const Request& request, const char* stack, std::size_t stack_length, const char* reason) {
  const char* account = AccountName(request.account);
  if (ledger.dump_count == kMostDumps || std::strcmp(account, "cistern") == 0) return;
  // Arenas ask for less and less until they get something: one file has all that there is to see.
  if (ledger.dump_count > 0 && ledger.changes_at_dump == ledger.change_count) return;
  ledger.changes_at_dump = ledger.change_count;
  const int before = errno;
  char holders[4096], note[6000];
  Holders(holders, sizeof(holders));
  snprintf(note, sizeof(note), "process %d (%s): %s\n\nHeld at that moment:%s", static_cast<int>(getpid()), program_invocation_short_name,
           reason, holders);
  const Dump dump = {ledger.book, ledger.file, ledger.ways, request, stack, stack_length, note};
  if (WriteDump(dump, ++ledger.dump_count)) OwnSlot()->dumps.fetch_add(1, std::memory_order_relaxed);
  errno = before;
}

void PutFailure(const Request& request, const char* note, const char* dump_reason) {
  char stack[8192];
  const std::size_t length = control()->stack_bytes == kNoStacks ? 0 : StackText(stack, sizeof(stack));
  const Lock lock;
  Begin();
  const std::uint64_t time = Now();
  SetThread(time);
  SetAccount(request.account, time);
  const std::uint32_t layer = LayerOf(request.place, time);
  const std::uint32_t of_stream = StreamOf(request.stream, time);
  if (note != nullptr && ledger.note_count < kMostNotes) Define(kDefineNote, time, static_cast<std::uint64_t>(ledger.note_count++), note);
  SetStack(stack, length, time);
  const SplitBytes bytes = Split(request.bytes);
  Put(kFailure | layer << 8 | of_stream << 16, time, bytes.rest, bytes.rounded);
  if (dump_reason != nullptr) PutDump(request, stack, length, dump_reason);
}

std::uint64_t MadeUp(std::uint64_t bytes) {
  // What has no bytes, such as a sparse array, has an address of its own, too.
  const std::uint64_t needed = ((bytes == 0 ? 1 : bytes) + 0x1fffff) & ~std::uint64_t{0x1fffff};
  if (ledger.made_up + needed > kMadeUpEnd) ledger.made_up = kMadeUpBegin;
  const std::uint64_t pointer = ledger.made_up;
  ledger.made_up += needed;
  return pointer;
}

// The memory has no handle and no mapping any more.
void DropIfUnused(Entry* memory) {
  if (memory->handles > 0 || memory->mappings > 0) return;
  ReturnOf(*memory);
  if (memory->bytes > 0) PutFree(*memory, kNoStream, Now());
  ledger.book.Remove(memory);
}

Entry* MemoryOf(std::uint64_t number) { return ledger.book.Find(Book::KeyOf(Class::kMemory, number)); }

void Fill(Entry* entry, const Request& request, std::uint64_t bytes, std::uint64_t pointer) {
  entry->bytes = bytes;
  entry->pointer = pointer;
  entry->context = request.context;
  entry->account = request.account;
  entry->limits = request.limits;
  entry->layer = static_cast<std::uint8_t>(request.place);
  entry->way = WayOf(request.way);
  entry->stack = 0;
}

// The stack of an allocation, if it is its turn.
std::size_t SampledStack(std::uint64_t bytes, char* text, std::size_t capacity) {
  const std::uint64_t every = control()->stack_bytes;
  if (every == kNoStacks) return 0;
  if (bytes_since_stack.fetch_add(bytes, std::memory_order_relaxed) + bytes < every) return 0;
  bytes_since_stack.store(0, std::memory_order_relaxed);
  return StackText(text, capacity);
}

void BeforeFork() { pthread_mutex_lock(&ledger_lock); }
void AfterForkInParent() { pthread_mutex_unlock(&ledger_lock); }
void AfterForkInChild() {
  ledger.file.Abandon();
  ledger.book.Clear();
  const Ledger empty = {};
  std::memcpy(static_cast<void*>(&ledger), &empty, sizeof(ledger));
  epoch++;
  ForgetSlot();
  pthread_mutex_init(&ledger_lock, nullptr);
}

[[gnu::constructor]] void Start() { pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild); }

// Other threads may still allocate, and this one may have been interrupted by a signal while it did.
[[gnu::destructor]] void Stop() {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 200'000'000;
  if (until.tv_nsec >= 1'000'000'000) until.tv_sec++, until.tv_nsec -= 1'000'000'000;
  if (pthread_mutex_timedlock(&ledger_lock, &until) != 0) return;
  ledger.file.Seal();
  pthread_mutex_unlock(&ledger_lock);
}

}  // namespace

void NameOfPlace(int place, char* name, std::size_t capacity) {
  static const char* const kNames[] = {"managed", "pinned host", "registered host", "imported", "graph nodes"};
  if (place < kMostDevices)
    snprintf(name, capacity, "device %d", place);
  else
    snprintf(name, capacity, "%s", kNames[place - kMostDevices]);
}

SplitBytes Split(std::uint64_t bytes) {
  const auto rounded = static_cast<double>(bytes);
  const bool is_too_large = rounded >= 18446744073709551616.0;
  return {rounded, is_too_large ? 0 : static_cast<double>(static_cast<std::int64_t>(bytes - static_cast<std::uint64_t>(rounded)))};
}

bool IsActive() {
  static const bool is_active = control() != nullptr;
  return is_active;
}

bool IsOutermost() { return depth == 0; }
Nested::Nested() { depth++; }
Nested::~Nested() { depth--; }

bool Admit(const Request& request) {
  if (!IsLimited(request.place)) return true;
  int limit;
  if (Reserve(request.bytes, request.limits, request.place == kManaged, &limit)) return true;
  const Limit& passed = control()->limits[limit];
  std::uint64_t left, smallest;
  Remaining(request.limits, &left, &smallest);
  char note[600];
  snprintf(note, sizeof(note), "%s refused %s %llu bytes: the limit%s%s is %llu bytes, of which %llu were left", "cistern run",
           AccountName(request.account), static_cast<unsigned long long>(request.bytes), passed.name[0] == 0 ? "" : " of ", passed.name,
           static_cast<unsigned long long>(passed.bytes), static_cast<unsigned long long>(left));
  PutFailure(request, note, note);
  return false;
}

void Fail(const Request& request, int status) {
  if (IsLimited(request.place)) Return(request.bytes, request.limits, request.place == kManaged);
  constexpr int kOutOfMemory = 2;
  if (status != kOutOfMemory) return;
  char reason[300];
  snprintf(reason, sizeof(reason), "the driver refused %s %llu bytes", AccountName(request.account),
           static_cast<unsigned long long>(request.bytes));
  PutFailure(request, nullptr, DumpFolder() == nullptr ? nullptr : reason);
}

void Add(const Request& request, Class kind, std::uint64_t value, std::uint64_t bytes) {
  char stack[8192];
  const std::size_t length = SampledStack(bytes, stack, sizeof(stack));
  const bool has_address = kind == Class::kAddress || kind == Class::kRegistered;
  const std::uint64_t key = Book::KeyOf(kind, value);
  const Lock lock;
  ledger.book.Expect(key);
  Begin();
  const std::uint64_t time = Now();
  Entry* entry = ledger.book.Add(key);
  if (entry == nullptr) return;
  // A free that was not seen.
  if (entry->bytes != 0 || entry->pointer != 0) {
    ReturnOf(*entry);
    PutFree(*entry, kNoStream, time);
  }
  Fill(entry, request, bytes, has_address ? value : MadeUp(bytes));
  // More than was asked for.
  if (bytes != request.bytes && IsLimited(request.place)) Return(request.bytes - bytes, request.limits, request.place == kManaged);
  if (IsDevice(request.place)) Reserved();
  PutAllocate(*entry, request.stream, time, stack, length);
}

Freed Remove(Class kind, std::uint64_t value, std::uint64_t stream) {
  Freed freed = {};
  const std::uint64_t key = Book::KeyOf(kind, value);
  const Lock lock;
  ledger.book.Expect(key);
  const std::uint64_t time = Now();
  Entry* entry = ledger.book.Find(key);
  if (entry == nullptr) return freed;
  freed = {true, *entry, stream, 0};
  ledger.book.Remove(entry);
  PutFree(freed.entry, stream, time);
  freed.end = ledger.file.end();
  return freed;
}

void Freeing(const Freed& freed, int status) {
  if (!freed.is_known) return;
  if (status == 0) {
    ReturnOf(freed.entry);
    return;
  }
  // It is still there.
  const Lock lock;
  Entry* entry = ledger.book.Add(freed.entry.key);
  if (entry == nullptr) return;
  *entry = freed.entry;
  if (ledger.file.Retract(freed.end))
    CountForLibrary(freed.entry, true);
  else
    PutAllocate(freed.entry, freed.stream, Now(), nullptr, 0);
}

void AddMemory(const Request& request, std::uint64_t handle, bool is_imported) {
  char stack[8192];
  const std::size_t length = is_imported ? 0 : SampledStack(request.bytes, stack, sizeof(stack));
  const Lock lock;
  Begin();
  const std::uint64_t number = ++ledger.memories;
  Entry* memory = ledger.book.Add(Book::KeyOf(Class::kMemory, number));
  if (memory == nullptr) return;
  Fill(memory, request, is_imported ? 0 : request.bytes, is_imported ? 0 : MadeUp(request.bytes));
  memory->handles = 1;
  if (IsDevice(request.place)) Reserved();
  if (!is_imported) PutAllocate(*memory, request.stream, Now(), stack, length);
  Entry* entry = ledger.book.Add(Book::KeyOf(Class::kHandle, handle));
  if (entry != nullptr) entry->memory = number;
}

void RetainMemory(std::uint64_t handle, std::uint64_t address) {
  const Lock lock;
  const Entry* mapping = ledger.book.Find(Book::KeyOf(Class::kMapping, address));
  if (mapping == nullptr) return;
  const std::uint64_t number = mapping->memory;
  Entry* memory = MemoryOf(number);
  if (memory == nullptr) return;
  memory->handles++;
  Entry* entry = ledger.book.Add(Book::KeyOf(Class::kHandle, handle));
  if (entry != nullptr) entry->memory = number;
}

Releasing BeginRelease(std::uint64_t handle) {
  const Lock lock;
  Entry* entry = ledger.book.Find(Book::KeyOf(Class::kHandle, handle));
  Entry* memory = entry == nullptr ? nullptr : MemoryOf(entry->memory);
  if (memory == nullptr) return {handle, 0};
  const std::uint64_t number = entry->memory;
  // Without a handle the driver may give the number to other memory as soon as it is called.
  if (--memory->handles == 0) ledger.book.Remove(entry);
  return {handle, number};
}

void EndRelease(Releasing releasing, int status) {
  if (releasing.memory == 0) return;
  const Lock lock;
  Entry* memory = MemoryOf(releasing.memory);
  if (memory == nullptr) return;
  if (status == 0) return DropIfUnused(memory);
  if (memory->handles++ > 0) return;
  Entry* entry = ledger.book.Add(Book::KeyOf(Class::kHandle, releasing.handle));
  if (entry != nullptr) entry->memory = releasing.memory;
}

void MapMemory(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle) {
  const Lock lock;
  const Entry* entry = ledger.book.Find(Book::KeyOf(Class::kHandle, handle));
  if (entry == nullptr) return;
  const std::uint64_t number = entry->memory;
  Entry* mapping = ledger.book.Add(Book::KeyOf(Class::kMapping, address));
  if (mapping == nullptr) return;
  mapping->memory = number;
  mapping->bytes = bytes;
  Entry* memory = MemoryOf(number);
  memory->mappings++;
  // Only now is it known how large imported memory is.
  if (memory->bytes > 0) return;
  memory->bytes = bytes;
  memory->pointer = MadeUp(bytes);
  memory->way = WayOf("cuMemImportFromShareableHandle");
  PutAllocate(*memory, kNoStream, Now(), nullptr, 0);
}

void UnmapMemory(std::uint64_t address, std::uint64_t bytes) {
  const Lock lock;
  for (std::uint64_t at = address; at < address + bytes;) {
    Entry* mapping = ledger.book.Find(Book::KeyOf(Class::kMapping, at));
    if (mapping == nullptr) return;
    const std::uint64_t number = mapping->memory;
    at += mapping->bytes;
    ledger.book.Remove(mapping);
    Entry* memory = MemoryOf(number);
    if (memory == nullptr) continue;
    memory->mappings--;
    DropIfUnused(memory);
  }
}

void SetPoolPlace(void* pool, int place) {
  const Lock lock;
  const std::uint64_t key = Book::KeyOf(Class::kPool, reinterpret_cast<std::uint64_t>(pool));
  Entry* entry = place < 0 ? ledger.book.Find(key) : ledger.book.Add(key);
  if (entry == nullptr) return;
  if (place < 0)
    ledger.book.Remove(entry);
  else
    entry->bytes = static_cast<std::uint64_t>(place);
}

int PoolPlace(void* pool) {
  const Lock lock;
  const Entry* entry = ledger.book.Find(Book::KeyOf(Class::kPool, reinterpret_cast<std::uint64_t>(pool)));
  return entry == nullptr ? -1 : static_cast<int>(entry->bytes);
}

void RemoveContext(void* context) {
  const Lock lock;
  if (!ledger.is_begun || context == nullptr) return;
  ledger.book.RemoveAll([&](const Entry& entry) {
    const auto kind = static_cast<Class>(entry.key & 15);
    // Memory without a context, such as that of handles, outlives it.
    const bool is_of_context =
        kind == Class::kAddress || kind == Class::kRegistered || kind == Class::kArray || kind == Class::kExternalMemory;
    if (!is_of_context || entry.context != context) return false;
    ReturnOf(entry);
    PutFree(entry, kNoStream, Now());
    return true;
  });
}

}  // namespace cistern::interpose
