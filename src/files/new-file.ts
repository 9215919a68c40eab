import { openSync } from 'node:fs';
import { join } from 'node:path';

/**
 * The path of a file that does not exist and whose name nobody can guess, so that nobody who may write in the
 * folder can have put a link there.
 */
export function newPath(folder: string, beginning: string, ending = ''): string {
  // Only here: loading it would make `import 'cistern'` slower.
  const { randomUUID } = process.getBuiltinModule('node:crypto');
  return join(folder, `${beginning}${randomUUID()}${ending}`);
}

/**
 * Creates a file. Whatever is there already, even a link that leads nowhere, is an error and stays as it is.
 * @returns the descriptor
 * @throws the system's error, such as `EEXIST`
 */
export function createFile(path: string, access: 'write' | 'read and write', mode: number): number {
  return openSync(path, access === 'write' ? 'wx' : 'wx+', mode);
}
