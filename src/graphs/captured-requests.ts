import type { DevicePointer } from '../memory-resource.js';
import { resized } from '../recording/typed-arrays.js';
import { none } from '../suballocation/blocks.js';

/** The least number of requests that there is room for. */
const leastCapacity = 64;

/** The columns of a request's row. */
const [streamPlace, epochPlace, blockPlace, freeStreamPlace, freeEpochPlace] = [0, 1, 2, 3, 4];
const rowLength = 5;

/**
 * The requests of a capture, as rows of two arrays. With an object for each, garbage collection would take as long
 * as serving them. All captures use the same arrays, because new ones cost a page fault for each 4 KiB.
 */
export class CapturedRequests {
  count = 0;
  operationCount = 0;
  /** The address and the size of each. */
  #places = new Float64Array(0);
  #numbers = new Int32Array(0);
  /** The number of a request, or ~number of one that is freed, in order. */
  #operations = new Int32Array(0);

  /** Begins a capture. @param expected the likely number of requests */
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

  /** @param epoch -1 if its memory must not be reused */
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

  /** The stream on which it was freed, or -1. */
  freeStreamOf(request: number): number {
    return this.#numbers[rowLength * request + freeStreamPlace] as number;
  }

  /** The epoch of that stream, or -1 if its memory must not be reused; only for freed requests. */
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
