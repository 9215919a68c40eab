/** `cistern/processes`: memory for other processes. */
export { exportBuffer, importersDone } from './export-to-processes.js';
export { type HandleInJson, type OpenOptions, openBuffer } from './open-from-process.js';
