#include "addon/admission.h"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "addon/bindings.h"
#include "addon/orphans.h"
#include "platform/lasting.h"

namespace cistern {

namespace admissions {

// As JavaScript numbers them.
enum class Outcome { kAdmitted = 0, kRefused = 1, kEnded = 2 };

struct Decided {
  std::uint64_t request;
  Outcome outcome;
  std::uint64_t holder;
};

struct Request;

struct Holder {
  AdmissionMember* member;
  double priority;
  std::int64_t promised;
  std::uint64_t number;         // in the order of admission, over all queues
  std::vector<Request*> waits;  // in whose scope, or for whom, they were made: in any queue
};

using Holders = std::map<std::uint64_t, Holder>;

}  // namespace admissions

struct AdmissionMember {
  AdmissionMember(std::shared_ptr<AdmissionQueue> its_queue, Environment& environment)
      : queue(std::move(its_queue)), loop(environment.loop), environment_id(environment.id()) {}

  const std::shared_ptr<AdmissionQueue> queue;
  const std::shared_ptr<EventLoop> loop;
  const std::uint64_t environment_id;

  // The mutex of all queues guards these.
  std::int64_t outside = 0;                  // bytes allocated outside of every grant
  std::int64_t ended = 0;                    // bytes still allocated of ended grants
  std::size_t waiting = 0;                   // requests
  std::vector<admissions::Decided> decided;  // has room for one of each waiting request
  bool is_open = true;                       // may ask for more
  std::size_t keeping_alive = 0;             // its requests that keep the environment alive, decided or not
};

namespace admissions {

struct Request {
  std::uint64_t number;
  AdmissionMember* member;
  std::int64_t bytes;
  double priority;
  std::uint64_t holder;  // of this queue, who made it; else 0
  bool grows;
  std::int64_t overtaken;
  Holders::node_type admitted;           // the new holder, made before it is needed, so that admitting cannot fail
  std::vector<Holder*> waiters;          // all who go on only after it was decided
  std::list<Request>::iterator place{};  // in the list of its queue
};

using Requests = std::list<Request>;

// Something in use that keeps bytes of a queue, such as a pinned buffer: the holders, of any queue, who end the use as they go on. None:
// somebody who waits for nothing that is known.
using Hold = std::vector<std::pair<std::shared_ptr<AdmissionQueue>, std::uint64_t>>;

}  // namespace admissions

class AdmissionQueue {
 public:
  using Holders = admissions::Holders;
  using Outcome = admissions::Outcome;
  using Request = admissions::Request;
  using Requests = admissions::Requests;

  struct Ended {
    std::uint64_t environment;
    std::int64_t bytes;
  };

  AdmissionQueue(std::string its_name, std::int64_t its_limit, std::int64_t its_overtakes)
      : name(std::move(its_name)), limit(its_limit), overtakes(its_overtakes) {}

  const std::string name;  // empty: of one adaptor
  const std::int64_t limit;
  const std::int64_t overtakes;

  // The mutex guards the rest.
  std::vector<AdmissionMember*> members;
  Holders holders;
  std::size_t holding = 0;  // holders with promised bytes
  std::size_t moving = 0;   // those of them that wait for nothing
  bool is_dead = false;     // only while deadlocks are looked for
  std::map<std::uint64_t, admissions::Hold> holds;
  Requests waiting;
  std::map<std::uint64_t, Requests::iterator> by_number;
  std::multiset<std::int64_t> sizes;  // of those that wait
  std::int64_t wanted = 0;            // their sum
  std::vector<Ended> left;            // by ended environments
  std::int64_t committed = 0;
  std::uint64_t requests = 0;
  std::uint64_t holds_made = 0;
  std::uint64_t admitted = 0;
  std::uint64_t overtook = 0;
  std::uint64_t deadlocks = 0;

