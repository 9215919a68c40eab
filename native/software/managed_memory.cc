#include "software/managed_memory.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "software/device.h"
#include "software/injection.h"
#include "software/settings.h"
#include "software/transfer.h"

namespace cistern::software {
namespace {

constexpr std::uint64_t kSmallPage = 4096;
constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr int kNoPlace = -2;
constexpr int kPlaces = kMaxDevices + 1;

// A place as an index and as a bit: 0 the host, n + 1 device n.
int IndexOf(int place) { return place + 1; }
unsigned BitOf(int place) { return 1u << IndexOf(place); }

struct Advice {
  bool is_read_mostly = false;
  int preferred = kNoPlace;
  int last_prefetch = kNoPlace;
  unsigned accessed_by = 0;  // bits of places
};

using Runs = std::map<std::uint64_t, Advice>;  // by first small page

struct Range;

struct Page {
  Range* range = nullptr;
  unsigned residents = 0;      // bits of places
  unsigned noted = 0;          // the residents according to the notes; meaningless while nobody asks for them
  unsigned mapped_by = 0;      // bits of processors that use it where it is, since it last moved
  int last_left = kNoPlace;    // the place that it last moved away from
  Page* older[kMaxDevices]{};  // neighbours in the order of use, for each device that it is at
  Page* newer[kMaxDevices]{};
  std::uint64_t Offset() const;
  std::uint64_t Bytes() const;
  std::uint64_t Address() const;
};

struct Range {
  std::uint64_t address;
  std::uint64_t bytes;
  Runs runs;
  std::vector<Page> pages;
};

std::uint64_t Page::Offset() const { return static_cast<std::uint64_t>(this - range->pages.data()) * kPage; }
std::uint64_t Page::Bytes() const { return std::min(kPage, range->bytes - Offset()); }
std::uint64_t Page::Address() const { return range->address + Offset(); }

struct Uses {
  Page* oldest = nullptr;
  Page* newest = nullptr;
};

// Notes in order. They are held in pieces, so that a note costs no allocation of its own.
class NoteQueue {
 public:
  NoteQueue() = default;
  NoteQueue(const NoteQueue&) = delete;
  ~NoteQueue() { Clear(); }

  bool IsEmpty() const { return oldest_ == nullptr || oldest_->taken == oldest_->added; }

  // False if the queue is full or memory is exhausted.
  bool Add(const ManagedMove& note) noexcept {
    if ((newest_ == nullptr || newest_->added == kNotesOfPiece) && !AddPiece()) return false;
    newest_->notes[newest_->added++] = note;
    return true;
  }

  // Takes the oldest notes, at most `count`, and returns how many.
  std::size_t Take(ManagedMove* notes, std::size_t count) {
    std::size_t taken = 0;
    while (taken < count && !IsEmpty()) {
      Piece& piece = *oldest_;
      const std::size_t step = std::min(count - taken, piece.added - piece.taken);
      std::copy_n(piece.notes + piece.taken, step, notes + taken);
      taken += step;
      piece.taken += step;
      if (piece.taken != piece.added) continue;
      if (oldest_ == newest_) {
        piece.taken = piece.added = 0;
      } else {
        RemoveOldest();
      }
    }
    return taken;
  }

  void Clear() {
    while (oldest_ != nullptr) RemoveOldest();
    newest_ = nullptr;
  }

 private:
  static constexpr std::size_t kNotesOfPiece = 4096;
  struct Piece {
    Piece* next;
    std::size_t taken;
    std::size_t added;
    ManagedMove notes[kNotesOfPiece];
  };

  bool AddPiece() noexcept {
    if (pieces_ == kMostNotes / kNotesOfPiece) return false;
    auto* piece = new (std::nothrow) Piece;
    if (piece == nullptr) return false;
    piece->next = nullptr;
    piece->taken = piece->added = 0;
    (newest_ == nullptr ? oldest_ : newest_->next) = piece;
    newest_ = piece;
    pieces_ += 1;
    return true;
  }

