// Captures and graphs are not modelled: no stream is ever captured, and the rest is not supported.
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/stream.h"

namespace cistern::strict::calls {

Status StreamIsCapturing(Stream stream, int* status) {
  STRICT_DRIVER_ENTER("cuStreamIsCapturing", kContext);
  StreamRef state;
  const Status found = FindStream(stream, &state, false);
  if (found != kSuccess) return found;
  if (status == nullptr) return kErrorInvalidValue;
  *status = kCaptureNone;
  return kSuccess;
}

Status StreamGetCaptureInfo(Stream stream, int* status, std::uint64_t*, Graph*, const GraphNode**, std::size_t*) {
  return StreamIsCapturing(stream, status);
}

Status StreamBeginCapture(Stream, int) { return kErrorNotSupported; }
Status StreamEndCapture(Stream, Graph*) { return kErrorNotSupported; }
Status GraphDestroy(Graph) { return kErrorNotSupported; }
Status GraphGetNodes(Graph, GraphNode*, std::size_t*) { return kErrorNotSupported; }
Status GraphNodeGetType(GraphNode, int*) { return kErrorNotSupported; }
Status GraphDebugDotPrint(Graph, const char*, unsigned) { return kErrorNotSupported; }
Status GraphInstantiateWithFlags(GraphExec*, Graph, unsigned long long) { return kErrorNotSupported; }
Status GraphExecDestroy(GraphExec) { return kErrorNotSupported; }
Status GraphExecUpdate(GraphExec, Graph, GraphUpdateResult*) { return kErrorNotSupported; }
Status GraphUpload(GraphExec, Stream) { return kErrorNotSupported; }
Status GraphLaunch(GraphExec, Stream) { return kErrorNotSupported; }
Status UserObjectCreate(UserObject*, void*, HostFunction, unsigned, unsigned) { return kErrorNotSupported; }
Status UserObjectRelease(UserObject, unsigned) { return kErrorNotSupported; }
Status GraphRetainUserObject(Graph, UserObject, unsigned, unsigned) { return kErrorNotSupported; }

}  // namespace cistern::strict::calls