  // Throws std::bad_alloc before anything is changed.
  std::uint64_t Ask(Request&& made);
  // Whether a request need not wait. One of nobody who holds bytes may have to if others wait.
  bool AdmitsAtOnce(std::int64_t bytes, bool has_holder) const { return bytes <= limit - committed && (has_holder || waiting.empty()); }
  bool Withdraw(const AdmissionMember& member, std::uint64_t request);
  void GiveBack(std::int64_t bytes) {
    committed -= bytes;
    Advance();
  }
  void End(Holders::iterator holder, std::int64_t used);
  void EndWaitsOf(AdmissionMember& member);
  // Ends what a member holds. Its loose bytes are left to the caller.
  void EndHoldersOf(AdmissionMember& member);
  void Settle();
  // Admits whom it can, and refuses somebody, here or elsewhere, if nobody could ever go on.
  void Advance();
  void Decide(Requests::iterator request, Outcome outcome, std::uint64_t holder);
  void Promise(admissions::Holder& holder, std::int64_t more);
  std::uint64_t AddHold(admissions::Hold&& hold);
  bool RemoveHold(std::uint64_t hold);
  // The number of an invariant that does not hold, or 0.
  int Broken() const;
  // Whether somebody may ask for more, or has something.
  bool IsInUse() const {
    return committed > 0 || std::any_of(members.begin(), members.end(), [](const AdmissionMember* each) { return each->is_open; });
  }

  void AdmitFitting();

 private:
  bool Fits(const Request& request) const { return request.bytes <= limit - committed; }
  void Admit(Requests::iterator request);
  void Leave(Requests::iterator request);
  void NoteStill();

  // Counts a holder again after a change.
  class Change {
   public:
    explicit Change(admissions::Holder& holder) : holder_(holder), queue_(*holder.member->queue) { Count(-1); }
    ~Change() { Count(1); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    void Count(int sign);
    admissions::Holder& holder_;
    AdmissionQueue& queue_;
  };

