import { isNotPermitted } from '../../src/driver/status.js';
import { type CachingMemoryResource, DeviceBuffer, type MemoryResource } from '../../src/index.js';
import type { DriverModel } from './driver-model.js';
import { compareBytes, type Inspector } from './inspector.js';
import type { Command } from './program.js';
import type { Scope, StreamSlot, Token } from './program-parts.js';
import { Violation } from './violation.js';

/** What the buffer steps need of their program. */
export interface BufferProgram {
  readonly model: DriverModel;
  readonly inspector: Inspector;
  readonly resource: MemoryResource;
  stream(number: number): StreamSlot;
  /** The current end of a stream's queue. */
  token(slot: StreamSlot): Token;
  /** Makes a stream wait for places on others. */
  order(slot: StreamSlot, before: readonly Token[], by?: 'known'): void;
  /**
   * Calls a function that may run out of memory, or that must not wait here. Returns whether it
   * succeeded.
   */
  attempt(action: () => void, mayBeRefused: (code: string) => boolean): boolean;
  innermostScope(): Scope | undefined;
  /** The number of allocations made before. */
  serial(): number;
}

/** A buffer, and its expected bytes. */
interface ModelBuffer {
  readonly buffer: DeviceBuffer;
  /** The expected bytes, and which of them were written. */
  bytes: Uint8Array;
  known: Uint8Array;
  slot: StreamSlot;
  last: Token;
  scope: Scope | undefined;
  serial: number;
  /** Whether its memory has moved since it was made. */
  hasMoved: boolean;
  /** How often it was changed. */
  version: number;
  /** How many steps are within a call of it, which keeps it reachable. */
  steps: number;
  /** Whether a rewind is freeing its memory. */
  isRewound?: boolean;
}

const disposed = 'ERR_CISTERN_DISPOSED';
const maximumBuffers = 6;
const maximumBytes = 60_000;

type BufferCommand = Extract<Command, { do: 'buffer-step' }>;

/** The buffers of a program, each with a model of its contents. */
export class BufferSteps {
  readonly #program: BufferProgram;
  readonly #buffers: ModelBuffer[] = [];
  readonly #reads: Promise<void>[] = [];
  #written = 0;

  constructor(program: BufferProgram) {
    this.#program = program;
  }

  /** Reads in progress; they reject with a violation. */
  get reads(): readonly Promise<void>[] {
    return this.#reads;
  }

