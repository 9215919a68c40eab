import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const execute = promisify(execFile);

/**
 * Runs a file of `subjects/` in a fresh process, and returns what it reports.
 * @param {string} name
 * @param {object} parameters
 * @param {number} [timeout] in milliseconds
 * @returns {Promise<any>}
 */
export function runSubject(name, parameters, timeout) {
  const file = fileURLToPath(new URL(`../subjects/${name}.mjs`, import.meta.url));
  return runJson(process.execPath, [file, JSON.stringify(parameters)], timeout);
}

/**
 * Runs a program that writes JSON.
 * @param {string} program
 * @param {readonly string[]} programArguments
 * @param {number} [timeout] in milliseconds; 0, the default, is none
 * @returns {Promise<any>}
 */
export async function runJson(program, programArguments, timeout = 0) {
  const { stdout } = await execute(program, [...programArguments], { maxBuffer: 64 * 1024 * 1024, timeout, killSignal: 'SIGKILL' });
  return JSON.parse(stdout);
}

/** The parameters given to this subject. @returns {any} */
export function parameters() {
  return JSON.parse(process.argv[2] ?? '{}');
}

/** Hands this subject's results to `runSubject`. @param {object} results */
export function report(results) {
  process.stdout.write(JSON.stringify({ ...results, maximumResidentBytes: process.resourceUsage().maxRSS * 1024 }));
}
