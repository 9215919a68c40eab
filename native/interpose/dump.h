// A small recording of one moment: what was allocated when a library was refused memory, by account, with the stacks
// that were recorded. `cistern report` opens it.
#ifndef CISTERN_INTERPOSE_DUMP_H_
#define CISTERN_INTERPOSE_DUMP_H_

#include "interpose/book.h"
#include "interpose/ledger.h"
#include "interpose/recording_file.h"

namespace cistern::interpose {

struct Dump {
  const Book& book;
  const RecordingFile& recording;  // that has the texts of the stacks
  const char* const* ways;         // the labels, from number 1
  const Request& request;          // that was refused
  const char* stack;
  std::size_t stack_length;
  const char* note;
};

// The folder that CISTERN_DUMP_ON_OUT_OF_MEMORY names, or null.
const char* DumpFolder();

// Writes a new file to that folder, or to the recording's. False if it cannot be written.
// Not on two threads at once.
bool WriteDump(const Dump& dump, unsigned number);

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_DUMP_H_
