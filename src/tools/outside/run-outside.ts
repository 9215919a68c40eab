/**
 * Runs a program such that everything that it and its children allocate from CUDA is recorded and limited, whatever
 * library allocates. The program is not changed: a library that is preloaded stands in front of the driver
 * (`native/interpose/`).
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { UnsupportedError } from '../../basics/errors.js';
import { environmentWith, setting } from '../../settings.js';
import { createControlFile, type OutsideEnd, type OutsideOptions, readControlFile } from './control-file.js';
import { runLibrary } from './run-library.js';

/** A run, once its program may start. */
export interface OutsideRun {
  /** The environment of the program. */
  readonly environment: NodeJS.ProcessEnv;
  /** Ends the run. */
  end(): OutsideEnd;
}

/**
 * Prepares a run.
 * @throws UnsupportedError if programs cannot be recorded from outside here.
 */
export function prepareOutsideRun(options: OutsideOptions): OutsideRun {
  if (process.platform !== 'linux') throw unsupported(`needs Linux, got ${process.platform}`);
  const library = runLibrary();
  if (library === undefined)
    throw unsupported('needs the library libcistern-run.so, which was not found beside the addon; it is built for glibc only');
  // The loader reads both as separators.
  if (/[ :]/.test(library)) throw unsupported(`needs a path without spaces and colons for its library, got ${library}`);
  const folder = mkdtempSync(join(tmpdir(), 'cistern-run-'));
  const control = join(folder, 'control');
  try {
    createControlFile(control, options);
  } catch (error) {
    rmSync(folder, { recursive: true, force: true });
    throw error;
  }
  const others = setting('LD_PRELOAD');
  return {
    environment: environmentWith({ LD_PRELOAD: others === undefined ? library : `${library}:${others}`, CISTERN_RUN: control }),
    end() {
      const ended = readControlFile(control);
      rmSync(folder, { recursive: true, force: true });
      return ended;
    },
  };
}

function unsupported(reason: string): UnsupportedError {
  return new UnsupportedError(`cistern run ${reason}`);
}