  std::list<AdmissionQueue*> node_{this};  // in the list of queues that stand still, or here
};

namespace {

struct Admissions {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<AdmissionQueue>> by_name;
  std::uint64_t holders = 0;         // so far
  std::list<AdmissionQueue*> still;  // somebody waits, and all who hold bytes wait as well, there or elsewhere
  // During a call: for whom it is, who takes what is decided at its end; and whether others of that environment must, too.
  const AdmissionMember* caller = nullptr;
  bool is_decided_beside = false;
};

Admissions& AllAdmissions() {
  static Lasting<Admissions> admissions;
  return *admissions;
}

void WakeForAdmissions(AdmissionMember& member) {
  member.loop->has_admissions = true;
  const std::lock_guard<std::mutex> lock(member.loop->mutex);
  member.loop->PostWake();
}

bool ComesBefore(const admissions::Request& one, const admissions::Request& other) {
  const bool one_holds = one.holder != 0;
  const bool other_holds = other.holder != 0;
  return one_holds != other_holds ? one_holds : one.priority > other.priority;
}

bool WaitsInVain(const admissions::Request* request) { return request->member->queue->is_dead; }

bool GoesOn(const admissions::Holders::value_type& each) {
  const admissions::Holder& holder = each.second;
  return holder.promised > 0 && std::none_of(holder.waits.begin(), holder.waits.end(), WaitsInVain);
}

// Who ends the use, or null if nobody is known.
const admissions::Holder* FindParty(const admissions::Hold::value_type& party) {
  const auto found = party.first->holders.find(party.second);
  return found == party.first->holders.end() ? nullptr : &found->second;
}

bool Ends(const std::map<std::uint64_t, admissions::Hold>::value_type& each) {
  return std::none_of(each.second.begin(), each.second.end(), [](const auto& party) {
    const admissions::Holder* holder = FindParty(party);
    return holder != nullptr && std::any_of(holder->waits.begin(), holder->waits.end(), WaitsInVain);
  });
}

// Whether bytes may come back, as far as is known by now.
bool IsLive(const AdmissionQueue& queue) {
  return std::any_of(queue.holders.begin(), queue.holders.end(), GoesOn) || std::any_of(queue.holds.begin(), queue.holds.end(), Ends);
}

// The oldest of those who wait for a request and hold bytes.
const admissions::Holder* OldestOf(const admissions::Request& request) {
  const admissions::Holder* oldest = nullptr;
  for (const admissions::Holder* each : request.waiters) {
    if (each->promised > 0 && (oldest == nullptr || each->number < oldest->number)) oldest = each;
  }
  return oldest;
}

// The youngest request of the lowest priority among those that wait for each other, in all queues; null if there are none.
// Bytes come back in a queue if somebody who holds some goes on: who waits for nothing, or only in queues where bytes come back.
const admissions::Request* FindDeadlock() {
  const std::list<AdmissionQueue*>& still = AllAdmissions().still;
  for (AdmissionQueue* queue : still) queue->is_dead = true;
  for (bool is_changed = !still.empty(); is_changed;) {
    is_changed = false;
    for (AdmissionQueue* queue : still) {
      if (!queue->is_dead || !IsLive(*queue)) continue;
      queue->is_dead = false;
      is_changed = true;
    }
  }
  const admissions::Request* victim = nullptr;
  const admissions::Holder* least = nullptr;
  const auto consider = [&](const admissions::Holder& holder) {
    for (const admissions::Request* request : holder.waits) {
      const admissions::Holder* oldest = WaitsInVain(request) ? OldestOf(*request) : nullptr;
      if (oldest == nullptr) continue;
      const bool is_less =
          least == nullptr || (oldest->priority != least->priority ? oldest->priority < least->priority : oldest->number > least->number);
      if (!is_less) continue;
      victim = request;
      least = oldest;
    }
  };
  for (const AdmissionQueue* queue : still) {
    if (!queue->is_dead) continue;
    for (const auto& [number, holder] : queue->holders) {
      if (holder.promised > 0) consider(holder);
    }
    for (const auto& [number, hold] : queue->holds) {
      for (const auto& party : hold) {
        const admissions::Holder* holder = FindParty(party);
        if (holder != nullptr) consider(*holder);
      }
    }
  }
  for (AdmissionQueue* queue : still) queue->is_dead = false;
  return victim;
}

}  // namespace

std::uint64_t AdmissionQueue::Ask(Request&& made) {
  Requests request;
  request.push_back(std::move(made));
  Request& asked = request.front();
  AdmissionMember& member = *asked.member;
  if (!asked.grows) {
    Holders holder;
    holder.emplace(0, admissions::Holder{&member, asked.priority, asked.bytes, 0, {}});
    asked.admitted = holder.extract(holder.begin());
  }
  decltype(by_number) numbered;
  numbered.emplace(requests + 1, request.begin());
  decltype(sizes) size{asked.bytes};
  member.decided.reserve(member.decided.size() + member.waiting + 1);
  for (admissions::Holder* waiter : asked.waiters) waiter->waits.reserve(waiter->waits.size() + 1);
  const std::uint64_t number = ++requests;
  asked.number = number;
  asked.place = request.begin();
  member.waiting += 1;
  for (admissions::Holder* waiter : asked.waiters) {
    const Change change(*waiter);
    waiter->waits.push_back(&asked);
  }
  by_number.merge(numbered);
  sizes.merge(size);
  wanted += asked.bytes;
  auto place = asked.holder != 0 ? waiting.begin() : waiting.end();
  // Holders come first, and are few.
  if (asked.holder != 0)
    while (place != waiting.end() && !ComesBefore(asked, *place)) ++place;
  else
    while (place != waiting.begin() && ComesBefore(asked, *std::prev(place))) --place;
  waiting.splice(place, request);
  NoteStill();
  Advance();
  return number;
}

bool AdmissionQueue::Withdraw(const AdmissionMember& member, std::uint64_t number) {
  const auto found = by_number.find(number);
  if (found == by_number.end() || found->second->member != &member) return false;
  Leave(found->second);
  Advance();
  return true;
}

void AdmissionQueue::End(Holders::iterator holder, std::int64_t used) {
  std::vector<Request*>& waits = holder->second.waits;
  while (!waits.empty()) {
    Request& request = *waits.back();
    if (request.holder == holder->first) {
      Decide(request.place, Outcome::kEnded, 0);
    } else {
      request.waiters.erase(std::find(request.waiters.begin(), request.waiters.end(), &holder->second));
      const Change change(holder->second);
      waits.pop_back();
    }
  }
  const std::int64_t unused = holder->second.promised - used;
  holder->second.member->ended += used;
  Promise(holder->second, -holder->second.promised);
  holders.erase(holder);
  GiveBack(unused);
}

void AdmissionQueue::Promise(admissions::Holder& holder, std::int64_t more) {
  const Change change(holder);
  holder.promised += more;
}

std::uint64_t AdmissionQueue::AddHold(admissions::Hold&& hold) {
  holds.emplace(holds_made + 1, std::move(hold));
  holds_made += 1;
  NoteStill();
  Advance();
  return holds_made;
}

bool AdmissionQueue::RemoveHold(std::uint64_t hold) {
  if (holds.erase(hold) == 0) return false;
  NoteStill();
  Advance();
  return true;
}

void AdmissionQueue::Change::Count(int sign) {
  if (holder_.promised == 0) return;
  queue_.holding += static_cast<std::size_t>(sign);
  if (holder_.waits.empty()) queue_.moving += static_cast<std::size_t>(sign);
  queue_.NoteStill();
}

void AdmissionQueue::NoteStill() {
  const bool is_still = moving == 0 && (holding > 0 || !holds.empty()) && !waiting.empty();
  if (is_still != node_.empty()) {
    std::list<AdmissionQueue*>& still = AllAdmissions().still;
    if (is_still)
      still.splice(still.end(), node_);
    else
      node_.splice(node_.end(), still, std::find(still.begin(), still.end(), this));
  }
}

void AdmissionQueue::EndWaitsOf(AdmissionMember& member) {
  for (auto request = waiting.begin(); request != waiting.end();) {
    const auto each = request++;
    if (each->member == &member) Decide(each, Outcome::kEnded, 0);
  }
  Advance();
}

void AdmissionQueue::EndHoldersOf(AdmissionMember& member) {
  for (auto holder = holders.begin(); holder != holders.end();) {
    const auto each = holder++;
    if (each->second.member == &member) End(each, 0);
  }
}

void AdmissionQueue::Settle() {
  const auto is_freed = [this](Ended& each) {
    const std::int64_t bytes = std::min(each.bytes, static_cast<std::int64_t>(BytesLeftBy(each.environment)));
    committed -= each.bytes - bytes;
    each.bytes = bytes;
    return bytes == 0;
  };
  left.erase(std::remove_if(left.begin(), left.end(), is_freed), left.end());
  Advance();
}

void AdmissionQueue::Advance() {
  AdmitFitting();
  while (const admissions::Request* victim = FindDeadlock()) {
    AdmissionQueue& queue = *victim->member->queue;
    queue.deadlocks += 1;
    queue.Decide(victim->place, Outcome::kRefused, 0);
    queue.AdmitFitting();
  }
}

void AdmissionQueue::AdmitFitting() {
  bool is_closed = false;
  for (auto request = waiting.begin(); request != waiting.end();) {
    if (*sizes.begin() > limit - committed) return;
    const bool is_new = request->holder == 0;
    if (is_closed && is_new) return;
    if (Fits(*request)) {
      if (is_new) {
        for (auto earlier = waiting.begin(); earlier != request; ++earlier) {
          earlier->overtaken += 1;
          overtook += 1;
        }
      }
      Admit(request);
      request = waiting.begin();
      is_closed = false;
    } else {
      is_closed = is_closed || request->overtaken >= overtakes;
      ++request;
    }
  }
}

void AdmissionQueue::Admit(Requests::iterator request) {
  committed += request->bytes;
  admitted += 1;
  std::uint64_t number = request->holder;
  if (request->grows) {
    Promise(holders.at(number), request->bytes);
  } else {
    number = ++AllAdmissions().holders;
    request->admitted.key() = number;
    admissions::Holder& holder = holders.insert(std::move(request->admitted)).position->second;
    holder.number = number;
    holder.promised = 0;
    Promise(holder, request->bytes);
  }
  Decide(request, Outcome::kAdmitted, number);
}

void AdmissionQueue::Decide(Requests::iterator request, Outcome outcome, std::uint64_t holder) {
  AdmissionMember& member = *request->member;
  member.decided.push_back({request->number, outcome, holder});
  Leave(request);
  Admissions& all = AllAdmissions();
  if (&member == all.caller) return;
  if (all.caller != nullptr && all.caller->environment_id == member.environment_id)
    all.is_decided_beside = true;
  else
    WakeForAdmissions(member);
}

// Nobody waits for a request any more.
void AdmissionQueue::Leave(Requests::iterator request) {
  for (admissions::Holder* waiter : request->waiters) {
    const Change change(*waiter);
    waiter->waits.erase(std::find(waiter->waits.begin(), waiter->waits.end(), &*request));
  }
  request->member->waiting -= 1;
  by_number.erase(request->number);
  sizes.erase(sizes.find(request->bytes));
  wanted -= request->bytes;
  waiting.erase(request);
  NoteStill();
}

int AdmissionQueue::Broken() const {
  std::int64_t sum = 0;
  for (const AdmissionMember* member : members) sum += member->outside + member->ended;
  for (const Ended& each : left) sum += each.bytes;
  for (const auto& [number, holder] : holders) sum += holder.promised;
  if (sum != committed || committed > limit) return 1;
  std::multiset<std::int64_t> bytes;
  for (const Request& request : waiting) bytes.insert(request.bytes);
  if (bytes != sizes || std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}) != wanted) return 5;
  if (by_number.size() != waiting.size()) return 5;
  if (FindDeadlock() != nullptr) return 2;
  bool is_closed = false;
  for (const Request& request : waiting) {
    if (request.overtaken > overtakes) return 3;
    if (is_closed && request.holder == 0) break;
    if (Fits(request)) return 4;
    is_closed = is_closed || request.overtaken == overtakes;
  }
  return 0;
}

