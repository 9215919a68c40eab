import { runJson } from './processes.mjs';

/** Arguments of the program, after the command: words first, then options. @typedef {Record<string, string | number>} Options */

/**
 * The other allocators, in a program that takes the commands of `bench/README.md`. It is built
 * elsewhere, and `CISTERN_PEERS` names it.
 */
export class Peers {
  #program = process.env['CISTERN_PEERS'] || undefined;

  get isAvailable() {
    return this.#program !== undefined;
  }

  /**
   * @param {'replay' | 'capacity' | 'holes' | 'live' | 'workers'} command
   * @param {string} subject
   * @param {string | number} target the path of a trace, or a number of blocks
   * @param {Options} options
   * @param {number} timeout in milliseconds
   * @returns {Promise<any>} what it reports
   */
  async run(command, subject, target, options, timeout) {
    if (this.#program === undefined) throw new Error('CISTERN_PEERS names no program');
    const named = Object.entries(options).flatMap(([name, value]) => [`--${name}`, String(value)]);
    return await runJson(this.#program, [command, subject, String(target), ...named], timeout);
  }
}