  void RemoveOldest() {
    delete std::exchange(oldest_, oldest_->next);
    pieces_ -= 1;
  }

  Piece* oldest_ = nullptr;
  Piece* newest_ = nullptr;
  std::size_t pieces_ = 0;
};

// The moves that nobody has taken yet.
struct MoveNotes {
  std::int32_t* pending = nullptr;  // null: nobody asks
  std::chrono::steady_clock::time_point begin;
  NoteQueue queue;
  std::uint64_t lost = 0;                       // moves; from the first one on, none is noted until ListAnew
  std::uint64_t lost_at = 0;                    // nanoseconds: the time of the last one
  std::multimap<std::uint64_t, Range> removed;  // ranges whose pages are at places according to the notes

  // The page came to the place or left it.
  void Add(Page& page, int place, MoveReason reason, PageUser user) {
    if (pending != nullptr) AddAt(Now(), page, place, reason, user);
  }

  // A fault left the page at the place.
  void AddUnmoved(Page& page, int place, PageUser user) {
    if (pending == nullptr) return;
    const std::uint64_t now = Now();
    AddAt(now, page, place, MoveReason::kLeft, user);
    AddAt(now, page, place, MoveReason::kUnmoved, user);
  }

  // All pages leave the places where the notes have them, and come to those where they are. Nothing
  // has moved since the last lost move, so these notes bear its time. If there is no room for one,
  // that is a loss again.
  void ListAnew(std::map<std::uint64_t, Range>& ranges) {
    if (!queue.Add({lost_at, 0, lost, kHostPlace, MoveReason::kLost, 0, 0})) return;
    lost = 1;
    for (auto each = removed.begin(); each != removed.end();) {
      if (!ListAnew(each->second)) return;
      each = removed.erase(each);
    }
    for (auto& [address, range] : ranges) {
      if (!ListAnew(range)) return;
    }
    lost = 0;
  }

  // JavaScript reads it without a lock.
  void SetPending(std::int32_t value) const { __atomic_store_n(pending, value, __ATOMIC_RELEASE); }

 private:
  std::uint64_t Now() const {
    const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin);
    return static_cast<std::uint64_t>(now.count());
  }

  void AddAt(std::uint64_t nanoseconds, Page& page, int place, MoveReason reason, PageUser user) {
    if (lost != 0 || !Note(page, place, reason, nanoseconds, user)) {
      lost += 1;
      lost_at = nanoseconds;
    }
    SetPending(1);
  }

  bool ListAnew(Range& range) {
    for (Page& page : range.pages) {
      for (int place = kHostPlace; place < kMaxDevices; ++place) {
        const bool leaves = (page.noted & BitOf(place)) != 0;
        const bool is_there = (page.residents & BitOf(place)) != 0;
        if (leaves && !Note(page, place, MoveReason::kLeft, lost_at, {})) return false;
        if (is_there && !Note(page, place, MoveReason::kPresent, lost_at, {})) return false;
      }
    }
    return true;
  }

  bool Note(Page& page, int place, MoveReason reason, std::uint64_t nanoseconds, PageUser user) {
    if (!queue.Add({nanoseconds, page.Address(), page.Bytes(), place, reason, user.device, user.stream})) return false;
    page.noted ^= BitOf(place);
    return true;
  }
};

struct State {
  std::mutex mutex;
  std::map<std::uint64_t, Range> ranges;  // by address; neither their nodes nor their pages move
  Uses uses[kMaxDevices];
  ManagedActivity activity[kPlaces] = {};
  MoveNotes notes;
};

State& TheState() {
  static State* state = new State;
  return *state;
}

bool IsAt(const Page& page, int place) { return (page.residents & BitOf(place)) != 0; }

// The nearest place to copy a page from: the host, else the first device that has it.
int SourceOf(const Page& page) {
  int place = kHostPlace;
  while (!IsAt(page, place)) ++place;
  return place;
}

// As long as it costs to move pages.
void TakeTimeFor(std::uint64_t pages) {
  const std::uint64_t nanoseconds = migration_nanoseconds.load(std::memory_order_relaxed);
  if (nanoseconds != 0 && pages != 0) Delay(std::chrono::nanoseconds(nanoseconds * pages));
}

// Moves pages. The state's mutex must be held during each call except Settle, which takes as long as
// the moves cost. Nothing here throws.
class Mover {
 public:
  explicit Mover(State& state, PageUser user = {}) : state_(state), user_(user) {}

