/** `cistern/recording`: recordings of a program's memory. */
import type { ResourceKind } from '../resource-kind.js';
import { recordingKind } from './recording-resource-adaptor.js';

export { annotate } from './annotate.js';
export { Recording, type RecordingOptions } from './recording.js';
export { RecordingResourceAdaptor, type RecordingResourceAdaptorOptions } from './recording-resource-adaptor.js';

/** The kinds of resources of this entry. A specification loads them by itself, unless the program is bundled: see {@link addResourceKinds}. */
export const resourceKinds: readonly ResourceKind[] = [recordingKind];

import './record-everything.js';
