/**
 * Records all resources of a program, if the environment variable `CISTERN_LOG_FILE` is set: the
 * program's direct allocations through a resource are recorded in a layer of that resource. Memory
 * that one resource takes from another is not, but pools record their growth.
 */
import { bytesSetting } from '../basics/checked-settings.js';
import { wrapDefaultResources } from '../buffers/current-resource.js';
import type { MemoryResource } from '../memory-resource.js';
import { noteLoaded } from '../package/file.js';
import { kindOf } from '../resource-kind.js';
import { setting } from '../settings.js';
import { observeProgramCalls } from './program-calls.js';
import { RecordingResourceAdaptor } from './recording-resource-adaptor.js';
import { environmentRecording } from './shared-recordings.js';

function unseenAdaptor(resource: MemoryResource): RecordingResourceAdaptor {
  // A server may have a limit for each request. They share one layer; otherwise a reader would see
  // only one request.
  const adaptor = recorded(resource, true);
  RecordingResourceAdaptor.labelThrough(resource, adaptor);
  return adaptor;
}

/**
 * An adaptor that records to the file that the environment variable names, in a layer named after the
 * resource.
 * @param sharesLayer whether other resources of the kind have the same layer
 */
function recorded(resource: MemoryResource, sharesLayer: boolean): RecordingResourceAdaptor {
  const { index } = resource.device;
  const kind = kindOf(resource);
  const layer = index === 0 ? kind : `${kind} (device ${index})`;
  return new RecordingResourceAdaptor(resource, { layer, stackSampleBytes: stackSampleBytes() }, sharesLayer);
}

/** Reads `CISTERN_LOG_STACKS`. */
function stackSampleBytes(): number {
  if (setting('CISTERN_LOG_STACKS') === 'all') return 0;
  const expected = 'all, or a size such as 16MiB';
  return bytesSetting('CISTERN_LOG_STACKS', expected) ?? Number.POSITIVE_INFINITY;
}

noteLoaded('recording');
if (setting('CISTERN_LOG_FILE') !== undefined) {
  wrapDefaultResources((resource) => recorded(resource, false));
  observeProgramCalls<RecordingResourceAdaptor>({
    isAdaptor: (resource) => resource instanceof RecordingResourceAdaptor,
    isOwn: (adaptor) => adaptor.recording === environmentRecording(),
    adaptorOf: unseenAdaptor,
    // Its layer stays in the recording, and later frees of live memory are recorded.
    disposed: () => {},
  });
}
