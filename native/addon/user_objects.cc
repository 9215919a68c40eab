#include "addon/user_objects.h"

#include "addon/bindings.h"

namespace cistern {
namespace {

// Runs on a thread of the driver.
void PostNumber(void* data) {
  std::unique_ptr<NumberedObject> object(static_cast<NumberedObject*>(data));
  const std::shared_ptr<EventLoop> loop = object->loop;
  const std::lock_guard<std::mutex> lock(loop->mutex);
  if (loop->closed) return;
  loop->ended_objects.Append(object.release());
  loop->PostWake();
}

}  // namespace

Status AttachToGraph(Environment& environment, Graph graph, HostFunction destroy, void* object) {
  UserObject user_object = nullptr;
  Status status = environment.Counted<Call::kUserObjectCreate>(&user_object, object, destroy, 1u, unsigned{kUserObjectNoDestructorSync});
  if (status != kSuccess) {
    destroy(object);
    return status;
  }
  status = environment.Counted<Call::kGraphRetainUserObject>(graph, user_object, 1u, unsigned{kUserObjectMove});
  if (status != kSuccess) environment.Counted<Call::kUserObjectRelease>(user_object, 1u);
  return status;
}

void DeliverEndedObjects(Environment& environment) {
  if (environment.on_ended_objects.IsEmpty()) return;
  {
    const std::lock_guard<std::mutex> lock(environment.loop->mutex);
    if (environment.loop->ended_objects.empty()) return;
  }
  environment.CallBack(environment.on_ended_objects);
}

void ForgetEndedObjects(EventLoop& loop) {
  const std::lock_guard<std::mutex> lock(loop.mutex);
  while (NumberedObject* object = loop.ended_objects.TakeFirst()) delete object;
}

Status OnEndedObjects(Environment& environment, const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction()) return kInvalidArgument;
  environment.on_ended_objects = Napi::Persistent(info[0].As<Napi::Function>());
  return kSuccess;
}

Status TakeEndedObject(Environment& environment) {
  std::unique_ptr<NumberedObject> object;
  {
    const std::lock_guard<std::mutex> lock(environment.loop->mutex);
    object.reset(environment.loop->ended_objects.TakeFirst());
  }
  environment.Out(1, object == nullptr ? 0 : static_cast<double>(object->number));
  return kSuccess;
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
  auto object = std::make_unique<NumberedObject>();
  object->loop = environment.loop;
  object->number = number;
  return AttachToGraph(environment, graph->graph, PostNumber, object.release());
}

}  // namespace cistern
