/** Requests to serve, cut out of a log. */

/**
 * @typedef {object} Request
 * @property {{ slot: number, bytes: number, allocates: boolean }[]} calls
 * @property {number[]} needs for each call, the most bytes that are live at once from its end on
 * @property {number} need the most bytes that are live at once
 */

/** What an allocation takes of a limit. @param {number} size */
export function aligned(size) {
  return Math.ceil(size / 256) * 256;
}

/**
 * Cuts a log into parts of as many events. Frees of what another part allocated are left out, and what a part
 * does not free is freed at its end.
 * @param {import('../../src/tools/replay/index.js').AllocationLog} log
 * @param {number} count
 * @param {number} scale what all sizes are divided by
 * @returns {Request[]}
 */
export function requestsOf(log, count, scale) {
  const parts = Array.from({ length: count }, () => /** @type {Request} */ ({ calls: [], needs: [], need: 0 }));
  const each = Math.ceil(log.eventCount / count);
  const sizes = new Map();
  let index = 0;
  let live = 0;
  let part = -1;
  for (const chunk of log.chunks) {
    for (let row = 0; row < chunk.count; row++, index++) {
      if (Math.floor(index / each) !== part) {
        part = Math.floor(index / each);
        sizes.clear();
        live = 0;
      }
      const request = /** @type {Request} */ (parts[part]);
      const operation = /** @type {number} */ (chunk.operations[row]);
      const slot = operation >= 0 ? operation : ~operation;
      const size = operation >= 0 ? Math.ceil(/** @type {number} */ (chunk.sizes[row]) / scale) : sizes.get(slot);
      if (size === undefined || size === 0) continue;
      if (operation >= 0) sizes.set(slot, size);
      else sizes.delete(slot);
      request.calls.push({ slot, bytes: size, allocates: operation >= 0 });
      live += operation >= 0 ? aligned(size) : -aligned(size);
      request.need = Math.max(request.need, live);
      request.needs.push(live);
    }
  }
  for (const { needs } of parts) {
    for (let at = needs.length - 2; at >= 0; at--)
      needs[at] = Math.max(/** @type {number} */ (needs[at]), /** @type {number} */ (needs[at + 1]));
  }
  return parts.filter(({ calls }) => calls.length > 0);
}