  // Marks a page as the one that was used last.
  void Touch(Page& page, int place) {
    if (place == kHostPlace) return;
    Unlink(page, place);
    Link(page, place);
  }

  // Lets the page be at a place too or, if it `moves`, there only. False if the place has no room.
  bool Bring(Page& page, int place, bool moves, MoveReason reason) {
    if (!IsAt(page, place)) {
      if (!MakeRoom(place, page.Bytes())) return false;
      if (page.residents != 0) CountMove(SourceOf(page), place, page.Bytes());
      Enter(page, place, reason);
    } else {
      Touch(page, place);
    }
    if (moves) KeepOnly(page, place);
    return true;
  }

  // Ends the copies of a page at other places.
  void KeepOnly(Page& page, int place) {
    for (int other = kHostPlace; other < kMaxDevices; ++other) {
      if (other == place || !IsAt(page, other)) continue;
      Leave(page, other);
      page.last_left = other;
    }
  }

  void Leave(Page& page, int place) {
    page.residents &= ~BitOf(place);
    page.mapped_by = 0;
    state_.activity[IndexOf(place)].resident_bytes -= page.Bytes();
    state_.notes.Add(page, place, MoveReason::kLeft, user_);
    if (place == kHostPlace) return;
    Unlink(page, place);
    FindDevice(place)->memory.GivePage(page.Bytes());
  }

  // A fault lets the page be used at a place where it is already.
  void CountUnmoved(Page& page, int place, ManagedActivity& activity) {
    activity.faults += 1;
    state_.notes.AddUnmoved(page, place, user_);
  }

  // Moves the page that the device used longest ago to the host, unless another place has it too.
  bool EvictOldest(int device) {
    if (state_.uses[device].oldest == nullptr) return false;
    Page& page = *state_.uses[device].oldest;
    ManagedActivity& activity = state_.activity[IndexOf(device)];
    activity.evictions += 1;
    if (page.residents == BitOf(device)) {
      CountMove(device, kHostPlace, page.Bytes());
      activity.evicted_bytes += page.Bytes();
      Enter(page, kHostPlace, MoveReason::kEviction);
    }
    Leave(page, device);
    page.last_left = device;
    return true;
  }

  void Settle() const { TakeTimeFor(moved_pages_); }
  std::uint64_t moved_pages() const { return moved_pages_; }

 private:
  bool MakeRoom(int place, std::uint64_t bytes) {
    if (place == kHostPlace) return true;
    while (!FindDevice(place)->memory.TakePage(bytes)) {
      if (!EvictOldest(place)) return false;
    }
    return true;
  }

  // The place has room for it.
  void Enter(Page& page, int place, MoveReason reason) {
    page.residents |= BitOf(place);
    state_.notes.Add(page, place, reason, user_);
    ManagedActivity& activity = state_.activity[IndexOf(place)];
    activity.resident_bytes += page.Bytes();
    activity.peak_resident_bytes = std::max(activity.peak_resident_bytes, activity.resident_bytes);
    if (place != kHostPlace) Link(page, place);
  }

  void Link(Page& page, int device) {
    Uses& uses = state_.uses[device];
    page.older[device] = uses.newest;
    page.newer[device] = nullptr;
    (uses.newest == nullptr ? uses.oldest : uses.newest->newer[device]) = &page;
    uses.newest = &page;
  }

  void Unlink(const Page& page, int device) {
    Uses& uses = state_.uses[device];
    (page.older[device] == nullptr ? uses.oldest : page.older[device]->newer[device]) = page.newer[device];
    (page.newer[device] == nullptr ? uses.newest : page.newer[device]->older[device]) = page.older[device];
  }

