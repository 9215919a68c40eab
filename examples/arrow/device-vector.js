// Columns of Apache Arrow on a device. A column is made of a few buffers: values, offsets, and a bitmap
// that says which values are not null; a dictionary is a column of its own. Each becomes a DeviceBuffer.
import { Data, Vector } from 'apache-arrow';
import { DeviceBuffer } from 'cistern';

/** The names of Arrow's buffers. */
const parts = { values: 'data', valueOffsets: 'valueOffsets', nullBitmap: 'nullBitmap', typeIds: 'typeIds' };

/** A column on a device. Free it with `dispose`. */
export class DeviceVector {
  #chunks;

  /** Copies a column to the device, in the order of the options' stream. */
  constructor(vector, options) {
    this.#chunks = vector.data.map((data) => new DeviceData(data, options));
  }

  /** The bytes on the device. */
  get byteLength() {
    return this.#chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0);
  }

  /** A copy of the column on the host. Does not block the event loop. */
  async toHost() {
    return new Vector(await Promise.all(this.#chunks.map((chunk) => chunk.toHost())));
  }

  dispose() {
    for (const chunk of this.#chunks) chunk.dispose();
  }
}

/** One chunk of a column, with its children and its dictionary. */
class DeviceData {
  #data;
  #buffers = {};
  #children;
  #dictionary;

  constructor(data, options) {
    // Only what describes the data stays on the host.
    const { type, length, offset, nullCount } = data;
    this.#data = { type, length, offset, nullCount };
    for (const [name, option] of Object.entries(parts)) {
      const part = data[name];
      if (part === undefined || part === null || part.byteLength === 0) continue;
      this.#buffers[option] = { array: part.constructor, buffer: new DeviceBuffer(part, options) };
    }
    this.#children = data.children.map((child) => new DeviceData(child, options));
    this.#dictionary = data.dictionary === undefined ? undefined : new DeviceVector(data.dictionary, options);
  }

  get byteLength() {
    const own = Object.values(this.#buffers).reduce((sum, { buffer }) => sum + buffer.byteLength, 0);
    return own + this.#children.reduce((sum, child) => sum + child.byteLength, this.#dictionary?.byteLength ?? 0);
  }

  async toHost() {
    const { type, length, offset, nullCount } = this.#data;
    const buffers = [];
    for (const { array, buffer } of Object.values(this.#buffers)) {
      const bytes = await buffer.toHost();
      buffers.push(new array(bytes.buffer, bytes.byteOffset, bytes.byteLength / array.BYTES_PER_ELEMENT));
    }
    const named = Object.fromEntries(Object.keys(this.#buffers).map((option, i) => [option, buffers[i]]));
    const children = await Promise.all(this.#children.map((child) => child.toHost()));
    const dictionary = await this.#dictionary?.toHost();
    const { valueOffsets, data, nullBitmap, typeIds } = named;
    return new Data(type, offset, length, nullCount, [valueOffsets, data, nullBitmap, typeIds], children, dictionary);
  }

  dispose() {
    for (const { buffer } of Object.values(this.#buffers)) buffer.dispose();
    for (const child of this.#children) child.dispose();
    this.#dictionary?.dispose();
  }
}
