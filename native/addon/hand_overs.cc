#include "addon/hand_overs.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/dlpack.h"
#include "addon/ipc.h"
#include "platform/lasting.h"

namespace cistern {
namespace {

// HandOverContent of src/driver/native.ts.
enum class Content { kMemory, kStream, kEvent };
constexpr std::uint64_t kContents = 3;

// How long an environment that was asked to collect garbage is left alone: a collection takes milliseconds.
constexpr std::chrono::milliseconds kCollectionInterval{100};

struct Attachment {
  std::uint64_t number;
  std::uint64_t environment;  // the id of the one that has it
};

struct HandOver {
  Content content = Content::kMemory;
  std::uint64_t home = 0;  // the id of the environment that allocated the memory; zero for a stream or an event
  const DriverTable* backend = nullptr;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t byte_length = 0;
  std::uint64_t alignment = 0;
  std::uint64_t kind = 0;
  int device = 0;
  bool is_shared = false;

  std::uint64_t message = 0;  // zero: no message is open
  std::uint64_t nonce = 0;
  std::uint64_t sender = 0;  // the id of the environment that made the message
  std::vector<Attachment> attachments;

  Stream stream = nullptr;
  std::uint64_t stream_id = 0;
  unsigned stream_flags = 0;
  bool timing = false;  // of an event

  // Recorded after everything that was queued before the memory was given. If the hand-over is not
  // shared, also the event of its return. Of an event: that event.
  DeviceEvent ready{};
  // Of a shared hand-over: recorded where buffers were given back.
  std::vector<DeviceEvent> uses;
  bool is_pruning = false;
  // An environment ended while it used the memory: only a wait for the devices covers that.
  bool needs_idle = false;
  // Nobody uses it: it is in the home's list, or, once taken, waits for FollowReturned.
  bool is_returned = false;
  bool is_taken = false;
};

Orphan EventOrphan(const DeviceEvent& event) { return {OrphanKind::kEvent, event.device, reinterpret_cast<std::uintptr_t>(event.event)}; }

Orphan StreamOrphan(const HandOver& hand_over) {
  return {OrphanKind::kStream, hand_over.device, reinterpret_cast<std::uintptr_t>(hand_over.stream)};
}

struct Message {
  Content content;
  std::uint64_t number;
  std::uint64_t nonce;
};

bool ReadMessage(const Napi::CallbackInfo& info, Content content, Message* message) {
  message->content = content;
  return ReadInteger(info[0], &message->number) && ReadInteger(info[1], &message->nonce);
}

using Clock = std::chrono::steady_clock;

// An environment that has handed memory over, or has attached some.
struct Member {
  std::shared_ptr<EventLoop> loop;
  std::deque<std::uint64_t> returned;
  bool is_asked = false;  // to collect garbage; it has not answered
  Clock::time_point asked_at{};
};

class HandOvers {
 public:
  using Entry = std::map<std::uint64_t, HandOver>::iterator;

  std::mutex mutex;
  std::condition_variable answered;  // an environment has collected garbage, or has ended

  // The mutex guards the rest.
  std::map<std::uint64_t, HandOver> by_number;
  std::map<std::uint64_t, Member> members;  // those that live, by id
  std::uint64_t last_attachment = 0;

  // Adds what an environment gives, with a message. If it is shared, the giver has it, too.
  Entry Add(HandOver hand_over, const Environment& giver) {
    if (hand_over.is_shared) hand_over.attachments.push_back({++last_attachment, giver.id()});
    hand_over.backend = giver.backend;
    last_number_ += 1;
    const Entry entry = by_number.emplace(last_number_, std::move(hand_over)).first;
    OpenMessage(entry, giver);
    return entry;
  }

  // Makes an environment a member, if it is none.
  void Join(const Environment& environment) { members[environment.id()].loop = environment.loop; }

  void OpenMessage(Entry entry, const Environment& sender) {
    // Numbers in JavaScript are exact up to 2^53.
    const std::uint64_t nonce = (std::uint64_t{random_()} << 32 | random_()) & kMaxSafeInteger;
    messages_.emplace(last_message_ + 1, entry->first);
    last_message_ += 1;
    entry->second.message = last_message_;
    entry->second.nonce = nonce;
    entry->second.sender = sender.id();
  }

