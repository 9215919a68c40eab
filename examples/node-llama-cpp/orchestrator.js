// node-llama-cpp decides how much of a model fits, and refuses what does not, by what its MemoryOrchestrator says. This one
// says what is left of the limit of an AdmittingResourceAdaptor, and takes from it: so models, contexts and cistern's
// buffers share one limit.
import { Device, OutOfMemoryError, Stream } from 'cistern';
import { AdmittingResourceAdaptor } from 'cistern/serving';

/** Counts what somebody else allocates: its addresses have no memory. */
class CountedElsewhere {
  memoryKind = 'device';
  alignment = 256;
  #next = 2 ** 52;

  constructor(device) {
    this.device = device;
  }

  allocate(bytes) {
    const address = this.#next;
    this.#next += Math.ceil(bytes / 256) * 256;
    return address;
  }

  deallocate() {}
}

/** What node-llama-cpp listens to. */
class Relay {
  #listeners = new Set();

  createListener(listener) {
    this.#listeners.add(listener);
    return { dispose: () => this.#listeners.delete(listener) };
  }

  dispatchEvent() {
    for (const listener of this.#listeners) listener();
  }
}

export class SharedLimitOrchestrator {
  onMemoryReservationRelease = new Relay();
  onMemoryMarkingRelease = new Relay();
  /** Bytes of the limit that node-llama-cpp may use, or null. */
  memoryCap = null;
  /** Bytes of the device to leave alone. */
  padding = 0;
  /** Bytes of what is loaded, and of what is being loaded. */
  markedMemory = 0;
  reservedMemory = 0;
  #admission;
  #stream = new Stream();
  #readDevice;
  /** Those of whenFree: they are committed, and there to be used. */
  #grants = new Set();
  /** Reservations whose bytes nothing has taken over yet, the oldest first. */
  #reservations = new Set();

  /**
   * @param {{ shared: string, limitBytes: number, readDevice: () => object | Promise<object> }} options `shared` and `limitBytes` as in
   * the AdmittingResourceAdaptor of your buffers; `readDevice` returns what the device has: `{ free, total, unifiedSize }`
   */
  constructor({ shared, limitBytes, readDevice }) {
    this.#admission = new AdmittingResourceAdaptor(new CountedElsewhere(Device.get()), { limitBytes, shared });
    this.#readDevice = readDevice;
  }

  /** Takes the place of the orchestrator of a Llama, as `await getLlama()` returns it. */
  static install(llama, options) {
    const own = llama._vramOrchestrator;
    const orchestrator = new SharedLimitOrchestrator({ ...options, readDevice: () => own.getMemoryState() });
    llama._vramOrchestrator = orchestrator;
    return orchestrator;
  }

  /** Runs a function that loads `bytes`, such as `() => llama.loadModel(…)`, once so much of the limit is free. */
  async whenFree(bytes, load, options) {
    const grant = await this.#admission.reserve(bytes, options);
    this.#grants.add(grant);
    try {
      return await grant.run(load);
    } finally {
      this.#grants.delete(grant);
      grant.dispose();
    }
  }

  async getMemoryState() {
    const { free, total, unifiedSize } = await this.#readDevice();
    const { limitBytes, committedBytes } = this.#admission.statistics();
    const most = Math.min(limitBytes, this.memoryCap ?? limitBytes);
    let left = limitBytes - committedBytes;
    for (const grant of this.#grants) left += grant.bytes - grant.usedBytes;
    return {
      free: Math.max(0, Math.min(free - this.padding, left, most - this.markedMemory - this.reservedMemory)),
      total: Math.min(total, most),
      unifiedSize: Math.min(unifiedSize, most),
    };
  }

  /** While something is loaded. @throws OutOfMemoryError if the limit does not allow it; node-llama-cpp then does not load it. */
  reserveMemory(bytes) {
    const pieces = [this.#take(bytes)];
    const reservation = new Held(bytes, pieces, () => {
      this.#reservations.delete(reservation);
      this.reservedMemory -= bytesOf(pieces);
      this.#return(pieces);
      this.onMemoryReservationRelease.dispatchEvent();
    });
    this.reservedMemory += bytes;
    this.#reservations.add(reservation);
    return reservation;
  }

  /** As long as something is loaded. It takes over what was reserved for it, and never fails, since it is there already. */
  markAllocation(bytes) {
    const pieces = [];
    for (const reservation of this.#reservations) {
      while (reservation.pieces.length > 0 && bytesOf(pieces) + reservation.pieces[0].bytes <= bytes) {
        const piece = reservation.pieces.shift();
        this.reservedMemory -= piece.bytes;
        pieces.push(piece);
      }
    }
    const rest = bytes - bytesOf(pieces);
    try {
      if (rest > 0) pieces.push(this.#take(rest));
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
    }
    this.markedMemory += bytes;
    return new Held(bytes, pieces, () => {
      this.markedMemory -= bytes;
      this.#return(pieces);
      this.onMemoryMarkingRelease.dispatchEvent();
    });
  }

  #take(bytes) {
    return { bytes, pointer: this.#admission.allocate(bytes, this.#stream) };
  }

  #return(pieces) {
    for (const { pointer, bytes } of pieces.splice(0)) this.#admission.deallocate(pointer, bytes, this.#stream);
  }
}

/** What node-llama-cpp holds, and disposes. */
class Held {
  disposed = false;
  #whenReleased;

  constructor(size, pieces, whenReleased) {
    this.size = size;
    this.pieces = pieces;
    this.#whenReleased = whenReleased;
  }

  dispose() {
    if (this.disposed) return;
    this.disposed = true;
    this.#whenReleased();
  }

  [Symbol.dispose]() {
    this.dispose();
  }
}

function bytesOf(pieces) {
  return pieces.reduce((sum, { bytes }) => sum + bytes, 0);
}
