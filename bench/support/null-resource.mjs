/**
 * The null subject: a resource that does nothing, which shows the cost of the loop around it.
 * @implements {MemoryResource}
 * @typedef {import('../../src/index.js').MemoryResource} MemoryResource
 */
export class NullResource {
  /** @readonly */
  memoryKind = 'device';
  #next = 0x7f00_0000_0000;
  #step;

  /**
   * Three times 256, so that aligning to 512 has work to do, and aligned blocks do not overlap.
   * @param {import('../../src/index.js').Device} device
   * @param {number} [step] from an address to the next one: at least the size, for whoever checks that
   */
  constructor(device, step = 768) {
    this.device = device;
    this.#step = step;
  }

  /**
   * @param {number} _bytes
   * @param {import('../../src/index.js').Stream} _stream
   * @returns {number}
   */
  allocate(_bytes, _stream) {
    this.#next += this.#step;
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