  // False if the environment that made the message has ended.
  bool ReopenMessage(Entry entry, std::uint64_t message) {
    if (members.count(entry->second.sender) == 0) return false;
    messages_.emplace(message, entry->first);
    entry->second.message = message;
    return true;
  }

  void CloseMessage(HandOver& hand_over) {
    messages_.erase(hand_over.message);
    hand_over.message = 0;
  }

  Status FindMessage(const Environment& environment, const Message& message, Entry* entry) {
    if (message.number == 0 || message.number > last_message_) return kForeignMessage;
    const auto found = messages_.find(message.number);
    if (found == messages_.end()) return kStaleMessage;
    *entry = by_number.find(found->second);
    if ((*entry)->second.nonce != message.nonce || (*entry)->second.content != message.content) return kForeignMessage;
    return (*entry)->second.backend == environment.backend ? kSuccess : kNoBackend;
  }

  // The attachment of an environment, or null.
  Attachment* FindAttachment(const Environment& environment, Content content, std::uint64_t number, std::uint64_t attachment,
                             Entry* entry) {
    *entry = by_number.find(number);
    if (*entry == by_number.end() || (*entry)->second.content != content) return nullptr;
    for (Attachment& each : (*entry)->second.attachments) {
      if (each.number == attachment && each.environment == environment.id()) return &each;
    }
    return nullptr;
  }

  // Calls visit for each other environment that has attached memory of one.
  template <typename Visit>
  void VisitTakers(std::uint64_t home, Visit&& visit) {
    for (const auto& [number, hand_over] : by_number) {
      if (hand_over.home != home) continue;
      for (const Attachment& attachment : hand_over.attachments) {
        const auto taker = members.find(attachment.environment);
        if (attachment.environment != home && taker != members.end()) visit(taker->second);
      }
    }
  }

  // Ends an attachment. With the giver's own buffer the message of a shared hand-over ends.
  void Detach(HandOver& hand_over, const Attachment* attachment) {
    const auto index = attachment - hand_over.attachments.data();
    hand_over.attachments.erase(hand_over.attachments.begin() + index);
    if (hand_over.is_shared && index == 0) CloseMessage(hand_over);
  }

  // Gives the memory back to its home if nobody uses it, and nobody can attach it. Returns the
  // next entry.
  Entry ReturnIfUnused(Entry entry, std::vector<Orphan>* unneeded) {
    HandOver& hand_over = entry->second;
    const Entry next = std::next(entry);
    if (hand_over.message != 0 || !hand_over.attachments.empty() || hand_over.is_returned) return next;
    const auto home = members.find(hand_over.home);
    if (home == members.end()) {
      Erase(entry, unneeded);
      return next;
    }
    home->second.returned.push_back(entry->first);
    hand_over.is_returned = true;
    EventLoop& loop = *home->second.loop;
    const std::lock_guard<std::mutex> lock(loop.mutex);
    loop.PostWake();
    return next;
  }

  void Erase(Entry entry, std::vector<Orphan>* unneeded) {
    const HandOver& hand_over = entry->second;
    std::vector<Orphan> objects;
    if (hand_over.stream != nullptr) objects.push_back(StreamOrphan(hand_over));
    if (hand_over.ready.event != nullptr) objects.push_back(EventOrphan(hand_over.ready));
    for (const DeviceEvent& use : hand_over.uses) objects.push_back(EventOrphan(use));
    unneeded->insert(unneeded->end(), objects.begin(), objects.end());
    by_number.erase(entry);
  }