namespace {

std::unique_lock<std::mutex> LockAdmissions() { return std::unique_lock<std::mutex>(AllAdmissions().mutex); }

// A call for a member, which takes what it decides for that by itself.
class AdmissionCall {
 public:
  explicit AdmissionCall(const AdmissionMember& member) : lock_(LockAdmissions()) {
    AllAdmissions().caller = &member;
    AllAdmissions().is_decided_beside = false;
  }
  ~AdmissionCall() { AllAdmissions().caller = nullptr; }
  AdmissionCall(const AdmissionCall&) = delete;
  AdmissionCall& operator=(const AdmissionCall&) = delete;

 private:
  const std::unique_lock<std::mutex> lock_;
};

// The mutex must be held.
void LeaveQueue(AdmissionMember& member) {
  const std::shared_ptr<AdmissionQueue> queue = member.queue;
  queue->EndWaitsOf(member);
  queue->EndHoldersOf(member);
  const auto place = std::find(queue->members.begin(), queue->members.end(), &member);
  if (place != queue->members.end()) queue->members.erase(place);
  queue->committed -= member.outside + member.ended;
  auto& by_name = AllAdmissions().by_name;
  const auto known = by_name.find(queue->name);
  if (queue->members.empty() && known != by_name.end() && known->second == queue) by_name.erase(known);
}

Status FindMember(Environment& environment, const Napi::Value& value, AdmissionEntry** member) {
  std::uint64_t handle;
  if (!ReadInteger(value, &handle)) return kInvalidArgument;
  return environment.admissions.Find(static_cast<double>(handle), member);
}

// The holder of a number, if the member's adaptor was promised its bytes.
Status FindHolder(AdmissionMember& member, std::uint64_t number, admissions::Holders::iterator* holder) {
  *holder = member.queue->holders.find(number);
  return *holder != member.queue->holders.end() && (*holder)->second.member == &member ? kSuccess : kStaleHandle;
}

// What every call tells that may have decided requests: whether there are outcomes for the member, whether
// anybody waits, what is free, and whether there are outcomes for others of the environment.
void TellState(Environment& environment, const AdmissionMember& member) {
  const AdmissionQueue& queue = *member.queue;
  environment.Out(1, static_cast<double>(member.decided.size()));
  environment.Out(2, static_cast<double>(queue.waiting.size()));
  environment.Out(4, static_cast<double>(queue.limit - queue.committed));
  environment.Out(5, AllAdmissions().is_decided_beside ? 1 : 0);
}

// Calls use(queue, holder, bytes) for a handle, the number of a holder, and bytes among those promised to it.
template <typename Use>
Status WithPromise(Environment& environment, const Napi::CallbackInfo& info, Use&& use) {
  AdmissionEntry* found;
  std::uint64_t number;
  std::uint64_t bytes;
  admissions::Holders::iterator holder;
  Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  if (!ReadInteger(info[1], &number) || !ReadInteger(info[2], &bytes)) return kInvalidArgument;
  AdmissionMember& member = **found;
  const AdmissionCall call(member);
  status = FindHolder(member, number, &holder);
  if (status != kSuccess) return status;
  if (static_cast<std::int64_t>(bytes) > holder->second.promised) return kInvalidArgument;
  use(*member.queue, holder, static_cast<std::int64_t>(bytes));
  TellState(environment, member);
  return kSuccess;
}

// Adds holders that are given as pairs of a handle and a number. Those that have ended do not wait.
void AddWaiters(Environment& environment, const Napi::Float64Array& pairs, std::vector<admissions::Holder*>* waiters) {
  for (std::size_t i = 0; i + 1 < pairs.ElementLength(); i += 2) {
    AdmissionEntry* member;
    admissions::Holders::iterator holder;
    if (environment.admissions.Find(pairs[i], &member) != kSuccess) continue;
    if (!(pairs[i + 1] >= 0) || FindHolder(**member, static_cast<std::uint64_t>(pairs[i + 1]), &holder) != kSuccess) continue;
    if (std::find(waiters->begin(), waiters->end(), &holder->second) == waiters->end()) waiters->push_back(&holder->second);
  }
}

void LetGoOf(Environment& environment, AdmissionMember& member) {
  if (member.keeping_alive == 0) return;
  member.keeping_alive -= 1;
  environment.LetGo();
}

}  // namespace

