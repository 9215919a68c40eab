// Free memory that resources of other environments of the process keep.
//
//     pool of environment 1 ── NoteKept, whenever it takes or returns a block ──► table: 1 GiB of device 0, pool 'a'
//                                                                                   │
//     environment 2 is out of memory ── AskForKept ── does anyone hold any? ◄───────┘
//        │ waits, but not for long                      │ yes: wakes the event loop of environment 1
//        └───────◄── answered ◄── its pools return what is wholly free ◄──┘
//
// Only an environment itself can return its memory, because its resources are in JavaScript. So the wait is
// bounded: the time counts from the first request, by anyone, that an environment has not answered, and one
// that does not answer is waited for once. An environment that waits itself has returned what it could before it
// asked, and counts as having answered: two that ask each other do not wait.
//
// One mutex guards the table, and no driver is called while it is held.
#ifndef CISTERN_ADDON_KEPT_MEMORY_H_
#define CISTERN_ADDON_KEPT_MEMORY_H_

namespace cistern {

class Environment;

// Calls JavaScript if an environment has asked this one for memory. Called by the event loop.
void DeliverKeptRequests(Environment& environment);

// The environment has ended, and left its memory to the orphans.
void EndKeptMemoryOf(const Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_KEPT_MEMORY_H_