  void CountMove(int source, int destination, std::uint64_t bytes) {
    ManagedActivity& activity = state_.activity[IndexOf(destination)];
    (source == kHostPlace ? activity.bytes_from_host : activity.bytes_from_devices) += bytes;
    moved_pages_ += 1;
  }

  State& state_;
  const PageUser user_;
  std::uint64_t moved_pages_ = 0;
};

std::map<std::uint64_t, Range>::iterator Find(State& state, std::uint64_t address) {
  auto found = state.ranges.upper_bound(address);
  if (found == state.ranges.begin()) return state.ranges.end();
  --found;
  return address - found->first < found->second.bytes ? found : state.ranges.end();
}

// The range that contains all of [address, address + bytes), or null; *offset is where it begins
// there.
Range* FindWhole(State& state, std::uint64_t address, std::uint64_t bytes, std::uint64_t* offset) {
  auto found = bytes == 0 ? state.ranges.end() : Find(state, address);
  if (found == state.ranges.end() || bytes > found->second.bytes - (address - found->first)) return nullptr;
  *offset = address - found->first;
  return &found->second;
}

const Advice& AdviceAt(const Range& range, std::uint64_t offset) { return std::prev(range.runs.upper_bound(offset / kSmallPage))->second; }

// Makes a run start at the small page.
Runs::iterator Split(Range& range, std::uint64_t page) {
  if (page * kSmallPage >= range.bytes) return range.runs.end();
  auto run = std::prev(range.runs.upper_bound(page));
  return run->first == page ? run : range.runs.emplace(page, run->second).first;
}

// Calls change(Advice&) on every run of the small pages that the bytes touch.
template <typename Change>
void ChangeRuns(Range& range, std::uint64_t offset, std::uint64_t bytes, Change change) {
  auto first = Split(range, offset / kSmallPage);
  auto last = Split(range, (offset + bytes + kSmallPage - 1) / kSmallPage);
  for (auto run = first; run != last; ++run) change(run->second);
}

// Calls visit(page, first_offset, bytes) for each page that the bytes touch.
template <typename Visit>
void ForPages(std::uint64_t offset, std::uint64_t bytes, Visit visit) {
  for (std::uint64_t end = offset + bytes; offset < end;) {
    const std::uint64_t next = std::min(end, (offset / kPage + 1) * kPage);
    visit(static_cast<std::size_t>(offset / kPage), offset, next - offset);
    offset = next;
  }
}

// A place, or kNoPlace if there is no such place.
int PlaceOf(MemLocation location) {
  if (location.type == kLocationHost) return kHostPlace;
  return location.type == kLocationDevice && FindDevice(location.id) != nullptr ? location.id : kNoPlace;
}

template <typename Value>
int CommonPlace(Runs::const_iterator first, Runs::const_iterator last, Value value) {
  int common = value(first->second);
  for (; first != last; ++first) {
    if (value(first->second) != common) return kNoPlace;
  }
  return common;
}

// A device maps every memory; the host only its own, unless it is coherent with the devices.
bool CanMap(int processor, int place) { return processor != kHostPlace || place == kHostPlace || IsCoherent(); }

// Ordinary host memory of coherent devices is prefetched and advised without a refusal, and without an
// effect: where its pages are is not simulated.
bool IsCoherentHostMemory(std::uint64_t address, std::uint64_t bytes) {
  return IsCoherent() && bytes > 0 && Classify(address, bytes, false).kind == AddressKind::kPageable;
}

// Rules 2 to 5 of the header.
void Fault(State& state, Mover& mover, Page& page, const Advice& advice, int processor, std::uint64_t bytes, bool is_write) {
  ManagedActivity& activity = state.activity[IndexOf(processor)];
  const bool prefers_map =
      !advice.is_read_mostly && advice.preferred != kNoPlace && advice.preferred != processor && CanMap(processor, advice.preferred);
  if (page.residents == 0) {
    activity.faults += 1;
    if (prefers_map && mover.Bring(page, advice.preferred, true, MoveReason::kFirstUse)) {
      activity.remote_bytes += bytes;
      page.mapped_by |= BitOf(processor);
    } else if (!mover.Bring(page, processor, true, MoveReason::kFirstUse)) {
      mover.Bring(page, kHostPlace, true, MoveReason::kFirstUse);
      activity.remote_bytes += bytes;
    }
    return;
  }
  const int source = SourceOf(page);
  if (!advice.is_read_mostly && CanMap(processor, source)) {
    const bool maps_all = processor == kHostPlace && IsCoherent();
    const bool is_mapped = (maps_all || (advice.accessed_by & BitOf(processor)) != 0) && advice.preferred != processor;
    if (is_mapped || (prefers_map && IsAt(page, advice.preferred))) {
      if (!is_mapped && (page.mapped_by & BitOf(processor)) == 0) mover.CountUnmoved(page, source, activity);
      page.mapped_by |= BitOf(processor);
      activity.remote_bytes += bytes;
      mover.Touch(page, source);
      return;
    }
  }
  const bool returns = page.last_left == processor;
  const MoveReason reason = returns ? MoveReason::kThrash : processor == kHostPlace ? MoveReason::kHostView : MoveReason::kFault;
  if (mover.Bring(page, processor, is_write || !advice.is_read_mostly, reason)) {
    activity.faults += 1;
    activity.thrashes += returns ? 1 : 0;
  } else {
    mover.CountUnmoved(page, SourceOf(page), activity);
    activity.remote_bytes += bytes;
  }
}

}  // namespace