void DeliverAdmissions(Environment& environment) {
  if (!environment.loop->has_admissions.exchange(false) || environment.on_admissions.IsEmpty()) return;
  environment.CallBack(environment.on_admissions);
}

void EndAdmissionsOf(Environment& environment) {
  const auto lock = LockAdmissions();
  environment.admissions.ForEach([&](std::uint64_t, const AdmissionEntry& member) {
    AdmissionQueue& queue = *member->queue;
    std::int64_t bytes = member->outside + member->ended;
    for (const auto& [number, holder] : queue.holders) bytes += holder.member == member.get() ? holder.promised : 0;
    bytes = std::min(bytes, static_cast<std::int64_t>(BytesLeftBy(environment.id())));
    // Before others are admitted: the memory is still allocated. Without room for a note of it, it counts as free.
    if (!queue.name.empty() && bytes > 0 && queue.members.size() > 1) {
      try {
        queue.left.push_back({environment.id(), bytes});
        queue.committed += bytes;
      } catch (const std::bad_alloc&) {
      }
    }
    LeaveQueue(*member);
    queue.Settle();
  });
}

Status OnAdmissions(Environment& environment, const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction()) return kInvalidArgument;
  environment.on_admissions = Napi::Persistent(info[0].As<Napi::Function>());
  return kSuccess;
}

