export { observeStatistics, type StatisticsMeter, type StatisticsObserver } from './observe-statistics.js';
export { prometheusText } from './prometheus-text.js';
export { type PublishStatisticsOptions, publishStatistics } from './publish-statistics.js';
export { sampleStatistics } from './sample-statistics.js';
export { type ServeStatisticsOptions, type StatisticsServer, serveStatistics } from './serve-statistics.js';
export type {
  AccountSample,
  AdmissionSample,
  BufferSiteSample,
  DeviceSample,
  LayerSample,
  LibrarySample,
  PoolSample,
  ResourceSample,
  SpillSample,
  StatisticsSample,
} from './statistics-sample.js';

import { noteLoaded } from '../../package/file.js';
import { watchFromEnvironment } from './watch-from-environment.js';

noteLoaded('watch');
void watchFromEnvironment();