 private:
  std::map<std::uint64_t, std::uint64_t> messages_;  // the open ones, to the hand-over
  std::uint64_t last_number_ = 0;
  std::uint64_t last_message_ = 0;
  std::random_device random_;
};

HandOvers& All() {
  static Lasting<HandOvers> all;
  return *all;
}

// Destroys a stream or an event, which may be of another environment. If the driver refuses, it is
// left to the orphans.
void Destroy(Environment& environment, const Orphan& unneeded) {
  {
    const RelaxedContextScope context(environment, unneeded.device);
    const auto destroyed = [&] {
      return unneeded.kind == OrphanKind::kEvent ? environment.Counted<Call::kEventDestroy>(reinterpret_cast<Event>(unneeded.address))
                                                 : environment.Counted<Call::kStreamDestroy>(reinterpret_cast<Stream>(unneeded.address));
    };
    if (context.status() == kSuccess && destroyed() == kSuccess) return;
  }
  LeaveOrphans(environment, {unneeded});
}

// A change of the table: holds its mutex, and destroys what is unneeded once that is unlocked.
class Change {
 public:
  explicit Change(Environment& environment) : environment_(environment), lock_(All().mutex) {}
  ~Change() {
    lock_.unlock();
    try {
      for (const Orphan& each : unneeded) Destroy(environment_, each);
    } catch (const std::bad_alloc&) {
      // Without memory for the list of orphans, it lasts until the process ends.
    }
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

  std::vector<Orphan> unneeded;

 private:
  Environment& environment_;
  std::unique_lock<std::mutex> lock_;
};

// An event recorded where the stream is now: the known one, if it is of the stream's device, or else
// a new one. The stream's context must be current.
Status RecordUse(Environment& environment, const StreamEntry& stream, const DeviceEvent& known, DeviceEvent* recorded) {
  *recorded = known;
  const bool is_new = known.event == nullptr || known.device != stream.device;
  if (is_new) {
    *recorded = {nullptr, stream.device};
    const Status status = environment.Counted<Call::kEventCreate>(&recorded->event, unsigned{kEventDisableTiming});
    if (status != kSuccess) return status;
  }
  const Status status = environment.Counted<Call::kEventRecord>(recorded->event, stream.stream);
  if (status != kSuccess && is_new) Destroy(environment, EventOrphan(*recorded));
  return status;
}

// Destroys the events of a shared hand-over that are complete. The caller has attached it, so nobody
// else destroys them.
void Prune(Environment& environment, std::uint64_t number) {
  constexpr std::size_t kEnough = 8;
  HandOvers& all = All();
  std::vector<DeviceEvent> uses;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    HandOver& hand_over = all.by_number.at(number);
    if (hand_over.uses.size() < kEnough || hand_over.is_pruning) return;
    hand_over.is_pruning = true;
    uses = hand_over.uses;
  }
  const auto is_pending = [&](const DeviceEvent& use) {
    const RelaxedContextScope context(environment, use.device);
    return context.status() != kSuccess || environment.driver->EventQuery(use.event) != kSuccess;
  };
  uses.erase(std::remove_if(uses.begin(), uses.end(), is_pending), uses.end());
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    HandOver& hand_over = all.by_number.at(number);
    const auto is_complete = [&](const DeviceEvent& use) {
      return std::any_of(uses.begin(), uses.end(), [&](const DeviceEvent& each) { return each.event == use.event; });
    };
    hand_over.uses.erase(std::remove_if(hand_over.uses.begin(), hand_over.uses.end(), is_complete), hand_over.uses.end());
    hand_over.is_pruning = false;
  }
  for (const DeviceEvent& use : uses) Destroy(environment, EventOrphan(use));
}

// Waits for the devices if returned memory of the environment needs that, unless the wait might
// never end because JavaScript stalls a stream.
void AwaitEnded(Environment& environment) {
  HandOvers& all = All();
  std::vector<std::uint64_t> numbers;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto member = all.members.find(environment.id());
    if (member == all.members.end()) return;
    for (const std::uint64_t number : member->second.returned) {
      if (all.by_number.at(number).needs_idle) numbers.push_back(number);
    }
  }
  if (numbers.empty() || !AwaitDevices(environment)) return;
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const std::uint64_t number : numbers) all.by_number.at(number).needs_idle = false;
}

}  // namespace