void AddManagedRange(std::uint64_t address, std::uint64_t bytes) {
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  Range& range = state.ranges[address];
  range.address = address;
  range.bytes = bytes;
  range.runs[0] = {};
  range.pages.resize((bytes + kPage - 1) / kPage);
  for (Page& page : range.pages) page.range = &range;
}

void RemoveManagedRange(std::uint64_t address) {
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  auto found = state.ranges.find(address);
  if (found == state.ranges.end()) return;
  Mover mover(state);
  for (Page& page : found->second.pages) {
    for (int place = kHostPlace; place < kMaxDevices; ++place) {
      if (IsAt(page, place)) mover.Leave(page, place);
    }
  }
  // Its moves may have been lost.
  const bool is_noted = state.notes.pending != nullptr && std::any_of(found->second.pages.begin(), found->second.pages.end(),
                                                                      [](const Page& page) { return page.noted != 0; });
  if (is_noted) {
    state.notes.removed.insert(state.ranges.extract(found));
  } else {
    state.ranges.erase(found);
  }
}

Status AdviseManaged(std::uint64_t address, std::uint64_t bytes, int advice, MemLocation location) {
  bool needs_place = advice == kAdviseSetPreferredLocation || advice == kAdviseSetAccessedBy || advice == kAdviseUnsetAccessedBy;
  int place = PlaceOf(location);
  if (advice < kAdviseSetReadMostly || advice > kAdviseUnsetAccessedBy || (needs_place && place == kNoPlace)) return kErrorInvalidValue;
  if (needs_place && place != kHostPlace && !HasConcurrentManagedAccess()) return kErrorInvalidDevice;
  if (IsCoherentHostMemory(address, bytes)) return kSuccess;
  unsigned bit = needs_place ? BitOf(place) : 0;
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  std::uint64_t offset;
  Range* range = FindWhole(state, address, bytes, &offset);
  if (range == nullptr) return kErrorInvalidValue;
  ChangeRuns(*range, offset, bytes, [=](Advice& run) {
    switch (advice) {
      case kAdviseSetReadMostly:
      case kAdviseUnsetReadMostly:
        run.is_read_mostly = advice == kAdviseSetReadMostly;
        break;
      case kAdviseSetPreferredLocation:
      case kAdviseUnsetPreferredLocation:
        run.preferred = advice == kAdviseSetPreferredLocation ? place : kNoPlace;
        break;
      case kAdviseSetAccessedBy:
        run.accessed_by |= bit;
        break;
      default:
        run.accessed_by &= ~bit;
    }
  });
  if (advice != kAdviseUnsetReadMostly) return kSuccess;
  // "Any read-duplicated copies of the data will be collapsed into a single copy."
  Mover mover(state);
  ForPages(offset, bytes, [&](std::size_t index, std::uint64_t first, std::uint64_t) {
    Page& page = range->pages[index];
    if (page.residents == 0) return;
    const int preferred = AdviceAt(*range, first).preferred;
    mover.KeepOnly(page, preferred != kNoPlace && IsAt(page, preferred) ? preferred : SourceOf(page));
  });
  return kSuccess;
}

