/** The entries of the trace of a device, of which there may be millions: 43 bytes each, outside of V8's heap. */

/** What an entry may do, and what changes neither segments nor blocks is left out. */
const actions = ['alloc', 'free', 'free_completed', 'segment_alloc', 'segment_free', 'segment_map', 'segment_unmap', 'oom'] as const;

export type TraceAction = (typeof actions)[number];

export function isTraceAction(text: string): text is TraceAction {
  return (actions as readonly string[]).includes(text);
}

/** An entry of a trace that changes segments or blocks, or an `oom`. */
export interface TraceEntry {
  readonly action: TraceAction;
  readonly address: number;
  readonly bytes: number;
  readonly stream: number;
  readonly stack: number;
  readonly label: number;
  /** The number of its pool's id, as the reader gave it. */
  readonly poolId: number;
  readonly time: number;
}

/** The first chunk begins smaller, since a file may have many traces. */
const entriesInChunk = 2 ** 16;
const entriesAtFirst = 16;

interface Chunk {
  readonly actions: Uint8Array;
  readonly addresses: Float64Array;
  readonly sizes: Float64Array;
  readonly streams: Uint16Array;
  readonly stacks: Uint32Array;
  readonly labels: Uint32Array;
  readonly poolIds: Uint32Array;
  readonly times: Float64Array;
}

export class TraceEntries {
  readonly #chunks: Chunk[] = [];
  #count = 0;
  #lastTime = 0;

  get count(): number {
    return this.#count;
  }

  /** The time of the entry that was added last, or 0. */
  get lastTime(): number {
    return this.#lastTime;
  }

  add({ action, address, bytes, stream, stack, label, poolId, time }: TraceEntry): void {
    const row = this.#count++ % entriesInChunk;
    if (row === 0) this.#chunks.push(emptyChunk(this.#chunks.length === 0 ? entriesAtFirst : entriesInChunk));
    const last = this.#chunks.length - 1;
    let chunk = this.#chunks[last] as Chunk;
    if (row === chunk.actions.length) {
      chunk = grown(chunk);
      this.#chunks[last] = chunk;
    }
    chunk.actions[row] = actions.indexOf(action);
    chunk.addresses[row] = address;
    chunk.sizes[row] = bytes;
    chunk.streams[row] = stream;
    chunk.stacks[row] = stack;
    chunk.labels[row] = label;
    chunk.poolIds[row] = poolId;
    chunk.times[row] = time;
    this.#lastTime = time;
  }

  at(index: number): TraceEntry {
    const chunk = this.#chunks[Math.floor(index / entriesInChunk)] as Chunk;
    const row = index % entriesInChunk;
    return {
      action: actions[chunk.actions[row] as number] as TraceAction,
      address: chunk.addresses[row] as number,
      bytes: chunk.sizes[row] as number,
      stream: chunk.streams[row] as number,
      stack: chunk.stacks[row] as number,
      label: chunk.labels[row] as number,
      poolId: chunk.poolIds[row] as number,
      time: chunk.times[row] as number,
    };
  }
}

function emptyChunk(entries: number): Chunk {
  return {
    actions: new Uint8Array(entries),
    addresses: new Float64Array(entries),
    sizes: new Float64Array(entries),
    streams: new Uint16Array(entries),
    stacks: new Uint32Array(entries),
    labels: new Uint32Array(entries),
    poolIds: new Uint32Array(entries),
    times: new Float64Array(entries),
  };
}

/** A chunk for twice as many entries. */
function grown(chunk: Chunk): Chunk {
  const larger = emptyChunk(chunk.actions.length * 2);
  for (const name of Object.keys(chunk) as (keyof Chunk)[]) larger[name].set(chunk[name]);
  return larger;
}