  create({ stream, bytes, spare, hasData }: Extract<Command, { do: 'buffer' }>): void {
    if (this.#buffers.length >= maximumBuffers) return;
    const program = this.#program;
    const slot = program.stream(stream);
    const data = this.#data(bytes);
    const contents = data.slice();
    const scope = program.innermostScope();
    const serial = program.serial();
    let buffer: DeviceBuffer | undefined;
    const make = () => {
      const options = { resource: program.resource, stream: slot.stream, capacityBytes: bytes + spare };
      buffer = new DeviceBuffer(hasData ? data : bytes, options);
    };
    // A host function may have ended the stream.
    if (!program.attempt(make, (code) => code === disposed && slot.last !== undefined) || buffer === undefined) return;
    // It has been read when the call returns.
    data.fill(0);
    const last = program.token(slot);
    const known = new Uint8Array(bytes).fill(hasData ? 1 : 0);
    this.#buffers.push({ buffer, bytes: contents, known, slot, last, scope, serial, hasMoved: false, version: 0, steps: 0 });
  }

  step(command: BufferCommand): void {
    // A buffer that is being disposed must not be used.
    const usable = this.#buffers.filter(({ buffer }) => !buffer.isDisposed);
    const model = usable.at(command.buffer % usable.length);
    if (model === undefined) return;
    model.steps++;
    try {
      this.#do(model, command);
    } finally {
      model.steps--;
    }
    this.#sweep();
  }

  /**
   * The streams that buffers are on are about to end without notice: the buffers move to another.
   */
  leave(slot: StreamSlot, to: () => StreamSlot): void {
    for (const model of this.#buffers) if (model.slot === slot && !model.buffer.isDisposed) this.#setStream(model, to(), undefined);
  }

  /** A run of a cache is about to end. */
  beforeScopeEnds(scope: Scope): void {
    for (const model of this.#buffers) if (model.scope === scope) this.#inspect(model);
  }

  afterScopeEnded(scope: Scope): void {
    for (const model of this.#buffers) {
      if (model.scope !== scope) continue;
      if (scope.isTop && !model.buffer.isDisposed && !model.hasMoved && model.buffer.capacityBytes > 0)
        throw new Violation('a buffer outlives the run of a cache that it was made in');
      model.scope = undefined;
    }
    this.#sweep();
  }

  /**
   * Memory of allocations from number `serial` on is about to be freed at once, which disposes the
   * buffers in it.
   */
  beforeRewind(serial = 0): void {
    for (const model of this.#buffers) {
      model.isRewound = model.serial >= serial;
      if (model.isRewound) this.#inspect(model);
    }
  }

  afterRewind(): void {
    for (const { buffer, isRewound } of this.#buffers) {
      if (isRewound === true && buffer.capacityBytes > 0) throw new Violation('a buffer outlives the rewind that freed its memory');
    }
    this.#sweep();
  }

  /** Inspects and disposes the buffers with memory of allocations from number `serial` on. */
  dispose(serial = 0): void {
    for (const model of this.#buffers.filter((each) => each.serial >= serial)) {
      this.#inspect(model);
      model.buffer.dispose();
      if (!model.buffer.isDisposed) throw new Violation('a buffer is not disposed after dispose()');
    }
    this.#sweep();
  }

  /** Disposes everything, ignoring errors. */
  abandon(): void {
    for (const { buffer } of this.#buffers) {
      try {
        buffer.dispose();
      } catch {
        // The violation has been reported.
      }
    }
  }

  #do(model: ModelBuffer, command: BufferCommand): void {
    const { buffer } = model;
    const program = this.#program;
    switch (command.what) {
      case 'set-stream':
        this.#setStream(model, program.stream(command.other), command.from % 2 === 0 ? 'known' : undefined);
        return;
      case 'dispose':
        this.#inspect(model);
        this.#attempt(model, () => buffer.dispose());
        return;
      case 'drop':
        // The collector does not find a buffer during a call of it.
        if (model.steps > 1) return;
        this.#inspect(model);
        program.model.drop(buffer);
        this.#buffers.splice(this.#buffers.indexOf(model), 1);
        return;
      case 'keep':
        if (model.scope === undefined) return;
        (model.scope.cache as CachingMemoryResource).keep(buffer);
        model.scope = undefined;
        return;
    }
    // Nothing can be queued on a stream that has ended.
    if (model.slot.last !== undefined) return;
    const length = model.bytes.length;
    const from = command.from % (length + 1);
    const bytes = Math.min(command.bytes, length - from);
    switch (command.what) {
      case 'write': {
        const data = this.#data(bytes);
        const contents = data.slice();
        if (!this.#attempt(model, () => buffer.copyFrom(data, { byteOffset: from }))) return;
        data.fill(0);
        this.#wrote(model, from, contents);
        return;
      }
      case 'copy':
        this.#copy(model, command, from, bytes);
        return;
      case 'fill': {
        const value = command.bytes % 256;
        if (!this.#attempt(model, () => buffer.fill(value, { byteOffset: from, byteLength: bytes }))) return;
        this.#wrote(model, from, new Uint8Array(bytes).fill(value));
        return;
      }
      case 'resize':
        this.#move(model, Math.min(command.bytes + command.from, maximumBytes), (target) => buffer.resize(target));
        return;
      case 'reserve':
        this.#move(model, undefined, () => buffer.reserve(command.bytes + command.from));
        return;
      case 'shrink':
        this.#move(model, undefined, () => buffer.shrinkToFit());
        return;
      case 'read':
        this.#read(model, from, bytes);
        return;
      case 'read-later':
        this.#readLater(model, from, bytes);
        return;
      case 'check':
        this.#inspect(model);
        return;
    }
  }

  #copy(model: ModelBuffer, command: BufferCommand, from: number, bytes: number): void {
    const source = this.#buffers.at(command.other % this.#buffers.length) as ModelBuffer;
    if (source === model || source.buffer.isDisposed || source.slot.last !== undefined) return;
    const byteLength = Math.min(bytes, source.bytes.length);
    const sourceByteOffset = command.bytes % (source.bytes.length - byteLength + 1);
    const options = { byteOffset: from, sourceByteOffset, byteLength };
    const isTo = command.from % 2 === 0;
    const copied = () => (isTo ? source.buffer.copyTo(model.buffer, options) : model.buffer.copyFrom(source.buffer, options));
    source.steps++;
    const isCopied = this.#attempt(model, copied);
    source.steps--;
    if (!isCopied) return;
    const end = sourceByteOffset + byteLength;
    this.#wrote(model, from, source.bytes.slice(sourceByteOffset, end), source.known.slice(sourceByteOffset, end));
    source.last = this.#program.token(source.slot);
  }

  /** A call that moves the memory, during which host functions may do the same to the buffer. */
  #move(model: ModelBuffer, byteLength: number | undefined, call: (target: number) => void): void {
    const { buffer } = model;
    const before = model.bytes.length;
    const version = ++model.version;
    const target = byteLength ?? before;
    const serial = this.#program.serial();
    const { ptr } = buffer;
    const isDone = this.#attempt(model, () => call(target));
    if (buffer.isDisposed) return;
    const isAlone = model.version === version;
    const expected = isDone ? target : before;
    if (isAlone && buffer.byteLength !== expected) {
      throw new Violation(`a buffer has ${buffer.byteLength} bytes after it was resized from ${before} to ${target}`);
    }
    if (buffer.capacityBytes < buffer.byteLength) {
      throw new Violation(`a buffer has ${buffer.byteLength} bytes, but room for ${buffer.capacityBytes}`);
    }
    this.#setLength(model, Math.min(isDone ? target : model.bytes.length, buffer.byteLength));
    this.#setLength(model, buffer.byteLength);
    if (buffer.ptr !== ptr || !isAlone) {
      model.serial = serial;
      model.hasMoved = true;
    }
    if (model.slot.last === undefined) model.last = this.#program.token(model.slot);
  }

  #setLength(model: ModelBuffer, length: number): void {
    const { bytes, known } = model;
    if (length === bytes.length) return;
    model.bytes = new Uint8Array(length);
    model.known = new Uint8Array(length);
    model.bytes.set(bytes.subarray(0, length));
    model.known.set(known.subarray(0, length));
  }

  #setStream(model: ModelBuffer, slot: StreamSlot, by: 'known' | undefined): void {
    if (slot === model.slot) return;
    this.#program.order(slot, [model.last], by);
    model.buffer.setStream(slot.stream);
    model.slot = slot;
    model.version++;
    model.last = this.#program.token(slot);
  }

