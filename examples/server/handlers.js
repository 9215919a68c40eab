// What the server does with memory. On a GPU, the loops over bytes would be kernels.

/** Adds up the bytes of a request's body on the device. */
export async function sum(memory, body) {
  const input = memory.buffer(body, 'body');
  const bytes = await input.toHost();
  return bytes.reduce((total, value) => total + value, 0);
}

/** A picture of the asked size in one colour; takes that many bytes, twice. */
export async function render(memory, size, colour) {
  const picture = memory.buffer(size, 'picture');
  const scratch = memory.buffer(size, 'scratch');
  scratch.fill(colour);
  picture.copyFrom(scratch);
  return picture.toHost();
}
