/**
 * Recordings by the path of their file, so that layers of a stack that name the same file share
 * one; and the recording of the environment variable `CISTERN_LOG_FILE`.
 */
import { resolve } from 'node:path';
import { setting } from '../settings.js';
import { liveRecordings, Recording } from './recording.js';

interface SharedRecording {
  readonly recording: Recording;
  users: number;
}

const shared = new Map<string, SharedRecording>();
let ofEnvironment: Recording | undefined;
let wasAsked = false;

/**
 * This thread's recording to a path, opened if necessary. Pair each call with
 * {@link releaseRecording}.
 * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if the file cannot be opened.
 */
export function acquireRecording(file: string): Recording {
  const path = resolve(file);
  const known = shared.get(path);
  if (known !== undefined && !known.recording.isDisposed) {
    known.users++;
    return known.recording;
  }
  const recording = new Recording({ file: path });
  shared.set(path, { recording, users: 1 });
  return recording;
}

/** Undoes {@link acquireRecording}. The last release disposes the recording. */
export function releaseRecording(recording: Recording): void {
  const known = shared.get(recording.file);
  if (known?.recording !== recording || --known.users > 0) return;
  shared.delete(recording.file);
  recording[Symbol.dispose]();
}

/**
 * The recording of `CISTERN_LOG_FILE`, or `undefined` if it is not set. It is opened at the first
 * call, and lasts as long as the process or worker. `%p` in the path stands for the process number;
 * a worker thread appends its own number.
 * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if the file cannot be opened.
 */
export function environmentRecording(): Recording | undefined {
  const file = setting('CISTERN_LOG_FILE');
  if (file === undefined) return undefined;
  if (ofEnvironment === undefined || ofEnvironment.isDisposed) {
    const path = file.replaceAll('%p', String(process.pid));
    const { isMainThread, threadId } = process.getBuiltinModule('node:worker_threads');
    try {
      ofEnvironment = acquireRecording(isMainThread ? path : `${path}.${threadId}`);
    } catch (error) {
      if (error instanceof Error) error.message = `CISTERN_LOG_FILE: ${error.message}`;
      throw error;
    }
  }
  return ofEnvironment;
}

/**
 * Whether there is any recording. The first call opens that of the environment variable.
 */
export function isRecording(): boolean {
  if (liveRecordings().length > 0) return true;
  if (wasAsked) return false;
  environmentRecording();
  wasAsked = true;
  return liveRecordings().length > 0;
}
