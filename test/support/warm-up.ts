import { Device } from '../../src/driver/device.js';
import { PlainMemory } from '../../src/driver/memory/plain-memory.js';
import { copy, set } from '../../src/driver/memory/transfer.js';
import { Stream } from '../../src/driver/streams/stream.js';

/** A GPU's driver loads the code that fills and copies memory, and takes device memory for it, at the first use: before tests count bytes. */
export function warmUp(): void {
  using stream = new Stream({ nonBlocking: true });
  const memory = PlainMemory.of('device', Device.get());
  const pointer = memory.allocate(1024, 256);
  for (const bytes of [1, 4] as const) set(pointer, 1, bytes, 512 / bytes, stream);
  copy(pointer, pointer + 512, 256, stream);
  stream.synchronizeSync();
  memory.deallocate(pointer, 1024, stream);
}
