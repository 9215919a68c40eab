import { doubled } from '../../basics/typed-arrays.js';
import type { DevicePointer } from '../../memory-resource.js';
import { none } from '../../suballocation/blocks.js';

/** The requests of a capture, in columns: with an object for each, collecting them would take as long as serving them. */
export class CapturedRequests {
  count = 0;
  addresses: Float64Array;
  bytes: Float64Array;
  /** The stream that requested it, and the epoch of that. */
  streams: Int32Array;
  epochs: Int32Array;
  /** The block of the free memory that it was cut from, or -1 if it has its place in a plan. */
  blocks: Int32Array;
  /** Where it was freed, or -1; and in which epoch, or -1 if nobody may have its memory. */
  freeStreams: Int32Array;
  freeEpochs: Int32Array;
  /** The number of a request, or ~number of one that is freed, in order. */
  operations: Int32Array;
  operationCount = 0;

  /** @param expected so many are likely */
  constructor(expected: number) {
    const capacity = Math.max(expected, 64);
    this.addresses = new Float64Array(capacity);
    this.bytes = new Float64Array(capacity);
    this.streams = new Int32Array(capacity);
    this.epochs = new Int32Array(capacity);
    this.blocks = new Int32Array(capacity);
    this.freeStreams = new Int32Array(capacity);
    this.freeEpochs = new Int32Array(capacity);
    // Each is freed at most once.
    this.operations = new Int32Array(2 * capacity);
  }

  /** Returns its number. */
  add(address: DevicePointer, bytes: number, stream: number, epoch: number, block: number): number {
    const request = this.count++;
    if (request === this.addresses.length) this.#grow();
    this.addresses[request] = address;
    this.bytes[request] = bytes;
    this.streams[request] = stream;
    this.epochs[request] = epoch;
    this.blocks[request] = block;
    this.freeStreams[request] = none;
    this.operations[this.operationCount++] = request;
    return request;
  }

  /** @param epoch -1 if nobody may have its memory */
  free(request: number, stream: number, epoch: number): void {
    this.freeStreams[request] = stream;
    this.freeEpochs[request] = epoch;
    this.operations[this.operationCount++] = ~request;
  }

  #grow(): void {
    this.addresses = doubled(this.addresses);
    this.bytes = doubled(this.bytes);
    this.streams = doubled(this.streams);
    this.epochs = doubled(this.epochs);
    this.blocks = doubled(this.blocks);
    this.freeStreams = doubled(this.freeStreams);
    this.freeEpochs = doubled(this.freeEpochs);
    this.operations = doubled(this.operations);
  }
}
