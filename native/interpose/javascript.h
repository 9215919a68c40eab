// The JavaScript stack of the calling thread, from V8 itself: no JavaScript runs for it, and nothing of the program
// is changed.
#ifndef CISTERN_INTERPOSE_JAVASCRIPT_H_
#define CISTERN_INTERPOSE_JAVASCRIPT_H_

#include <cstddef>

namespace cistern::interpose {

// Writes lines `function (file:line:column)`, the innermost first, each ended by a newline. Returns their length:
// 0 if no JavaScript has called, if V8 may not be asked now, or if the process has no V8 that is known.
std::size_t JavaScriptStack(char* text, std::size_t capacity);

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_JAVASCRIPT_H_
