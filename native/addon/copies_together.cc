// Copies of several pieces of memory that move together, in as few calls of the driver as it takes: pieces that are neighbours on both
// sides are one copy, and what is left is one batch where the driver has batches.
#include <algorithm>
#include <cstring>
#include <vector>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/queued_copies.h"
#include "addon/ranges.h"

namespace cistern {
namespace {

// Drivers have ended the process, or hung, over batches of tens of thousands of copies (vllm-project/vllm#49276).
constexpr std::size_t kMostCopiesOfBatch = 256;
// Those reports, and InternLM/lmdeploy#4838, are of devices from Blackwell on.
constexpr int kFirstWithoutBatches = 10;

// A copy of pieces that are neighbours on both sides.
struct Run {
  Location to;
  Location from;
  std::uint64_t bytes;
  std::size_t pieces;  // of the list, up to its end
};

bool Continues(Environment& environment, const Location& start, std::uint64_t bytes, const Location& next, std::uint64_t next_bytes) {
  return next.address == start.address + bytes && IsOnePiece(environment, start.address, bytes + next_bytes);
}

// Whether a batch may have the copy: not what a copy alone would be made in another way for.
bool IsForBatch(const Run& run, const StreamEntry& stream) {
  for (const Location& location : {run.to, run.from}) {
    if (location.place == Place::kPageableHost || (location.device >= 0 && location.device != stream.device)) return false;
  }
  return run.to.place == Place::kDevice || run.from.place == Place::kDevice;
}

bool TakesBatches(Environment& environment, const StreamEntry& stream) {
  if (stream.stream == nullptr || stream.stream == LegacyStream()) return false;
  return environment.ComputeCapabilityMajor(stream.device) < kFirstWithoutBatches;
}

Status QueueBatch(Environment& environment, const Run* runs, std::size_t count, const StreamEntry& stream) {
  DevicePointer destinations[kMostCopiesOfBatch];
  DevicePointer sources[kMostCopiesOfBatch];
  std::size_t sizes[kMostCopiesOfBatch];
  for (std::size_t i = 0; i < count; ++i) {
    destinations[i] = runs[i].to.address;
    sources[i] = runs[i].from.address;
    sizes[i] = static_cast<std::size_t>(runs[i].bytes);
  }
  CopyAttributes attributes{kSourceOrderStream, {kLocationNone, 0}, {kLocationNone, 0}, 0};
  // Drivers have been said to read an entry for each copy, and any of these is the first attribute.
  std::size_t first_copies[kMostCopiesOfBatch] = {};
  return environment.Counted<Call::kMemcpyBatchAsync>(&destinations[0], &sources[0], &sizes[0], count, &attributes, &first_copies[0],
                                                      std::size_t{1}, stream.stream);
}

}  // namespace

Status CopyTogether(Environment& environment, const Napi::CallbackInfo& info) {
  environment.Out(1, 0);
  Napi::Float64Array list;
  if (!ReadArray(info[0], &list) || list.ElementLength() % 3 != 0) return kInvalidArgument;
  StreamEntry* stream;
  Status status = FindUncapturedStream(environment, info[1], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  std::vector<Run> runs;
  const std::size_t pieces = list.ElementLength() / 3;
  // What is wrong with a piece concerns those before it as little as a copy that is refused does.
  Status refusal = kSuccess;
  for (std::size_t i = 0; i < pieces && refusal == kSuccess; ++i) {
    Run run{{}, {}, 0, i + 1};
    std::uint64_t destination, source;
    if (!ToInteger(list[3 * i], &destination) || !ToInteger(list[3 * i + 1], &source) || !ToInteger(list[3 * i + 2], &run.bytes)) {
      refusal = kInvalidArgument;
      break;
    }
    if (run.bytes == 0) continue;
    refusal = CheckRange(environment, destination, run.bytes, &run.to);
    if (refusal == kSuccess) refusal = CheckRange(environment, source, run.bytes, &run.from);
    if (refusal != kSuccess) break;
    Run* const last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && Continues(environment, last->to, last->bytes, run.to, run.bytes) &&
        Continues(environment, last->from, last->bytes, run.from, run.bytes)) {
      last->bytes += run.bytes;
      last->pieces = run.pieces;
    } else {
      runs.push_back(run);
    }
  }

  bool takes_batches = TakesBatches(environment, *stream);
  std::size_t next = 0;
  while (next < runs.size()) {
    std::size_t end = next;
    while (takes_batches && end < runs.size() && end - next < kMostCopiesOfBatch && IsForBatch(runs[end], *stream)) ++end;
    const bool is_batch = end - next >= 2;
    // A driver may have queued some of a batch that it refuses. It does no harm to queue these again.
    if (is_batch && QueueBatch(environment, &runs[next], end - next, *stream) != kSuccess) takes_batches = false;
    if (!is_batch || !takes_batches) {
      status = QueueCopy(environment, runs[next].to, runs[next].from, runs[next].bytes, *stream);
      if (status != kSuccess) return status;
      end = next + 1;
    }
    next = end;
    environment.Out(1, static_cast<double>(runs[next - 1].pieces));
  }
  return refusal;
}

}  // namespace cistern
