import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { CudaMemoryResource, copyToHostSync, Device, PinnedHostMemoryResource, Stream, set } from '../../src/index.js';

/**
 * The functions of native/kernels. Addresses are numbers, as in cistern; each function returns a
 * `CUresult`.
 */
interface KernelAddon {
  load(ptx: string): number;
  hold(stream: number, word: number, value: number): number;
  fill(stream: number, data: number, words: number, value: number): number;
  countWrong(stream: number, data: number, words: number, value: number, wrong: number): number;
  store(word: number, value: number): number;
  askAboutCaptures(): [question: string, mode: string, status: number, capture: number, end: number][];
}

/** What the device answered to a call while a stream was captured, where the documentation is silent. */
export interface CaptureAnswer {
  readonly question: string;
  readonly mode: string;
  /** The `CUresult` of the call. */
  readonly status: number;
  /** The `CUstreamCaptureStatus` after it. */
  readonly capture: number;
  /** The `CUresult` of `cuStreamEndCapture`. */
  readonly end: number;
}

const notSupported = 801;
const wordBytes = 4;

/** The kernels of kernels.ptx on the first device. */
export class Kernels implements Disposable {
  readonly #addon: KernelAddon;
  readonly #pinned = new PinnedHostMemoryResource();
  readonly #device = new CudaMemoryResource();
  readonly #stream = new Stream({ nonBlocking: true });
  readonly #word: number;
  readonly #wrong: number;
  #holds = 0;

  private constructor(addon: KernelAddon) {
    this.#addon = addon;
    this.#word = this.#pinned.allocate(wordBytes, this.#stream);
    this.#wrong = this.#device.allocate(wordBytes, this.#stream);
    addon.store(this.#word, 0);
  }

  /** @returns the kernels, or the reason why they cannot be launched */
  static load(): Kernels | string {
    if (process.env['CISTERN_DEVICE'] !== 'cuda') return 'the device has no kernels';
    const path = process.env['CISTERN_KERNELS'];
    if (path === undefined) return 'CISTERN_KERNELS does not name the addon that launches kernels';
    // Makes cistern load the driver and the device's context.
    Device.get().synchronizeSync();
    const addon = createRequire(import.meta.url)(path) as KernelAddon;
    const status = addon.load(readFileSync(new URL('kernels.ptx', import.meta.url), 'utf8'));
    if (status === notSupported) return 'the driver has no modules';
    check(status, 'load the kernels');
    const kernels = new Kernels(addon);
    kernels.#warmUp();
    return kernels;
  }

  /** Makes the stream stand still until `release()`, without a host function. */
  hold(stream: Stream): void {
    this.#holds++;
    check(this.#addon.hold(stream.nativeHandle, this.#word, this.#holds), 'hold a stream');
  }

  /** Lets all held streams continue. */
  release(): void {
    check(this.#addon.store(this.#word, this.#holds), 'release the streams');
  }

  fill(stream: Stream, pointer: number, bytes: number, value: number): void {
    check(this.#addon.fill(stream.nativeHandle, pointer, bytes / wordBytes, value), 'fill memory');
  }

  /** Counts on the stream how many words of the memory are not `value`, starting at zero. */
  countWrong(stream: Stream, pointer: number, bytes: number, value: number): void {
    set(this.#wrong, 0, 1, wordBytes, stream);
    check(this.#addon.countWrong(stream.nativeHandle, pointer, bytes / wordBytes, value, this.#wrong), 'count wrong words');
  }

  /** The last count, after the stream has run. */
  wrongWords(stream: Stream): number {
    const count = new Uint32Array(1);
    copyToHostSync(count, this.#wrong, stream);
    return count[0] as number;
  }

  askAboutCaptures(): CaptureAnswer[] {
    return this.#addon.askAboutCaptures().map(([question, mode, status, capture, end]) => ({ question, mode, status, capture, end }));
  }

  [Symbol.dispose](): void {
    this.release();
    Device.get().synchronizeSync();
    this.#pinned.deallocate(this.#word, wordBytes, this.#stream);
    this.#device.deallocate(this.#wrong, wordBytes, this.#stream);
    this.#stream.dispose();
  }

  /**
   * The driver loads a kernel at its first launch, and may wait for that until the device is idle.
   */
  #warmUp(): void {
    this.hold(this.#stream);
    this.release();
    this.countWrong(this.#stream, this.#wrong, wordBytes, 0);
    this.fill(this.#stream, this.#wrong, wordBytes, 0);
    this.#stream.synchronizeSync();
  }
}

function check(status: number, operation: string): void {
  if (status !== 0) throw new Error(`cannot ${operation}: CUDA error ${status}`);
}
