/**
 * Runs modules one after another, and writes those that failed to a file, as JSON. A module ends when it has
 * been evaluated; what it left running ends with the process.
 */
import { writeFileSync } from 'node:fs';

const failures = {};
const [output, ...files] = process.argv.slice(2);
for (const file of files) {
  try {
    await import(file);
  } catch (error) {
    failures[file] = String(error?.stack ?? error);
  }
}
writeFileSync(output, JSON.stringify(failures));
process.exit();