  #read(model: ModelBuffer, from: number, bytes: number): void {
    if (this.#program.model.isInHostFunction) return;
    const { version } = model;
    const expected = model.bytes.slice(from, from + bytes);
    const known = model.known.slice(from, from + bytes);
    const found = new Uint8Array(bytes);
    if (!this.#attempt(model, () => model.buffer.toHostSync(found, { byteOffset: from }))) return;
    // What host functions wrote in the meantime may or may not be in it.
    if (model.version === version || model.buffer.isDisposed) compareBytes(found, expected, known, 'a buffer that was read');
  }

  #readLater(model: ModelBuffer, from: number, bytes: number): void {
    const expected = model.bytes.slice(from, from + bytes);
    const known = model.known.slice(from, from + bytes);
    const read = model.buffer.toHost({ byteOffset: from, byteLength: bytes });
    model.last = this.#program.token(model.slot);
    // What a host function begins may need more staging memory, which cannot be allocated there.
    const { isInHostFunction } = this.#program.model;
    const compared = read.then(
      (found) => compareBytes(found, expected, known, 'a buffer that was read later'),
      (error) => {
        if (!isInHostFunction || !isNotPermitted(error)) throw error;
      },
    );
    // The violation is reported where the promise is awaited; until then the rejection counts as
    // handled.
    compared.catch(() => {});
    this.#reads.push(compared);
  }

  #inspect(model: ModelBuffer): void {
    const { buffer, slot } = model;
    if (slot.last !== undefined || buffer.isDisposed || buffer.byteLength === 0) return;
    this.#program.inspector.read(buffer.ptr, slot.stream, 'a buffer', model.bytes.slice(), model.known.slice());
    model.last = this.#program.token(slot);
  }

  #wrote(model: ModelBuffer, from: number, bytes: Uint8Array, known = new Uint8Array(bytes.length).fill(1)): void {
    model.version++;
    model.bytes.set(bytes, from);
    model.known.set(known, from);
    model.last = this.#program.token(model.slot);
  }

  #attempt(model: ModelBuffer, action: () => void): boolean {
    // A host function may end the stream, and put the buffer on another one.
    const { version, slot } = model;
    return this.#program.attempt(action, (code) => {
      if (code === disposed) return model.buffer.isDisposed || slot.last !== undefined || model.slot.last !== undefined;
      // It was changed while it was being moved.
      return code === 'ERR_CISTERN_INVALID_STATE' && model.version !== version;
    });
  }

  #data(bytes: number): Uint8Array {
    const data = new Uint8Array(bytes);
    const first = ++this.#written * 37;
    for (let i = 0; i < bytes; i++) data[i] = first + i * 7;
    return data;
  }

  /** Removes the buffers that are disposed. */
  #sweep(): void {
    for (const model of this.#buffers.filter(({ buffer }) => buffer.isDisposed)) {
      // A buffer whose run has ended is watched until it is disposed; during that, a host function
      // cannot affect it.
      if (this.#attempt(model, () => model.buffer.dispose())) this.#buffers.splice(this.#buffers.indexOf(model), 1);
    }
  }
}
