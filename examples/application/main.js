// The stack of resources comes from a file, so that it can be changed without changing the program.
//
//     node examples/application/main.js [file]
import { readFileSync } from 'node:fs';
import {
  createResourceStack,
  DeviceBuffer,
  formatBytes,
  formatSpecification,
  parseSpecification,
  Stream,
  setCurrentResource,
} from 'cistern';

const file = process.argv[2] ?? new URL('memory.json', import.meta.url);
const specification = parseSpecification(JSON.parse(readFileSync(file, 'utf8')));
const stack = createResourceStack(specification);
const previous = setCurrentResource(stack.resource);
console.log(`memory from ${formatSpecification(specification)}`);

const stream = new Stream();
const image = new DeviceBuffer(new Uint8Array(24 * 1024 * 1024).fill(3), { stream });
const copy = new DeviceBuffer(image.byteLength, { stream });
copy.copyFrom(image);
const bytes = await copy.toHost();
console.log(
  `${formatBytes(bytes.length)}, of which ${bytes.filter((byte) => byte === 3).length === bytes.length ? 'all' : 'some'} arrived`,
);
for (const buffer of [image, copy]) buffer.dispose();
setCurrentResource(previous);
stack.dispose();
