// Shares the bytes of a limit among holders and waiting requests. A queue belongs to one adaptor or, by
// its name, to adaptors of several environments. It deals only with numbers: not with memory,
// JavaScript's promises or time.
//
//     limit  ├── holder 1: promised ──┤── holder 2 ──┤─ loose: outside of grants, or of ended ones ─┤── free ──┤
//     queue  holder 2 wants more  ►  priority 5: request 7  ►  priority 0: request 4  ►  request 6
//
// A holder that wants more comes first, because it returns its bytes only when it goes on; then higher
// priorities; then earlier requests. A later request may pass one that does not fit yet, but each is
// passed at most `overtakes` times: then no new holder is admitted before it.
//
// Who waits for whom is known over all queues of the process: a request names the holders, of any queue, who go on only
// after it was decided. Bytes come back in a queue if one of its holders waits for nothing, or only in queues where bytes come
// back. If somebody waits in vain, the youngest request of the lowest priority is refused; whoever made it may go on with what
// it has, return some, or try again. A request is as old as its oldest holder.
//
// Invariants: committed = Σ promised + Σ loose of the members + Σ of ended environments ≤ limit; a request that
// fits does not wait, unless it is for a new holder and one before it was passed as often as allowed; no holder waits in
// vain.
// Cost: a request and a return take time logarithmic in the waiting requests, unless one of these fits, or the request has a higher
// priority than others: then they look at each once; at holders only while there are queues in which all of them wait.
//
// One mutex guards all queues. The outcome of a request is kept with its member until the member takes it:
// immediately, if its own call decided it; otherwise its event loop is woken. Bytes of an ended environment
// count until its memory is free, as with shared counts.
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

// Tells JavaScript that requests of this environment were decided elsewhere, or that another environment
// waits.
void DeliverAdmissions(Environment& environment);

// The environment ends, and has left its memory to the orphans.
void EndAdmissionsOf(Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_ADMISSION_H_