std::vector<Orphan> EndHandOversOf(const Environment& environment) {
  const std::uint64_t id = environment.id();
  std::vector<Orphan> unneeded;
  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.members.erase(id);
  all.answered.notify_all();
  for (auto entry = all.by_number.begin(); entry != all.by_number.end();) {
    HandOver& hand_over = entry->second;
    if (hand_over.is_returned) {
      const auto next = std::next(entry);
      if (hand_over.home == id) all.Erase(entry, &unneeded);
      entry = next;
      continue;
    }
    for (std::size_t index = hand_over.attachments.size(); index-- > 0;) {
      if (hand_over.attachments[index].environment != id) continue;
      hand_over.needs_idle = true;
      all.Detach(hand_over, &hand_over.attachments[index]);
    }
    if (hand_over.message != 0 && hand_over.sender == id) all.CloseMessage(hand_over);
    try {
      entry = all.ReturnIfUnused(entry, &unneeded);
    } catch (const std::bad_alloc&) {
      ++entry;  // the end of the next environment tries again
    }
  }
  return unneeded;
}

void DeliverReturned(Environment& environment) {
  if (environment.on_returned.IsEmpty()) return;
  {
    HandOvers& all = All();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto member = all.members.find(environment.id());
    if (member == all.members.end() || member->second.returned.empty()) return;
  }
  environment.CallBack(environment.on_returned);
}

void DeliverCollectionRequest(Environment& environment) {
  if (environment.on_collection_request.IsEmpty()) return;
  {
    HandOvers& all = All();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto member = all.members.find(environment.id());
    if (member == all.members.end() || !member->second.is_asked) return;
  }
  environment.CallBack(environment.on_collection_request);
}

bool IsHandedOver(const DriverTable* backend, std::uint64_t address, std::uint64_t bytes) {
  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return std::any_of(all.by_number.begin(), all.by_number.end(), [=](const auto& entry) {
    const HandOver& each = entry.second;
    return each.backend == backend && each.address < address + bytes && address < each.address + each.bytes;
  });
}

HandedOverMemory::HandedOverMemory(const DriverTable* backend) {
  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [number, hand_over] : all.by_number) {
    if (hand_over.backend == backend && hand_over.bytes > 0) ranges_.push_back({hand_over.address, hand_over.address + hand_over.bytes});
  }
  AppendExportedMemory(backend, &ranges_);
  AppendSharedMemory(backend, &ranges_);
  std::sort(ranges_.begin(), ranges_.end(), [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
}

bool HandedOverMemory::Overlaps(std::uint64_t address, std::uint64_t bytes) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address + bytes - 1,
                                      [](std::uint64_t last, const AddressRange& range) { return last < range.begin; });
  return bytes > 0 && after != ranges_.begin() && std::prev(after)->end > address;
}

Status OnReturned(Environment& environment, const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction()) return kInvalidArgument;
  environment.on_returned = Napi::Persistent(info[0].As<Napi::Function>());
  return kSuccess;
}

Status OnCollectionRequest(Environment& environment, const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction()) return kInvalidArgument;
  environment.on_collection_request = Napi::Persistent(info[0].As<Napi::Function>());
  return kSuccess;
}

Status AskToCollect(Environment& environment, const Napi::CallbackInfo&) {
  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Clock::time_point now = Clock::now();
  bool is_any_asked = false;
  all.VisitTakers(environment.id(), [&](Member& taker) {
    if (!taker.is_asked && now - taker.asked_at >= kCollectionInterval) {
      taker.is_asked = true;
      taker.asked_at = now;
      EventLoop& loop = *taker.loop;
      const std::lock_guard<std::mutex> loop_lock(loop.mutex);
      loop.PostWake();
    }
    is_any_asked = is_any_asked || taker.is_asked;
  });
  environment.Out(1, is_any_asked ? 1 : 0);
  return kSuccess;
}

