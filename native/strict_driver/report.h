// The log: one line for each thing that a real driver would not report.
#ifndef CISTERN_STRICT_DRIVER_REPORT_H_
#define CISTERN_STRICT_DRIVER_REPORT_H_

namespace cistern::strict {

// `kind` is MISUSE (the caller broke a rule of the documentation), ORDER (memory is used outside
// its life in stream order), STALL (a call waits for a long time), NOTE, EXIT (what was left at the
// end) or CALL.
void Report(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_REPORT_H_
