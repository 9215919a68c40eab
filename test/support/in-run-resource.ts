import { AsyncResource } from 'node:async_hooks';
import {
  type CachingMemoryResource,
  type DeallocationFence,
  type DevicePointer,
  PassThroughAdaptor,
  type Stream,
} from '../../src/index.js';

/** Makes every allocation in one run of a cache that lasts until this is disposed. */
export class InRunResource extends PassThroughAdaptor {
  readonly #run: AsyncResource;
  readonly #end: () => void;

  constructor(cache: CachingMemoryResource) {
    super(cache, {});
    let run: AsyncResource | undefined;
    let end = () => {};
    void cache.run(() => {
      run = new AsyncResource('run');
      return new Promise<void>((resolve) => {
        end = resolve;
      });
    });
    this.#run = run as AsyncResource;
    this.#end = end;
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    try {
      return this.#run.runInAsyncScope(() => this.upstream.allocate(bytes, stream, alignment));
    } catch (error) {
      throw this.passOn(error);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    if (this.isDisposed) this.assertLive('deallocate');
    this.upstream.deallocate(pointer, bytes, stream, fence);
  }

  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#end();
  }
}