Status AwaitCollections(Environment& environment, const Napi::CallbackInfo& info) {
  double milliseconds;
  if (!ReadNumber(info[0], &milliseconds) || !(milliseconds >= 0 && milliseconds <= 1000)) return kInvalidArgument;
  const auto wait = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(milliseconds));
  const Clock::time_point deadline = Clock::now() + wait;
  HandOvers& all = All();
  std::unique_lock<std::mutex> lock(all.mutex);
  const auto self = all.members.find(environment.id());
  if (self == all.members.end()) return kSuccess;
  all.answered.wait_until(lock, deadline, [&] {
    // It has collected garbage before this call. Two that ask each other would wait in vain.
    if (self->second.is_asked) {
      self->second.is_asked = false;
      all.answered.notify_all();
    }
    bool is_any_asked = false;
    all.VisitTakers(environment.id(), [&](const Member& taker) { is_any_asked |= taker.is_asked; });
    return !is_any_asked;
  });
  return kSuccess;
}

Status AnswerCollectionRequest(Environment& environment, const Napi::CallbackInfo&) {
  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto self = all.members.find(environment.id());
  if (self != all.members.end()) self->second.is_asked = false;
  all.answered.notify_all();
  return kSuccess;
}

Status HandOverMemory(Environment& environment, const Napi::CallbackInfo& info) {
  HandOver hand_over;
  StreamEntry* stream;
  if (!ReadInteger(info[0], &hand_over.address) || !ReadInteger(info[1], &hand_over.bytes)) return kInvalidArgument;
  if (!ReadInteger(info[2], &hand_over.byte_length) || !ReadInteger(info[3], &hand_over.alignment)) return kInvalidArgument;
  if (!ReadInteger(info[4], &hand_over.kind) || !ReadInt(info[5], &hand_over.device)) return kInvalidArgument;
  if (!ReadBoolean(info[7], &hand_over.is_shared)) return kInvalidArgument;
  if (hand_over.bytes > kMaxSafeInteger - hand_over.address || hand_over.byte_length > hand_over.bytes) return kInvalidRange;
  Status status = FindUncapturedStream(environment, info[6], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  status = RecordUse(environment, *stream, {}, &hand_over.ready);
  if (status != kSuccess) return status;
  hand_over.home = environment.id();

  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.Join(environment);
  const auto entry = all.Add(std::move(hand_over), environment);
  environment.Out(1, static_cast<double>(entry->first));
  environment.Out(2, static_cast<double>(entry->second.message));
  environment.Out(3, static_cast<double>(entry->second.nonce));
  environment.Out(4, entry->second.is_shared ? static_cast<double>(all.last_attachment) : 0);
  return kSuccess;
}

Status HandOverInfo(Environment& environment, const Napi::CallbackInfo& info) {
  Message message;
  if (!ReadMessage(info, Content::kMemory, &message)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  HandOvers::Entry entry;
  const Status status = all.FindMessage(environment, message, &entry);
  if (status != kSuccess) return status;
  const HandOver& hand_over = entry->second;
  environment.Out(1, static_cast<double>(hand_over.bytes));
  environment.Out(2, static_cast<double>(hand_over.byte_length));
  environment.Out(3, static_cast<double>(hand_over.alignment));
  environment.Out(4, static_cast<double>(hand_over.kind));
  environment.Out(5, hand_over.device);
  environment.Out(6, hand_over.is_shared ? 1 : 0);
  return kSuccess;
}

Status AttachHandOver(Environment& environment, const Napi::CallbackInfo& info) {
  Message message;
  StreamEntry* stream;
  if (!ReadMessage(info, Content::kMemory, &message)) return kInvalidArgument;
  Status status = FindUncapturedStream(environment, info[2], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  HandOvers& all = All();
  HandOvers::Entry entry;
  DeviceEvent ready;
  std::uint64_t number, attachment;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    status = all.FindMessage(environment, message, &entry);
    if (status != kSuccess) return status;
    HandOver& hand_over = entry->second;
    number = entry->first;
    attachment = ++all.last_attachment;
    all.Join(environment);
    hand_over.attachments.push_back({attachment, environment.id()});
    if (!hand_over.is_shared) all.CloseMessage(hand_over);
    // Nobody records it again while the attachment lasts.
    ready = hand_over.ready;
    environment.Out(1, static_cast<double>(number));
    environment.Out(2, static_cast<double>(attachment));
    environment.Out(3, static_cast<double>(hand_over.address));
  }
  status = environment.Counted<Call::kStreamWaitEvent>(stream->stream, ready.event, 0u);
  if (status == kSuccess) return status;

  Change change(environment);
  all.Detach(entry->second, all.FindAttachment(environment, Content::kMemory, number, attachment, &entry));
  if (!entry->second.is_shared) all.ReopenMessage(entry, message.number);
  all.ReturnIfUnused(entry, &change.unneeded);
  return status;
}

Status HandOn(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number, attachment, byte_length;
  bool is_shared;
  StreamEntry* stream;
  if (!ReadInteger(info[0], &number) || !ReadInteger(info[1], &attachment) || !ReadInteger(info[2], &byte_length)) return kInvalidArgument;
  if (!ReadBoolean(info[4], &is_shared)) return kInvalidArgument;
  Status status = FindUncapturedStream(environment, info[3], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  HandOvers& all = All();
  HandOvers::Entry entry;
  DeviceEvent known;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.FindAttachment(environment, Content::kMemory, number, attachment, &entry) == nullptr) return kStaleHandle;
    if (entry->second.is_shared || byte_length > entry->second.bytes) return kInvalidArgument;
    known = entry->second.ready;
  }
  DeviceEvent ready;
  status = RecordUse(environment, *stream, known, &ready);
  if (status != kSuccess) return status;
  Change change(environment);
  HandOver& hand_over = entry->second;
  all.Join(environment);
  all.OpenMessage(entry, environment);
  hand_over.is_shared = is_shared;
  if (!is_shared) hand_over.attachments.clear();
  hand_over.byte_length = byte_length;
  hand_over.ready = ready;
  environment.Out(1, static_cast<double>(hand_over.message));
  environment.Out(2, static_cast<double>(hand_over.nonce));
  if (known.event != ready.event) change.unneeded.push_back(EventOrphan(known));
  return kSuccess;
}

Status GiveBack(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number, attachment;
  StreamEntry* stream;
  if (!ReadInteger(info[0], &number) || !ReadInteger(info[1], &attachment)) return kInvalidArgument;
  Status status = FindUncapturedStream(environment, info[2], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  HandOvers& all = All();
  HandOvers::Entry entry;
  DeviceEvent known{};
  bool is_shared;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.FindAttachment(environment, Content::kMemory, number, attachment, &entry) == nullptr) return kStaleHandle;
    is_shared = entry->second.is_shared;
    if (!is_shared) known = entry->second.ready;
  }
  DeviceEvent use;
  status = RecordUse(environment, *stream, known, &use);
  if (status != kSuccess) return status;
  if (is_shared) Prune(environment, number);
  Change change(environment);
  HandOver& hand_over = entry->second;
  if (is_shared) {
    hand_over.uses.push_back(use);
  } else {
    if (known.event != use.event) change.unneeded.push_back(EventOrphan(known));
    hand_over.ready = use;
  }
  all.Detach(hand_over, all.FindAttachment(environment, Content::kMemory, number, attachment, &entry));
  all.ReturnIfUnused(entry, &change.unneeded);
  return kSuccess;
}