Status OpenAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  std::string name;
  std::uint64_t limit;
  std::uint64_t overtakes;
  if (!ReadString(info[0], &name) || !ReadInteger(info[1], &limit) || !ReadInteger(info[2], &overtakes)) return kInvalidArgument;
  const auto lock = LockAdmissions();
  auto& by_name = AllAdmissions().by_name;
  const auto known = name.empty() ? by_name.end() : by_name.find(name);
  const auto queue = known != by_name.end() && known->second->IsInUse()
                         ? known->second
                         : std::make_shared<AdmissionQueue>(name, static_cast<std::int64_t>(limit), static_cast<std::int64_t>(overtakes));
  const auto member = std::make_shared<AdmissionMember>(queue, environment);
  queue->members.reserve(queue->members.size() + 1);
  if (!name.empty()) by_name[name] = queue;
  const std::uint64_t handle = environment.admissions.Add(member);
  if (handle == 0) {
    LeaveQueue(*member);
    return kHostOutOfMemory;
  }
  queue->members.push_back(member.get());
  environment.Out(1, static_cast<double>(handle));
  environment.Out(2, static_cast<double>(queue->limit));
  environment.Out(3, static_cast<double>(queue->overtakes));
  return kSuccess;
}

Status CloseAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  const AdmissionEntry member = *found;
  const auto lock = LockAdmissions();
  LeaveQueue(*member);
  member->queue->Advance();
  while (member->keeping_alive > 0) LetGoOf(environment, *member);
  environment.admissions.Remove(static_cast<std::uint64_t>(info[0].As<Napi::Number>().DoubleValue()));
  return kSuccess;
}

