// Checkpoints of a process: locked, calls wait; checkpointed, the contents of device memory are in another file, and the pages that
// callers see have none. Other processes ask through a channel (platform/process_channel.h).
//
// What NVIDIA's documentation refuses, or leaves open, is a setting: memory that processes share, managed memory, and whether a
// process can go on after a checkpoint that was refused.
#ifndef CISTERN_STRICT_DRIVER_CHECKPOINT_H_
#define CISTERN_STRICT_DRIVER_CHECKPOINT_H_

#include "strict_driver/state.h"

namespace cistern::strict {

// From now on, other processes can ask.
void ServeCheckpoints();

// A call waits here while the process is locked, and counts as inside until it leaves.
void EnterUnlocked(Lock& lock);
void Leave();

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_CHECKPOINT_H_
