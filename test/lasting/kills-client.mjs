// Writes a region, or reads it and looks at every byte; see kills.mjs.
import { argv, exit } from 'node:process';
import { stepsMade } from './kill-at-call.mjs';

const { DeviceBuffer, Stream } = await import('../../dist/index.js');
const { LastingMemoryResource } = await import('../../dist/lasting/index.js');
const [socket, region, value] = argv.slice(2);
const bytes = 2 ** 21;
try {
  const resource = await LastingMemoryResource.open({ region, bytes, layout: 'a', socket, timeoutMilliseconds: 5000 });
  const stream = new Stream();
  const buffer = new DeviceBuffer(bytes, { resource, stream });
  const isWriting = resource.isWriting;
  if (isWriting) {
    buffer.fill(Number(value));
    resource.commit();
  }
  const found = new Set(buffer.toHostSync());
  if (found.size !== 1 || found.has(0)) {
    console.log(`${region} has ${[...found].slice(0, 9)}`);
    exit(3);
  }
  buffer.dispose();
  resource.dispose();
  stream.dispose();
  console.log(stepsMade());
} catch (error) {
  if (error.code === 'ERR_CISTERN_KEEP_UNAVAILABLE') exit(4);
  console.log(error);
  exit(5);
}
