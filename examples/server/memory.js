// The memory of the server: one pool for all, and a stream and a limit for each request.
import {
  createResourceStack,
  DeviceBuffer,
  LimitingResourceAdaptor,
  MiB,
  OutOfMemoryError,
  StatisticsResourceAdaptor,
  Stream,
  withResource,
} from 'cistern';

/** The most that one request may hold. */
const requestBytes = 8 * MiB;

const stack = createResourceStack(process.env.MEMORY ?? 'pool(cuda, initialBytes=64MiB, maximumBytes=256MiB, deallocationEvents=deferred)');
/** The resource that `cistern watch` shows. */
const shared = new StatisticsResourceAdaptor(stack.resource, { name: 'server' });

/** A request's stream, and the buffers that are freed when it ends. */
class RequestMemory {
  stream = new Stream({ nonBlocking: true });
  #buffers = [];

  /** A buffer of the request: a size, or bytes to copy. */
  buffer(content, label) {
    const buffer = new DeviceBuffer(content, { stream: this.stream, label });
    this.#buffers.push(buffer);
    return buffer;
  }

  dispose() {
    for (const buffer of this.#buffers) buffer.dispose();
    this.stream.dispose();
  }
}

/** Calls `handle` with the memory of a new request. What it allocates counts against the request's limit. */
export async function withRequestMemory(handle) {
  const limited = new LimitingResourceAdaptor(shared, { limitBytes: requestBytes });
  const memory = new RequestMemory();
  try {
    return await withResource(limited, () => handle(memory));
  } finally {
    memory.dispose();
  }
}

/** The status of a reply: memory that is missing now may be there later. */
export function statusOf(error) {
  return error instanceof OutOfMemoryError ? 503 : 500;
}

/** Bytes that requests hold now. */
export function liveBytes() {
  return shared.statistics().bytes.current;
}
