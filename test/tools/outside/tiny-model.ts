/** A language model of 75,000 numbers in the file format of llama.cpp (GGUF 3), large enough to be loaded. */
export function tinyModel(): Buffer {
  const [words, width, inner, heads] = [259, 64, 128, 4];
  const text = (value: string) => Buffer.concat([number(value.length, 8), Buffer.from(value)]);
  const metadata: Buffer[] = [];
  const integer = (key: string, value: number) => metadata.push(text(`llama.${key}`), number(4, 4), number(value, 4));
  const string = (key: string, value: string) => metadata.push(text(key), number(8, 4), text(value));
  string('general.architecture', 'llama');
  string('tokenizer.ggml.model', 'llama');
  // Three special tokens, then one for each byte.
  const tokens = Array.from(
    { length: words },
    (_, i) => ['<unk>', '<s>', '</s>'][i] ?? `<0x${(i - 3).toString(16).toUpperCase().padStart(2, '0')}>`,
  );
  const list = (key: string, type: number, values: readonly Buffer[]) =>
    metadata.push(text(`tokenizer.ggml.${key}`), number(9, 4), number(type, 4), number(values.length, 8), ...values);
  list('tokens', 8, tokens.map(text));
  list(
    'scores',
    6,
    tokens.map(() => number(0, 4)),
  );
  list(
    'token_type',
    5,
    tokens.map((_, i) => number(i === 0 ? 2 : i < 3 ? 3 : 6, 4)),
  );
  integer('vocab_size', words);
  integer('context_length', 64);
  integer('embedding_length', width);
  integer('block_count', 1);
  integer('feed_forward_length', inner);
  integer('attention.head_count', heads);
  integer('rope.dimension_count', width / heads);
  const epsilon = Buffer.alloc(4);
  epsilon.writeFloatLE(1e-5);
  metadata.push(text('llama.attention.layer_norm_rms_epsilon'), number(6, 4), epsilon);
  const square = [width, width];
  const tensors: readonly (readonly [string, readonly number[]])[] = [
    ['token_embd.weight', [width, words]],
    ['output_norm.weight', [width]],
    ['output.weight', [width, words]],
    ['blk.0.attn_norm.weight', [width]],
    ...['q', 'k', 'v', 'output'].map((name) => [`blk.0.attn_${name}.weight`, square] as const),
    ['blk.0.ffn_norm.weight', [width]],
    ['blk.0.ffn_gate.weight', [width, inner]],
    ['blk.0.ffn_up.weight', [width, inner]],
    ['blk.0.ffn_down.weight', [inner, width]],
  ];
  let bytes = 0;
  const descriptions = tensors.map(([name, shape]) => {
    const offset = bytes;
    bytes += shape.reduce((product, size) => product * size, 4);
    return Buffer.concat([text(name), number(shape.length, 4), ...shape.map((size) => number(size, 8)), number(0, 4), number(offset, 8)]);
  });
  const keys = 13;
  const head = Buffer.concat([Buffer.from('GGUF'), number(3, 4), number(tensors.length, 8), number(keys, 8), ...metadata, ...descriptions]);
  return Buffer.concat([head, Buffer.alloc((32 - (head.length % 32)) % 32), Buffer.alloc(bytes)]);
}

function number(value: number, bytes: 4 | 8): Buffer {
  const buffer = Buffer.alloc(bytes);
  buffer.writeUInt32LE(value);
  return buffer;
}
