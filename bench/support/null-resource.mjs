/**
 * The null subject: a resource that does nothing, which shows the cost of the loop around it.
 * @implements {MemoryResource}
 * @typedef {import('../../src/index.js').MemoryResource} MemoryResource
 */
export class NullResource {
  /** @readonly */
  memoryKind = 'device';
  #next = 0x7f00_0000_0000;

  /** @param {import('../../src/index.js').Device} device */
  constructor(device) {
    this.device = device;
  }

  /**
   * @param {number} _bytes
   * @param {import('../../src/index.js').Stream} _stream
   * @returns {number}
   */
  allocate(_bytes, _stream) {
    // Three times 256, so that aligning to 512 has work to do, and aligned blocks do not overlap.
    this.#next += 768;
    return this.#next;
  }

  /**
   * @param {number} _pointer
   * @param {number} _bytes
   * @param {import('../../src/index.js').Stream} _stream
   */
  deallocate(_pointer, _bytes, _stream) {}

  /** @param {MemoryResource} other @returns {boolean} */
  isEqual(other) {
    return other === this;
  }

  [Symbol.dispose]() {}
}
