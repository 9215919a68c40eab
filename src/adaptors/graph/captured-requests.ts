import { resized } from '../../basics/typed-arrays.js';
import type { DevicePointer } from '../../memory-resource.js';
import { none } from '../../suballocation/blocks.js';

/** There is room for so many requests at least. */
const leastCapacity = 64;

/** A request's numbers: the places of each in a row. */
const [streamPlace, epochPlace, blockPlace, freeStreamPlace, freeEpochPlace] = [0, 1, 2, 3, 4];
const rowLength = 5;

/**
 * The requests of a capture, as rows of two arrays: with an object for each, collecting them would take as long as
 * serving them. One capture after the other uses the same arrays, since new ones cost a page fault for each 4 KiB.
 */
export class CapturedRequests {
  count = 0;
  operationCount = 0;
  /** The address and the size of each. */
  #places = new Float64Array(0);
  #numbers = new Int32Array(0);
  /** The number of a request, or ~number of one that is freed, in order. */
  #operations = new Int32Array(0);

  /** A capture begins. @param expected so many requests are likely */
  begin(expected: number): void {
    this.count = 0;
    this.operationCount = 0;
    if (2 * expected > this.#places.length) this.#resize(expected);
  }

  /** Returns its number. */
  add(address: DevicePointer, bytes: number, stream: number, epoch: number, block: number): number {
    const request = this.count++;
    if (2 * request === this.#places.length) this.#resize(Math.max(2 * request, leastCapacity));
    this.#places[2 * request] = address;
    this.#places[2 * request + 1] = bytes;
    const numbers = this.#numbers;
    const row = rowLength * request;
    numbers[row + streamPlace] = stream;
    numbers[row + epochPlace] = epoch;
    numbers[row + blockPlace] = block;
    numbers[row + freeStreamPlace] = none;
    this.#operations[this.operationCount++] = request;
    return request;
  }

  /** @param epoch -1 if nobody may have its memory */
  free(request: number, stream: number, epoch: number): void {
    const numbers = this.#numbers;
    numbers[rowLength * request + freeStreamPlace] = stream;
    numbers[rowLength * request + freeEpochPlace] = epoch;
    this.#operations[this.operationCount++] = ~request;
  }

  addressOf(request: number): DevicePointer {
    return this.#places[2 * request] as number;
  }

  bytesOf(request: number): number {
    return this.#places[2 * request + 1] as number;
  }

  /** The stream that requested it. */
  streamOf(request: number): number {
    return this.#numbers[rowLength * request + streamPlace] as number;
  }

  /** The epoch of that stream. */
  epochOf(request: number): number {
    return this.#numbers[rowLength * request + epochPlace] as number;
  }

  /** The block of the free memory that it was cut from, or -1 if it has its place in a plan. */
  blockOf(request: number): number {
    return this.#numbers[rowLength * request + blockPlace] as number;
  }

  /** Where it was freed, or -1. */
  freeStreamOf(request: number): number {
    return this.#numbers[rowLength * request + freeStreamPlace] as number;
  }

  /** In which epoch of that stream, or -1 if nobody may have its memory; only of what was freed. */
  freeEpochOf(request: number): number {
    return this.#numbers[rowLength * request + freeEpochPlace] as number;
  }

  /** The number of a request, or ~number of one that is freed: the i-th of both. */
  operation(i: number): number {
    return this.#operations[i] as number;
  }

  #resize(capacity: number): void {
    this.#places = resized(this.#places, 2 * capacity);
    this.#numbers = resized(this.#numbers, rowLength * capacity);
    // Each is freed at most once.
    this.#operations = resized(this.#operations, 2 * capacity);
  }
}