Status NotePrefetch(std::uint64_t address, std::uint64_t bytes, MemLocation location) {
  int place = PlaceOf(location);
  if (place == kNoPlace) return kErrorInvalidValue;
  if (IsCoherentHostMemory(address, bytes)) return kSuccess;
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  std::uint64_t offset;
  Range* range = FindWhole(state, address, bytes, &offset);
  if (range == nullptr) return kErrorInvalidValue;
  ChangeRuns(*range, offset, bytes, [place](Advice& run) { run.last_prefetch = place; });
  return kSuccess;
}

Status QueryManaged(void* data, std::size_t data_size, int attribute, std::uint64_t address, std::uint64_t bytes) {
  if (data == nullptr || data_size == 0 || data_size % sizeof(int) != 0) return kErrorInvalidValue;
  if (attribute != kRangeAccessedBy && data_size != sizeof(int)) return kErrorInvalidValue;
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  std::uint64_t offset;
  const Range* range = FindWhole(state, address, bytes, &offset);
  if (range == nullptr) return kErrorInvalidValue;
  auto first = std::prev(range->runs.upper_bound(offset / kSmallPage));
  auto last = range->runs.upper_bound((offset + bytes - 1) / kSmallPage);
  int* values = static_cast<int*>(data);
  switch (attribute) {
    case kRangeReadMostly:
      *values = CommonPlace(first, last, [](const Advice& run) { return run.is_read_mostly ? 1 : 0; }) == 1 ? 1 : 0;
      return kSuccess;
    case kRangePreferredLocation:
      *values = CommonPlace(first, last, [](const Advice& run) { return run.preferred; });
      return kSuccess;
    case kRangeLastPrefetchLocation:
      *values = CommonPlace(first, last, [](const Advice& run) { return run.last_prefetch; });
      return kSuccess;
    case kRangeAccessedBy: {
      unsigned common = ~0u;
      for (; first != last; ++first) common &= first->second.accessed_by;
      int* end = values + data_size / sizeof(int);
      for (int place = kHostPlace; place < kMaxDevices && values != end; ++place) {
        if ((common & BitOf(place)) != 0) *values++ = place;
      }
      std::fill(values, end, kNoPlace);
      return kSuccess;
    }
    default:
      return kErrorInvalidValue;
  }
}

void AccessManaged(int processor, std::uint64_t address, std::uint64_t bytes, bool is_write, PageUser user) {
  State& state = TheState();
  Mover mover(state, user);
  {
    std::lock_guard<std::mutex> guard(state.mutex);
    std::uint64_t offset;
    Range* range = FindWhole(state, address, bytes, &offset);
    if (range == nullptr) return;
    ForPages(offset, bytes, [&](std::size_t index, std::uint64_t first, std::uint64_t used_bytes) {
      Page& page = range->pages[index];
      if (!IsAt(page, processor)) {
        Fault(state, mover, page, AdviceAt(*range, first), processor, used_bytes, is_write);
        return;
      }
      if (is_write && page.residents != BitOf(processor)) {
        // The copies were read-only.
        mover.KeepOnly(page, processor);
        mover.CountUnmoved(page, processor, state.activity[IndexOf(processor)]);
      }
      mover.Touch(page, processor);
    });
  }
  mover.Settle();
}

