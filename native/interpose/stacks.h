// Who allocates: the library, and the stack as text.
#ifndef CISTERN_INTERPOSE_STACKS_H_
#define CISTERN_INTERPOSE_STACKS_H_

#include <cstddef>

#include "interpose/libraries.h"

namespace cistern::interpose {

// The first library that is not NVIDIA's among those that called. Only looks further up than `return_address` if
// that is in one of NVIDIA's.
Library CallerOf(const void* return_address);

// Writes the stack: native frames that are not NVIDIA's, then those of JavaScript, or the thread's name if there are
// none; one line for each, the innermost first. Returns its length.
std::size_t StackText(char* text, std::size_t capacity);

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_STACKS_H_
