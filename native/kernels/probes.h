// Asks a device what CUDA's documentation leaves open about captures (docs/design/031-graphs.md).
#ifndef CISTERN_KERNELS_PROBES_H_
#define CISTERN_KERNELS_PROBES_H_

#include <string>
#include <vector>

#include "cuda/driver_table.h"

namespace cistern::kernels {

// The answer to one question for one mode of the capture.
struct Answer {
  std::string question;
  std::string mode;
  Status status = kSuccess;    // of the call in question
  int capture = kCaptureNone;  // how the capture stood after it
  Status end = kSuccess;       // of its end
};

// Each question, for a capture of each mode, on the first device. With a failure of what is no question, there
// is one answer with its status and without a mode.
std::vector<Answer> AskAboutCaptures(Status (*find)(const char* symbol, void** function, int version, unsigned long long flags,
                                                    int* symbol_status));

}  // namespace cistern::kernels

#endif  // CISTERN_KERNELS_PROBES_H_