void MoveManaged(int destination, std::uint64_t address, std::uint64_t bytes, PageUser user) {
  State& state = TheState();
  Mover mover(state, user);
  {
    std::lock_guard<std::mutex> guard(state.mutex);
    std::uint64_t offset;
    Range* range = FindWhole(state, address, bytes, &offset);
    if (range == nullptr) return;
    ForPages(offset, bytes, [&](std::size_t index, std::uint64_t first, std::uint64_t) {
      Page& page = range->pages[index];
      const MoveReason reason = page.residents == 0 ? MoveReason::kFirstPrefetch : MoveReason::kPrefetch;
      mover.Bring(page, destination, !AdviceAt(*range, first).is_read_mostly, reason);
    });
  }
  mover.Settle();
}

RoomInMemory::~RoomInMemory() { TakeTimeFor(moved_pages_); }

bool RoomInMemory::Make() {
  State& state = TheState();
  Mover mover(state);
  std::lock_guard<std::mutex> guard(state.mutex);
  bool has_evicted = false;
  while (device_.memory.Lacks(bytes_) && mover.EvictOldest(device_.ordinal)) has_evicted = true;
  moved_pages_ += mover.moved_pages();
  const bool may_help = has_evicted || (may_have_room_ && device_.memory.Has(bytes_));
  may_have_room_ = has_evicted;
  return may_help;
}

ManagedActivity ActivityAt(int place) {
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  return place >= kHostPlace && place < kMaxDevices ? state.activity[IndexOf(place)] : ManagedActivity{};
}

void ResetManagedActivity() {
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  for (ManagedActivity& each : state.activity) {
    const std::uint64_t resident = each.resident_bytes;
    each = {};
    each.resident_bytes = resident;
    each.peak_resident_bytes = resident;
  }
}

std::uint64_t ResidentBytes(std::uint64_t address, std::uint64_t bytes, int place) {
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  std::uint64_t offset;
  const Range* range = FindWhole(state, address, bytes, &offset);
  std::uint64_t resident = 0;
  if (range == nullptr || place < kHostPlace || place >= kMaxDevices) return 0;
  ForPages(offset, bytes, [&](std::size_t index, std::uint64_t, std::uint64_t used_bytes) {
    if (IsAt(range->pages[index], place)) resident += used_bytes;
  });
  return resident;
}

void AccessFromHost(std::uint64_t address, std::uint64_t bytes, bool is_write) { AccessManaged(kHostPlace, address, bytes, is_write, {}); }

bool BeginManagedMoves(std::int32_t* pending) {
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  MoveNotes& notes = state.notes;
  if (notes.pending != nullptr) return false;
  notes.pending = pending;
  notes.begin = std::chrono::steady_clock::now();
  for (auto& [address, range] : state.ranges) {
    for (Page& page : range.pages) {
      page.noted = 0;
      for (int place = kHostPlace; place < kMaxDevices; ++place) {
        if (IsAt(page, place)) notes.Add(page, place, MoveReason::kPresent, {});
      }
    }
  }
  return true;
}

std::size_t TakeManagedMoves(const std::int32_t* pending, ManagedMove* moves, std::size_t count) {
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  MoveNotes& notes = state.notes;
  if (notes.pending == nullptr || notes.pending != pending) return 0;
  if (notes.queue.IsEmpty() && notes.lost != 0) notes.ListAnew(state.ranges);
  count = notes.queue.Take(moves, count);
  if (notes.queue.IsEmpty() && notes.lost == 0) notes.SetPending(0);
  return count;
}

void EndManagedMoves(const std::int32_t* pending) {
  State& state = TheState();
  std::lock_guard<std::mutex> guard(state.mutex);
  MoveNotes& notes = state.notes;
  if (notes.pending == nullptr || notes.pending != pending) return;
  notes.SetPending(0);
  notes.pending = nullptr;
  notes.queue.Clear();
  notes.lost = 0;
  notes.removed.clear();
}

}  // namespace cistern::software