Status TakeUnpromised(Environment& environment) {
  std::uint64_t bytes;
  AdmissionEntry* found;
  if (!environment.In(1, &bytes)) return kInvalidArgument;
  const Status status = environment.admissions.Find(environment.In(0), &found);
  if (status != kSuccess) return status;
  AdmissionMember& member = **found;
  const AdmissionCall call(member);
  AdmissionQueue& queue = *member.queue;
  const bool fits = static_cast<std::int64_t>(bytes) <= queue.limit - queue.committed;
  if (fits) {
    queue.committed += static_cast<std::int64_t>(bytes);
    member.outside += static_cast<std::int64_t>(bytes);
  }
  environment.Out(1, fits ? 1 : 0);
  return kSuccess;
}

// What was allocated outside of grants, or by a grant that has ended, is free.
Status GiveUnpromised(Environment& environment) {
  std::uint64_t bytes;
  AdmissionEntry* found;
  if (!environment.In(1, &bytes)) return kInvalidArgument;
  const bool was_promised = environment.In(2) == 1;
  const Status status = environment.admissions.Find(environment.In(0), &found);
  if (status != kSuccess) return status;
  AdmissionMember& member = **found;
  const AdmissionCall call(member);
  std::int64_t& loose = was_promised ? member.ended : member.outside;
  if (static_cast<std::int64_t>(bytes) > loose) return kInvalidArgument;
  loose -= static_cast<std::int64_t>(bytes);
  member.queue->GiveBack(static_cast<std::int64_t>(bytes));
  TellState(environment, member);
  return kSuccess;
}

Status AskForAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  std::uint64_t bytes;
  std::uint64_t holder;
  double priority;
  bool grows;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  if (!ReadInteger(info[1], &bytes) || !ReadNumber(info[2], &priority) || !ReadInteger(info[3], &holder)) return kInvalidArgument;
  if (!ReadBoolean(info[4], &grows) || !(priority == priority) || (grows && holder == 0)) return kInvalidArgument;
  Napi::Float64Array others;
  const bool may_wait = !info[5].IsUndefined();
  if (may_wait && !ReadArray(info[5], &others)) return kInvalidArgument;
  AdmissionMember& member = **found;
  const AdmissionCall call(member);
  AdmissionQueue& queue = *member.queue;
  admissions::Holders::iterator asking;
  if (holder != 0) {
    const Status known = FindHolder(member, holder, &asking);
    if (known != kSuccess) return known;
  }
  const std::int64_t most = queue.limit - (grows ? asking->second.promised : 0);
  if (static_cast<std::int64_t>(bytes) > most) return kInvalidArgument;
  if (!may_wait && !queue.AdmitsAtOnce(static_cast<std::int64_t>(bytes), holder != 0)) {
    TellState(environment, member);
    environment.Out(3, 0);
    return kSuccess;
  }
  const std::size_t before = member.waiting;
  std::vector<admissions::Holder*> waiters;
  if (holder != 0) waiters.push_back(&asking->second);
  if (may_wait) AddWaiters(environment, others, &waiters);
  const std::uint64_t request =
      queue.Ask({0, &member, static_cast<std::int64_t>(bytes), priority, holder, grows, 0, {}, std::move(waiters)});
  const bool is_shared = !queue.name.empty();
  if (is_shared) {
    // Others may give back what it waits for.
    member.keeping_alive += 1;
    environment.KeepAlive();
    if (member.waiting > before) {
      for (AdmissionMember* other : queue.members) {
        if (other->environment_id != environment.id()) WakeForAdmissions(*other);
      }
    }
  }
  TellState(environment, member);
  environment.Out(3, static_cast<double>(request));
  return kSuccess;
}