Status DiscardMessage(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t content;
  Message message;
  if (!ReadInteger(info[2], &content) || content >= kContents) return kInvalidArgument;
  if (!ReadMessage(info, static_cast<Content>(content), &message)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  HandOvers& all = All();
  Change change(environment);
  HandOvers::Entry entry;
  const Status status = all.FindMessage(environment, message, &entry);
  environment.Out(1, status == kSuccess ? 1 : 0);
  if (status == kStaleMessage) return kSuccess;
  if (status != kSuccess) return status;
  // One taker does not decide for the others.
  if (entry->second.is_shared && entry->second.sender != environment.id()) {
    environment.Out(1, 0);
    return kSuccess;
  }
  all.CloseMessage(entry->second);
  all.ReturnIfUnused(entry, &change.unneeded);
  return kSuccess;
}

Status RecallHandOver(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number;
  if (!ReadInteger(info[0], &number)) return kInvalidArgument;
  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto entry = all.by_number.find(number);
  if (entry == all.by_number.end() || entry->second.home != environment.id()) return kStaleHandle;
  HandOver& hand_over = entry->second;
  if (!hand_over.attachments.empty() || hand_over.message == 0) return kSuccess;
  all.CloseMessage(hand_over);
  // The home lives: nothing is erased.
  std::vector<Orphan> none;
  all.ReturnIfUnused(entry, &none);
  return kSuccess;
}

Status TakeReturned(Environment& environment, const Napi::CallbackInfo&) {
  environment.Out(1, 0);
  environment.Out(2, 0);
  AwaitEnded(environment);
  HandOvers& all = All();
  HandOvers::Entry entry;
  std::vector<DeviceEvent> events;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto member = all.members.find(environment.id());
    if (member == all.members.end()) return kSuccess;
    std::deque<std::uint64_t>& returned = member->second.returned;
    const auto found =
        std::find_if(returned.begin(), returned.end(), [&](std::uint64_t number) { return !all.by_number.at(number).needs_idle; });
    if (found == returned.end()) return kSuccess;
    entry = all.by_number.find(*found);
    returned.erase(found);
    entry->second.is_taken = true;
    // From here on only this thread uses the entry.
    events = entry->second.uses;
    events.push_back(entry->second.ready);
  }
  environment.Out(1, static_cast<double>(entry->first));
  const bool is_complete = std::all_of(events.begin(), events.end(), [&](const DeviceEvent& each) {
    const RelaxedContextScope context(environment, each.device);
    return context.status() == kSuccess && environment.Counted<Call::kEventQuery>(each.event) == kSuccess;
  });
  if (!is_complete) return kSuccess;
  environment.Out(2, 1);
  Change change(environment);
  all.Erase(entry, &change.unneeded);
  return kSuccess;
}

