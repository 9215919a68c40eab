import { constants } from 'node:buffer';
import { UnsupportedError } from '../../basics/errors.js';
import { formatBytes } from '../../basics/units.js';
import { endView, viewFromHost } from '../../driver/memory/host-view.js';
import type { DevicePointer } from '../../memory-resource.js';

/** The most bytes of an array over foreign memory: 4 GiB before Node 22. */
const longestArray = constants.MAX_LENGTH;

/** A part of some memory as an array of the host. */
export interface HostArray {
  readonly array: ArrayBuffer;
  /** Where the array begins in the memory. */
  readonly byteOffset: number;
}

/**
 * The host's arrays over one piece of memory: one over all of it or, if that is longer than an
 * array can be, several over parts. The program may keep them longer than the memory.
 */
export class HostArrays {
  #known: { readonly array: WeakRef<ArrayBuffer>; readonly byteOffset: number }[] = [];

  /**
   * An array that contains the range of the memory.
   * @param pointer where the memory begins, and `memoryBytes` how long it is
   * @throws UnsupportedError if the range is longer than an array can be.
   */
  containing(byteOffset: number, bytes: number, pointer: DevicePointer, memoryBytes: number): HostArray {
    if (bytes > longestArray) {
      throw new UnsupportedError(
        `cannot view ${formatBytes(bytes)} from the host: an array has at most ${formatBytes(longestArray)} in this version of Node`,
      );
    }
    const known = this.#live().find(
      (each) => each.byteOffset <= byteOffset && byteOffset + bytes <= each.byteOffset + each.array.byteLength,
    );
    if (known !== undefined) return known;
    let start = 0;
    if (memoryBytes > longestArray) {
      // Arrays overlap by half, so that ranges near each other share one.
      start = byteOffset - (byteOffset % (longestArray / 2));
      if (byteOffset + bytes > start + longestArray) start = byteOffset;
    }
    const array = viewFromHost(pointer + start, Math.min(memoryBytes - start, longestArray));
    this.#known.push({ array: new WeakRef(array), byteOffset: start });
    return { array, byteOffset: start };
  }

  /** Detaches them all. */
  end(): void {
    const live = this.#live();
    this.#known = [];
    for (const { array } of live) endView(array);
  }

  /** Those that the program still has; one that it transferred has no bytes. */
  #live(): HostArray[] {
    const live: HostArray[] = [];
    this.#known = this.#known.filter(({ array, byteOffset }) => {
      const held = array.deref();
      if (held === undefined || held.byteLength === 0) return false;
      live.push({ array: held, byteOffset });
      return true;
    });
    return live;
  }
}
