#include "order/checked_table.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace cistern::order {
namespace {

// The table holds plain functions, so each table in front of another needs functions of its own.
struct Slot {
  const DriverTable* next = nullptr;
  OrderChecker* checker = nullptr;
  DriverTable table = {};
};
Slot slots[kMaxTables];
std::atomic<int> used_slots{0};
std::mutex slots_mutex;

std::uint64_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

template <int index>
struct Functions {
  static const DriverTable& Next() { return *slots[index].next; }
  static OrderChecker& Checker() { return *slots[index].checker; }

  template <typename Body>
  static void Keep(Body&& body) {
    KeepBooks(Checker(), body);
  }

  // A call that, if it succeeds, tells the host about everything that was submitted to a place when
  // the call was made.
  template <typename Locate, typename Call>
  static Status Reach(Locate&& locate, Call&& call) {
    Position position;
    Keep([&] { position = locate(); });
    const Status status = call();
    if (status == kSuccess) Keep([&] { Checker().HostReached(position); });
    return status;
  }

  // A call that is noted down afterwards if it succeeds.
  template <typename Note>
  static Status Noted(Status status, Note&& note) {
    if (status == kSuccess) Keep(note);
    return status;
  }

  // Noted down before the call, since another thread may get the same memory as soon as it is free.
  template <typename Call, typename Note>
  static Status Free(std::uint64_t address, Call&& call, Note&& note) {
    FreeInProgress freed;
    Keep([&] { freed = Checker().BeginFree(address); });
    const Status status = call();
    Keep([&] {
      if (status == kSuccess) {
        note(std::move(freed));
      } else {
        Checker().PutBack(std::move(freed));
      }
    });
    return status;
  }

  static Status CtxSynchronize() {
    return Reach([] { return Checker().PositionOfContext(); }, [] { return Next().CtxSynchronize(); });
  }

  static Status StreamDestroy(Stream stream) {
    Process process = kHost;
    Keep([&] { process = Checker().ForgetHandle(stream); });
    return Noted(Next().StreamDestroy(stream), [&] { Checker().EndStream(process); });
  }

  static Status StreamSynchronize(Stream stream) {
    return Reach([=] { return Checker().PositionOf(stream); }, [=] { return Next().StreamSynchronize(stream); });
  }

  static Status StreamQuery(Stream stream) {
    return Reach([=] { return Checker().PositionOf(stream); }, [=] { return Next().StreamQuery(stream); });
  }

  static Status StreamGetId(Stream stream, unsigned long long* id) {
    return Noted(Next().StreamGetId(stream, id), [=] { Checker().NameStream(stream, *id); });
  }

  static Status StreamWaitEvent(Stream stream, Event event, unsigned flags) {
    return Noted(Next().StreamWaitEvent(stream, event, flags), [=] { Checker().Waits(stream, event); });
  }

  static Status EventDestroy(Event event) {
    VectorClock clock;
    Keep([&] { clock = Checker().TakeEvent(event); });
    const Status status = Next().EventDestroy(event);
    if (status != kSuccess) Keep([&] { Checker().PutEventBack(event, std::move(clock)); });
    return status;
  }

  static Status EventRecord(Event event, Stream stream) {
    return Noted(Next().EventRecord(event, stream), [=] { Checker().Recorded(event, stream); });
  }

  static Status EventQuery(Event event) {
    return Reach([=] { return Checker().PositionOf(event); }, [=] { return Next().EventQuery(event); });
  }

  static Status EventSynchronize(Event event) {
    return Reach([=] { return Checker().PositionOf(event); }, [=] { return Next().EventSynchronize(event); });
  }

  static Status LaunchHostFunc(Stream stream, HostFunction function, void* user_data) {
    return Noted(Next().LaunchHostFunc(stream, function, user_data), [=] { Checker().Submitted(stream); });
  }

  static Status StreamWaitValue32(Stream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
    return Noted(Next().StreamWaitValue32(stream, address, value, flags), [=] { Checker().Submitted(stream); });
  }

  static Status MemAlloc(DevicePointer* pointer, std::size_t bytes) {
    return Noted(Next().MemAlloc(pointer, bytes), [=] { Checker().Allocated(*pointer, bytes); });
  }

  static Status MemAllocManaged(DevicePointer* pointer, std::size_t bytes, unsigned flags) {
    return Noted(Next().MemAllocManaged(pointer, bytes, flags), [=] { Checker().Allocated(*pointer, bytes); });
  }

  static Status MemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
    return Noted(Next().MemHostAlloc(pointer, bytes, flags), [=] { Checker().Allocated(AddressOf(*pointer), bytes); });
  }

  // Neither a plain free nor an unmap is sure to wait for the work that uses the memory, so it tells
  // the host nothing.
  template <typename Call>
  static Status PlainFree(std::uint64_t address, Call&& free) {
    return Free(address, free, [](FreeInProgress freed) { Checker().Freed(std::move(freed)); });
  }

  static Status MemFree(DevicePointer pointer) {
    return PlainFree(pointer, [=] { return Next().MemFree(pointer); });
  }