Status FollowReturned(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number;
  if (!ReadInteger(info[0], &number)) return kInvalidArgument;
  HandOvers& all = All();
  HandOvers::Entry entry;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    entry = all.by_number.find(number);
    if (entry == all.by_number.end() || entry->second.home != environment.id() || !entry->second.is_taken) return kStaleHandle;
  }
  StreamEntry* stream;
  Status status = FindUncapturedStream(environment, info[1], &stream);
  if (status == kSuccess) {
    const RelaxedContextScope context(environment, stream->device);
    status = context.status();
    std::vector<DeviceEvent> events = entry->second.uses;
    events.push_back(entry->second.ready);
    for (const DeviceEvent& each : events) {
      if (status == kSuccess) status = environment.Counted<Call::kStreamWaitEvent>(stream->stream, each.event, 0u);
    }
  }
  Change change(environment);
  if (status == kSuccess) {
    all.Erase(entry, &change.unneeded);
  } else {
    entry->second.is_taken = false;
    all.members.at(environment.id()).returned.push_back(number);
  }
  return status;
}

namespace {

// Adds a stream or an event of the environment to the table, with a message.
void HandOverObject(Environment& environment, HandOver hand_over, SharedObject* shared) {
  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto entry = all.Add(std::move(hand_over), environment);
  environment.Out(1, static_cast<double>(entry->second.message));
  environment.Out(2, static_cast<double>(entry->second.nonce));
  if (entry->second.is_shared) *shared = {entry->first, all.last_attachment};
}

// Takes a stream or an event out of the table, or, if it is shared, attaches it. `add` gives it to the
// environment, and returns its handle, or zero.
template <typename Add>
Status AttachObject(Environment& environment, const Message& message, Add&& add) {
  if (environment.driver == nullptr) return kNoBackend;
  HandOvers& all = All();
  const std::lock_guard<std::mutex> lock(all.mutex);
  HandOvers::Entry entry;
  const Status status = all.FindMessage(environment, message, &entry);
  if (status != kSuccess) return status;
  HandOver& hand_over = entry->second;
  SharedObject shared;
  if (hand_over.is_shared) {
    hand_over.attachments.reserve(hand_over.attachments.size() + 1);
    shared = {entry->first, all.last_attachment + 1};
  }
  const std::uint64_t handle = add(hand_over, shared);
  if (handle == 0) return kHostOutOfMemory;
  environment.Out(1, static_cast<double>(handle));
  environment.Out(2, hand_over.device);
  environment.Out(3, hand_over.is_shared ? 1 : 0);
  if (hand_over.is_shared) {
    hand_over.attachments.push_back({++all.last_attachment, environment.id()});
  } else {
    all.CloseMessage(hand_over);
    all.by_number.erase(entry);
  }
  return kSuccess;
}

}  // namespace

