/**
 * Writes a file when memory runs out, if `CISTERN_DUMP_ON_OUT_OF_MEMORY` names a folder: a small recording of
 * one moment, which `cistern report` opens. It has the blocks of the pools, the live buffers with their accounts and labels, the
 * failed allocation with its stack, and the summary as a note.
 */
import { closeSync } from 'node:fs';
import { callStack } from '../../basics/call-stack.js';
import { type OutOfMemoryError, reasonOf } from '../../basics/errors.js';
import { operatingSystemThreadId } from '../../driver/workers/thread.js';
import { createFile, newPath } from '../../files/new-file.js';
import type { MemoryResource } from '../../memory-resource.js';
import { observeFailures } from '../../observing/failed-allocations.js';
import { constructUnseen } from '../../observing/interceptor.js';
import { noteLoaded } from '../../package/file.js';
import { Recording } from '../../recording/recording.js';
import { RecordKind } from '../../recording/recording-format.js';
import { RecordingResourceAdaptor } from '../../recording/recording-resource-adaptor.js';
import { setting } from '../../settings.js';
import { AccountingResourceAdaptor } from '../accounts/accounting-resource-adaptor.js';
import { memoryOfBuffers, memorySummary } from './memory-summary.js';

/** A program that repeatedly runs out of memory must not fill the disk. */
const mostDumps = 10;
let dumps = 0;

function dump(folder: string, error: OutOfMemoryError, resource: MemoryResource): void {
  if (dumps >= mostDumps) return;
  const file = newPath(folder, `out-of-memory-${process.pid}-${operatingSystemThreadId()}-${++dumps}-`, '.cistern');
  try {
    writeDump(file, error, resource);
    process.emitWarning(`memory ran out; to see what it was used for, run: cistern report ${file}`, { code: 'CISTERN_OUT_OF_MEMORY' });
  } catch (failure) {
    const reason = reasonOf(failure);
    process.emitWarning(`memory ran out, and ${file} could not be written: ${reason}`, { code: 'CISTERN_OUT_OF_MEMORY' });
  }
}

function writeDump(file: string, error: OutOfMemoryError, resource: MemoryResource): void {
  // The folder may be one that others can write to.
  closeSync(createFile(file, 'write', 0o666));
  const recording = new Recording({ file });
  try {
    const { layerIndex: layer } = constructUnseen(
      () => new RecordingResourceAdaptor(resource, { recording }),
      () => undefined,
    );
    recording.note(`${error.message}\n\n${memorySummary(resource)}`);
    for (const { pointer, bytes, label, createdAt, resource: owner } of memoryOfBuffers(resource)) {
      const account = AccountingResourceAdaptor.accountThrough(owner, pointer);
      recording.appendHeld(recording.headOf(layer, undefined) | RecordKind.allocate, pointer, bytes, account, createdAt);
      if (label !== undefined) recording.label(layer, pointer, label);
    }
    recording.appendWithStack(recording.headOf(layer, undefined) | RecordKind.failure, 0, error.requestedBytes, callStack(dump));
  } finally {
    recording.dispose();
  }
}

noteLoaded('serving');
const folder = setting('CISTERN_DUMP_ON_OUT_OF_MEMORY');
if (folder !== undefined) observeFailures((error, resource) => dump(folder, error, resource));
