#include "addon/user_objects.h"

#include "addon/bindings.h"
#include "addon/captures.h"

namespace cistern {
namespace {

// An object of JavaScript, which numbers them.
class NumberedPart final : public GraphPart {
 public:
  NumberedPart(const Environment& environment, std::uint64_t its_number) : GraphPart(environment), number(its_number) {}

  // JavaScript takes its number.
  void End(Environment& environment) override { environment.ended_parts.Append(this); }

  const std::uint64_t number;
};

// Runs on a thread of the driver.
void PostEnd(void* data) {
  GraphPart* part = static_cast<GraphPart*>(data);
  const std::shared_ptr<EventLoop> loop = part->loop;
  {
    const std::lock_guard<std::mutex> lock(loop->mutex);
    if (!loop->closed) {
      loop->ended_parts.Append(part);
      loop->PostWake();
      return;
    }
  }
  part->EndAlone();
}

IntrusiveList<GraphPart> TakeEnded(EventLoop& loop) {
  const std::lock_guard<std::mutex> lock(loop.mutex);
  return loop.ended_parts.TakeAll();
}

}  // namespace

Status AttachToGraph(Environment& environment, Graph graph, GraphPart* part) {
  UserObject object = nullptr;
  Status status = environment.Counted<Call::kUserObjectCreate>(&object, static_cast<void*>(part), HostFunction{PostEnd}, 1u,
                                                               unsigned{kUserObjectNoDestructorSync});
  if (status != kSuccess) {
    PostEnd(part);
    return status;
  }
  status = environment.Counted<Call::kGraphRetainUserObject>(graph, object, 1u, unsigned{kUserObjectMove});
  if (status != kSuccess) environment.Counted<Call::kUserObjectRelease>(object, 1u);
  return status;
}

void EndGraphParts(Environment& environment) {
  IntrusiveList<GraphPart> ended = TakeEnded(*environment.loop);
  while (GraphPart* part = ended.TakeFirst()) part->End(environment);
}

void DeliverEndedParts(Environment& environment) {
  EndGraphParts(environment);
  if (!environment.ended_parts.empty() && !environment.on_ended_parts.IsEmpty()) environment.CallBack(environment.on_ended_parts);
}

void ForgetEndedParts(Environment& environment) {
  IntrusiveList<GraphPart> ended = TakeEnded(*environment.loop);
  while (GraphPart* part = ended.TakeFirst()) part->EndAlone();
  while (GraphPart* part = environment.ended_parts.TakeFirst()) part->EndAlone();
}

Status OnEndedParts(Environment& environment, const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction()) return kInvalidArgument;
  environment.on_ended_parts = Napi::Persistent(info[0].As<Napi::Function>());
  return kSuccess;
}

Status TakeEndedPart(Environment& environment) {
  EndGraphParts(environment);
  NumberedPart* const part = static_cast<NumberedPart*>(environment.ended_parts.TakeFirst());
  environment.Out(1, part == nullptr ? 0 : static_cast<double>(part->number));
  delete part;
  return kSuccess;
}

Status RetainInCapture(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number;
  StreamEntry* stream;
  Status status = FindStream(environment, info[0], &stream);
  if (status != kSuccess) return status;
  if (!ReadInteger(info[1], &number) || number == 0) return kInvalidArgument;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  Graph graph;
  status = CapturedGraphOf(environment, *stream, &graph);
  if (status != kSuccess) return status;
  if (graph == nullptr) return kErrorIllegalState;
  return AttachToGraph(environment, graph, new NumberedPart(environment, number));
}

Status RetainInGraph(Environment& environment, const Napi::CallbackInfo& info) {
  double handle;
  std::uint64_t number;
  if (!ReadNumber(info[0], &handle) || !ReadInteger(info[1], &number) || number == 0) return kInvalidArgument;
  GraphEntry* graph;
  const Status status = environment.graphs.Find(handle, &graph);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, graph->device);
  if (context.status() != kSuccess) return context.status();
  return AttachToGraph(environment, graph->graph, new NumberedPart(environment, number));
}

}  // namespace cistern