Status HandOverStream(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  StreamEntry* stream;
  HandOver hand_over;
  if (!ReadInteger(info[0], &handle) || !ReadInteger(info[1], &hand_over.stream_id)) return kInvalidArgument;
  if (!ReadBoolean(info[2], &hand_over.is_shared)) return kInvalidArgument;
  const Status status = FindUncapturedStream(environment, info[0], &stream);
  if (status != kSuccess) return status;
  if (!stream->owned) return kInvalidArgument;
  hand_over.content = Content::kStream;
  hand_over.device = stream->device;
  hand_over.stream = stream->stream;
  hand_over.stream_flags = stream->flags;
  const bool is_shared = hand_over.is_shared;
  HandOverObject(environment, std::move(hand_over), &stream->shared);
  stream->owned = false;
  stream->never_captured = false;
  if (!is_shared) environment.streams.Remove(handle);
  return kSuccess;
}

Status HandOverEvent(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  EventEntry* event;
  HandOver hand_over;
  if (!ReadInteger(info[0], &handle) || !ReadBoolean(info[1], &hand_over.is_shared)) return kInvalidArgument;
  Status status = environment.events.Find(static_cast<double>(handle), &event);
  if (status == kSuccess) status = CheckNotCaptured(*event);
  if (status != kSuccess) return status;
  if (event->shared.hand_over != 0) return kInvalidArgument;
  // The taker may record it again, which would prolong the wait.
  if (event->watched != nullptr && !hand_over.is_shared) return kInUse;
  hand_over.content = Content::kEvent;
  hand_over.device = event->device;
  hand_over.ready = {event->event, event->device};
  hand_over.timing = event->timing;
  const bool is_shared = hand_over.is_shared;
  HandOverObject(environment, std::move(hand_over), &event->shared);
  if (!is_shared) environment.events.Remove(handle);
  return kSuccess;
}

Status AttachStream(Environment& environment, const Napi::CallbackInfo& info) {
  Message message;
  if (!ReadMessage(info, Content::kStream, &message)) return kInvalidArgument;
  return AttachObject(environment, message, [&](const HandOver& hand_over, const SharedObject& shared) {
    environment.Out(4, static_cast<double>(hand_over.stream_id));
    const bool owned = !hand_over.is_shared;
    return environment.streams.Add({hand_over.stream, hand_over.device, owned, shared, false, hand_over.stream_id, hand_over.stream_flags});
  });
}

Status AttachEvent(Environment& environment, const Napi::CallbackInfo& info) {
  Message message;
  if (!ReadMessage(info, Content::kEvent, &message)) return kInvalidArgument;
  return AttachObject(environment, message, [&](const HandOver& hand_over, const SharedObject& shared) {
    return environment.events.Add({hand_over.ready.event, hand_over.device, hand_over.timing, nullptr, shared});
  });
}

void EndShare(Environment& environment, const SharedObject& shared) {
  HandOvers& all = All();
  Change change(environment);
  const auto entry = all.by_number.find(shared.hand_over);
  if (entry == all.by_number.end()) return;
  std::vector<Attachment>& attachments = entry->second.attachments;
  const auto found =
      std::find_if(attachments.begin(), attachments.end(), [&](const Attachment& each) { return each.number == shared.attachment; });
  if (found == attachments.end()) return;
  all.Detach(entry->second, &*found);
  all.ReturnIfUnused(entry, &change.unneeded);
}

}  // namespace cistern
