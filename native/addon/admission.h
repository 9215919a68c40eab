// Who may have how many bytes of a limit, and who waits for them. A queue belongs to one adaptor or, by
// its name, to adaptors of several environments. Knows only numbers: no memory, no promises, no time.
//
//     limit  ├── holder 1: promised ──┤── holder 2 ──┤─ loose: outside of grants, or of ended ones ─┤── free ──┤
//     queue  holder 2 wants more  ►  priority 5: request 7  ►  priority 0: request 4  ►  request 6
//
// Whoever holds something and wants more comes first, since what it holds comes back only when it goes on;
// then higher priorities; then earlier requests. A later request may pass one that does not fit yet, but
// each is passed at most `overtakes` times: then no new holder is admitted before it.
//
// If all who hold something wait for more, nothing can come back. Then the youngest of the lowest
// priority is refused, and may go on with what it has, give back, or try again.
//
// Invariants: committed = Σ promised + Σ loose of the members + Σ of ended environments ≤ limit;
// nobody waits who fits, unless it is new and somebody before it was passed as often as allowed; not all
// who hold something wait.
// Cost: a request and a return look at each waiting request once, and, for each that is refused, at each holder.
//
// One mutex guards all queues. What became of a request is kept with its member until that takes it: at once, in
// its own call; else its event loop is woken. What an ended environment had counts until its memory is free, as
// with shared counts.
#ifndef CISTERN_ADDON_ADMISSION_H_
#define CISTERN_ADDON_ADMISSION_H_

#include <cstdint>
#include <memory>

namespace cistern {

class Environment;
class AdmissionQueue;
struct AdmissionMember;

// An adaptor of this environment.
using AdmissionEntry = std::shared_ptr<AdmissionMember>;

// Tells JavaScript that requests of this environment were decided elsewhere, or that somebody else waits.
void DeliverAdmissions(Environment& environment);

// The environment ends, and has left its memory to the orphans.
void EndAdmissionsOf(Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_ADMISSION_H_
