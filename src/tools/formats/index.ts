export type { CsvSpelling } from '../../recording/recording-format.js';
export { type FileSink, type WriteWholeOptions, writeWhole } from '../files/write-whole.js';
export {
  type Conversion,
  type ConversionProgress,
  type ConvertedFormat,
  type ConvertLogOptions,
  convertLog,
} from './convert-log.js';
export { type EventColumns, EventKind } from './event-columns.js';
export type { RecordedLayer } from './layers.js';
export type { LogFormat, LogProgress, LogSource, ReadLogOptions } from './log-source.js';
export { type ReadRecordedRunOptions, readRecordedRun } from './read-recorded-run.js';
export type { RecordedPhase, RecordedRun, RecordingDamage, RunDescription, WrittenEvents } from './recorded-run.js';
export { encodeRecording } from './recording/convert-to-recording.js';
