// Captures: cuStreamBeginCapture, cuStreamEndCapture, and what asks about them.
#include <algorithm>
#include <utility>

#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/stream.h"

namespace cistern::strict::calls {
namespace {

Status FindForQuestion(Stream stream, StreamRef* state) {
  const Status status = FindStream(stream, state, false);
  return status == kSuccess ? CheckLegacy(**state) : status;
}

int StatusOf(const StreamState& stream) {
  if (stream.capture == nullptr) return kCaptureNone;
  return stream.capture->graph != nullptr ? kCaptureActive : kCaptureInvalidated;
}

}  // namespace

Status ThreadExchangeStreamCaptureMode(int* mode) {
  STRICT_DRIVER_ENTER("cuThreadExchangeStreamCaptureMode", kInit);
  if (mode == nullptr || *mode < kCaptureModeGlobal || *mode > kCaptureModeRelaxed) return kErrorInvalidValue;
  std::swap(*mode, thread.capture_mode);
  return kSuccess;
}

Status StreamBeginCapture(Stream stream, int mode) {
  STRICT_DRIVER_ENTER("cuStreamBeginCapture", kContext);
  StreamRef state;
  const Status status = FindStream(stream, &state, false);
  return status == kSuccess ? BeginCapture(state, mode) : status;
}

Status StreamEndCapture(Stream stream, Graph* graph) {
  STRICT_DRIVER_ENTER("cuStreamEndCapture", kContext);
  StreamRef state;
  const Status status = FindStream(stream, &state, false);
  if (status != kSuccess) return status;
  return graph == nullptr ? Status{kErrorInvalidValue} : EndCapture(state, graph);
}

Status StreamIsCapturing(Stream stream, int* status) {
  STRICT_DRIVER_ENTER("cuStreamIsCapturing", kContext);
  StreamRef state;
  const Status found = FindForQuestion(stream, &state);
  if (found != kSuccess) return found;
  if (status == nullptr) return kErrorInvalidValue;
  *status = StatusOf(*state);
  return kSuccess;
}

Status StreamGetCaptureInfo10010(Stream stream, int* status, std::uint64_t* id) {
  return StreamGetCaptureInfo(stream, status, id, nullptr, nullptr, nullptr, nullptr);
}

Status StreamGetCaptureInfo11030(Stream stream, int* status, std::uint64_t* id, Graph* graph, const GraphNode** dependencies,
                                 std::size_t* dependency_count) {
  return StreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, dependency_count);
}

Status StreamGetCaptureInfo(Stream stream, int* status, std::uint64_t* id, Graph* graph, const GraphNode** dependencies,
                            const EdgeData** edges, std::size_t* dependency_count) {
  STRICT_DRIVER_ENTER("cuStreamGetCaptureInfo", kContext);
  StreamRef state;
  const Status found = FindForQuestion(stream, &state);
  if (found != kSuccess) return found;
  if (status == nullptr || (edges != nullptr && dependencies == nullptr)) return kErrorInvalidValue;
  *status = StatusOf(*state);
  if (*status != kCaptureActive) return kSuccess;
  if (dependencies != nullptr && edges == nullptr && !state->edges.empty()) return kErrorLossyQuery;
  const CaptureState& capture = *state->capture;
  state->frontier_handles.clear();
  state->frontier_edges.clear();
  for (const std::size_t index : state->frontier) {
    state->frontier_handles.push_back(capture.graph->nodes[index]->handle);
    const auto edge = state->edges.find(index);
    state->frontier_edges.push_back(edge == state->edges.end() ? EdgeData{} : edge->second);
  }
  if (id != nullptr) *id = capture.id;
  if (graph != nullptr) *graph = capture.graph->handle;
  if (dependencies != nullptr) *dependencies = state->frontier_handles.data();
  if (edges != nullptr) *edges = state->edges.empty() ? nullptr : state->frontier_edges.data();
  if (dependency_count != nullptr) *dependency_count = state->frontier_handles.size();
  return kSuccess;
}

Status StreamUpdateCaptureDependencies(Stream stream, GraphNode* dependencies, std::size_t count, unsigned flags) {
  STRICT_DRIVER_ENTER("cuStreamUpdateCaptureDependencies", kContext);
  StreamRef state;
  Status status = FindStream(stream, &state, false);
  if (status == kSuccess) status = CheckWork(*state);
  if (status != kSuccess) return status;
  if (state->capture == nullptr) return kErrorIllegalState;
  if (flags > kSetDependencies || (count > 0 && dependencies == nullptr)) return kErrorInvalidValue;
  std::vector<std::size_t> nodes;
  for (std::size_t i = 0; i < count; ++i) {
    const NodeRef node = driver.nodes.Find(dependencies[i]);
    if (node == nullptr || node->graph != state->capture->graph.get()) return kErrorInvalidValue;
    nodes.push_back(node->index);
  }
  UpdateFrontier(*state, nodes, flags == kSetDependencies);
  return kSuccess;
}

Status StreamUpdateCaptureDependencies12030(Stream stream, GraphNode* dependencies, const EdgeData* edges, std::size_t count,
                                            unsigned flags) {
  const Status status = StreamUpdateCaptureDependencies(stream, dependencies, count, flags);
  if (status != kSuccess || edges == nullptr) return status;
  STRICT_DRIVER_ENTER("cuStreamUpdateCaptureDependencies", kContext);
  StreamRef state;
  const Status found = FindStream(stream, &state, false);
  if (found != kSuccess) return found;
  for (std::size_t i = 0; i < count; ++i) {
    const bool has_data = edges[i].from_port != 0 || edges[i].to_port != 0 || edges[i].type != 0;
    if (has_data) state->edges[driver.nodes.Find(dependencies[i])->index] = edges[i];
  }
  return kSuccess;
}

}  // namespace cistern::strict::calls