Status HoldAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  Napi::Float64Array parties;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  if (!ReadArray(info[1], &parties)) return kInvalidArgument;
  AdmissionMember& member = **found;
  const AdmissionCall call(member);
  std::vector<admissions::Holder*> holders;
  AddWaiters(environment, parties, &holders);
  admissions::Hold hold;
  for (const admissions::Holder* each : holders) hold.emplace_back(each->member->queue, each->number);
  const std::uint64_t number = member.queue->AddHold(std::move(hold));
  TellState(environment, member);
  environment.Out(3, static_cast<double>(number));
  return kSuccess;
}

Status EndAdmissionHold(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  std::uint64_t hold;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  if (!ReadInteger(info[1], &hold)) return kInvalidArgument;
  AdmissionMember& member = **found;
  const AdmissionCall call(member);
  const bool was_there = member.queue->RemoveHold(hold);
  TellState(environment, member);
  return was_there ? kSuccess : kStaleHandle;
}

Status WithdrawAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  std::uint64_t request;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  if (!ReadInteger(info[1], &request)) return kInvalidArgument;
  AdmissionMember& member = **found;
  const AdmissionCall call(member);
  const bool was_waiting = member.queue->Withdraw(member, request);
  if (was_waiting) LetGoOf(environment, member);
  TellState(environment, member);
  environment.Out(3, was_waiting ? 1 : 0);
  return kSuccess;
}

Status ShrinkAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  return WithPromise(environment, info, [](AdmissionQueue& queue, admissions::Holders::iterator holder, std::int64_t bytes) {
    queue.Promise(holder->second, -bytes);
    queue.GiveBack(bytes);
  });
}

Status EndAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  return WithPromise(environment, info,
                     [](AdmissionQueue& queue, admissions::Holders::iterator holder, std::int64_t used) { queue.End(holder, used); });
}

Status StopAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  AdmissionMember& member = **found;
  const AdmissionCall call(member);
  member.is_open = false;
  member.queue->EndWaitsOf(member);
  TellState(environment, member);
  return kSuccess;
}

Status TakeAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  AdmissionMember& member = **found;
  const AdmissionCall call(member);
  environment.Out(1, 0);
  if (member.decided.empty()) return kSuccess;
  const admissions::Decided decided = member.decided.front();
  member.decided.erase(member.decided.begin());
  LetGoOf(environment, member);
  environment.Out(1, static_cast<double>(decided.request));
  environment.Out(2, static_cast<double>(decided.outcome));
  environment.Out(3, static_cast<double>(decided.holder));
  return kSuccess;
}

Status ReadAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  const auto lock = LockAdmissions();
  const AdmissionQueue& queue = *(*found)->queue;
  std::int64_t outside = 0;
  for (const AdmissionMember* member : queue.members) outside += member->outside;
  int cell = 1;
  for (const std::int64_t number : {
           queue.committed,
           outside,
           static_cast<std::int64_t>(queue.holding),
           static_cast<std::int64_t>(queue.waiting.size()),
           queue.wanted,
           queue.waiting.empty() ? std::int64_t{0} : queue.waiting.front().bytes,
           static_cast<std::int64_t>(queue.admitted),
           static_cast<std::int64_t>(queue.overtook),
           static_cast<std::int64_t>(queue.deadlocks),
       }) {
    environment.Out(cell++, static_cast<double>(number));
  }
  return kSuccess;
}

Status ValidateAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  const auto lock = LockAdmissions();
  environment.Out(1, (*found)->queue->Broken());
  return kSuccess;
}

Status SettleAdmission(Environment& environment, const Napi::CallbackInfo& info) {
  AdmissionEntry* found;
  const Status status = FindMember(environment, info[0], &found);
  if (status != kSuccess) return status;
  const AdmissionEntry member = *found;
  bool is_left;
  {
    const auto lock = LockAdmissions();
    is_left = !member->queue->left.empty();
  }
  if (is_left) {
    if (environment.driver != nullptr) environment.ReapOrphans();
    // Another environment may have taken them first.
    AwaitFrees();
  }
  const AdmissionCall call(*member);
  member->queue->Settle();
  TellState(environment, *member);
  return kSuccess;
}

}  // namespace cistern