  static Status MemFreeHost(void* pointer) {
    return PlainFree(AddressOf(pointer), [=] { return Next().MemFreeHost(pointer); });
  }

  static Status MemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, Pool pool, Stream stream) {
    return Noted(Next().MemAllocFromPoolAsync(pointer, bytes, pool, stream), [=] { Checker().AllocatedOn(stream, *pointer, bytes); });
  }

  static Status MemFreeAsync(DevicePointer pointer, Stream stream) {
    return Free(
        pointer, [=] { return Next().MemFreeAsync(pointer, stream); },
        [=](FreeInProgress freed) { Checker().FreedOn(stream, std::move(freed)); });
  }

  // Memory counts as allocated when it is mapped.
  static Status MemMap(DevicePointer address, std::size_t bytes, std::size_t offset, MemoryHandle memory, unsigned long long flags) {
    return Noted(Next().MemMap(address, bytes, offset, memory, flags), [=] { Checker().Allocated(address, bytes); });
  }

  static Status MemUnmap(DevicePointer address, std::size_t bytes) {
    return PlainFree(address, [=] { return Next().MemUnmap(address, bytes); });
  }

  static Status MemcpyAsync(DevicePointer destination, DevicePointer source, std::size_t bytes, Stream stream) {
    return Noted(Next().MemcpyAsync(destination, source, bytes, stream), [=] { Checker().Copied(stream, destination, source, bytes); });
  }

  static Status MemcpyPeerAsync(DevicePointer destination, Context destination_context, DevicePointer source, Context source_context,
                                std::size_t bytes, Stream stream) {
    return Noted(Next().MemcpyPeerAsync(destination, destination_context, source, source_context, bytes, stream),
                 [=] { Checker().Copied(stream, destination, source, bytes); });
  }

  static Status MemsetD8Async(DevicePointer destination, unsigned char value, std::size_t bytes, Stream stream) {
    return Noted(Next().MemsetD8Async(destination, value, bytes, stream),
                 [=] { Checker().Used(stream, Action::kSet, Access::kWrite, destination, bytes); });
  }

  static Status MemsetD32Async(DevicePointer destination, unsigned value, std::size_t count, Stream stream) {
    return Noted(Next().MemsetD32Async(destination, value, count, stream),
                 [=] { Checker().Used(stream, Action::kSet, Access::kWrite, destination, count * sizeof value); });
  }

  static void Fill(Slot& slot, const DriverTable* next) {
    slot.next = next;
    slot.checker = new OrderChecker(next);  // never destroyed: other threads may be in its functions while the process ends
    slot.table = *next;
#define CISTERN_REPLACE(member) slot.table.member = member;
    CISTERN_REPLACE(CtxSynchronize)
    CISTERN_REPLACE(StreamDestroy)
    CISTERN_REPLACE(StreamSynchronize)
    CISTERN_REPLACE(StreamQuery)
    CISTERN_REPLACE(StreamGetId)
    CISTERN_REPLACE(StreamWaitEvent)
    CISTERN_REPLACE(EventDestroy)
    CISTERN_REPLACE(EventRecord)
    CISTERN_REPLACE(EventQuery)
    CISTERN_REPLACE(EventSynchronize)
    CISTERN_REPLACE(LaunchHostFunc)
    CISTERN_REPLACE(StreamWaitValue32)
    CISTERN_REPLACE(MemAlloc)
    CISTERN_REPLACE(MemAllocManaged)
    CISTERN_REPLACE(MemHostAlloc)
    CISTERN_REPLACE(MemFree)
    CISTERN_REPLACE(MemFreeHost)
    CISTERN_REPLACE(MemAllocFromPoolAsync)
    CISTERN_REPLACE(MemFreeAsync)
    CISTERN_REPLACE(MemMap)
    CISTERN_REPLACE(MemUnmap)
    CISTERN_REPLACE(MemcpyAsync)
    CISTERN_REPLACE(MemcpyPeerAsync)
    CISTERN_REPLACE(MemsetD8Async)
    CISTERN_REPLACE(MemsetD32Async)
#undef CISTERN_REPLACE
  }
};

constexpr void (*kFill[kMaxTables])(Slot&, const DriverTable*) = {Functions<0>::Fill, Functions<1>::Fill};

}  // namespace

const DriverTable* CheckedTable(const DriverTable* next) {
  const std::lock_guard<std::mutex> lock(slots_mutex);
  const int used = used_slots.load();
  for (int index = 0; index < used; ++index) {
    if (slots[index].next == next) return &slots[index].table;
  }
  if (used == kMaxTables) return nullptr;
  kFill[used](slots[used], next);
  used_slots.store(used + 1);
  return &slots[used].table;
}

OrderChecker* CheckerOf(const DriverTable* table) {
  const int used = used_slots.load();
  for (int index = 0; index < used; ++index) {
    if (&slots[index].table == table) return slots[index].checker;
  }
  return nullptr;
}

}  // namespace cistern::order
