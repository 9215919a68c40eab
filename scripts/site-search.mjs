// Checks the search of the site in docs/api: what people type must lead to the page they need.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { exit } from 'node:process';
import { inflateSync } from 'node:zlib';

/** What is typed, and what one of the first three results must be. */
const queries = [
  ['pool', 'PoolMemoryResource'],
  ['out of memory', 'Out of memory'],
  ['oom', 'Out of memory'],
  ['leak', 'Tutorial'],
  ['install', 'Installing, devices and settings'],
  ['getting started', 'Tutorial'],
  ['buffer', 'DeviceBuffer'],
  ['stream', 'Stream'],
  ['arena', 'ArenaMemoryResource'],
  ['limit', 'LimitingResourceAdaptor'],
  ['statistics', 'StatisticsResourceAdaptor'],
  ['deallocation events', 'Deallocation events'],
  ['eager', 'Deallocation events'],
  ['fragmentation', 'Looking at a run'],
  ['batch size', 'Choosing a resource by replaying your own log'],
  ['graph', 'Graphs'],
  ['worker', 'Workers'],
  ['pytorch', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['tfjs', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['vllm', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['continuous integration', 'Checking memory in CI'],
  ['rmm', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['environment variable', 'Settings'],
  ['error codes', 'Errors'],
  ['webpack', 'Bundlers and test runners'],
  ['custom resource', 'Writing a resource or an adaptor'],
  ['addon', 'Addons'],
  ['prometheus', 'Watching a running program'],
  ['multi gpu', 'Several devices'],
  ['quota', 'Serving many requests'],
  ['sleep', 'Sleeping'],
  ['dlpack', 'Foreign memory'],
  ['command', 'Commands'],
  ['empty_cache', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['record_stream', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['max_split_size', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['memory_allocated', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['memory_viz', 'Formats of logs'],
  ['pluggable allocator', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['cudaMallocAsync', 'Choosing a stack'],
  ['pool_memory_resource', 'PoolMemoryResource'],
  ['device_uvector', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['thread_safe', 'ThreadSafeArenaMemoryResource'],
  ['rmm log', 'LoggingResourceAdaptor'],
  ['reclaim', 'ReclaimingResourceAdaptor'],
  ['unsafe_free', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['CuArray', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['gpuLayers', 'Where did my GPU memory go?'],
  ['vram', 'Where did my GPU memory go?'],
  ['llama', 'Where did my GPU memory go?'],
  ['transformers', 'Where did my GPU memory go?'],
  ['onnx', 'Memory for native threads'],
  ['kv cache', 'Coming from RMM, PyTorch, CuPy or tf.js'],
  ['429', 'Serving many requests'],
  ['kineto', 'Formats of logs'],
  ['nsight', 'Formats of logs'],
  ['grafana', 'Watching a running program'],
  ['types', 'Compatibility'],
  ['typescript', 'Compatibility'],
  ['using', 'Tutorial'],
  ['AbortSignal', 'Serving many requests'],
  ['jest', 'Bundlers and test runners'],
  ['segfault', 'Errors'],
  ['double free', 'Errors'],
  ['wsl', 'Installing, devices and settings'],
  ['zero copy', 'Foreign memory'],
];

/** What is typed, and what the first result must be. */
const firstResults = [
  ['memory leak', 'Where did my GPU memory go?'],
  ['memory usage', 'Where did my GPU memory go?'],
  ['stack trace', 'Recording a run'],
  ['call site', 'Recording a run'],
  ['cuda version', 'Installing, devices and settings'],
  ['node version', 'Compatibility'],
  ['double free', 'Errors'],
  ['use after free', 'Reading an order violation'],
  ['getting started', 'Tutorial'],
  ['out of memory', 'Out of memory'],
];

const require = createRequire(import.meta.url);
// The library that the pages search with, as typedoc has it.
const lunr = createRequire(require.resolve('typedoc'))('lunr');
const packed = /"(.*)"/.exec(readFileSync(new URL('../docs/api/assets/search.js', import.meta.url), 'utf8'))[1];
const { rows, index } = JSON.parse(inflateSync(Buffer.from(packed, 'base64')).toString());
const search = lunr.Index.load(index);

/** The first results, as the script of the pages (`typedoc/static/main.js`) ranks them. */
function resultsOf(query) {
  const words = query.split(' ');
  const phrase = words.length > 1 ? ` *${words.join('_')}*^20` : '';
  const found = search.search(words.map((word) => `*${word}*`).join(' ') + phrase);
  const ranked = found.map(({ ref, score }) => {
    const { name } = rows[Number(ref)];
    const startsSo = name.toLowerCase().startsWith(query.toLowerCase());
    return { name, score: score * (startsSo ? 10 / (1 + Math.abs(name.length - query.length)) : 1) };
  });
  return ranked
    .sort((a, b) => b.score - a.score)
    .slice(0, 3)
    .map(({ name }) => name);
}

let faults = 0;
const words = new Set(index.invertedIndex.map(([word]) => word));
for (const word of search.tokenSet.intersect(lunr.TokenSet.fromString('*')).toArray()) {
  if (words.has(word)) continue;
  faults++;
  console.error(`lunr takes "${word}" for a word of the site, and fails when it is searched for`);
}
for (const [query, wanted] of queries) {
  const results = resultsOf(query);
  if (results.includes(wanted)) continue;
  faults++;
  console.error(`"${query}" finds ${results.map((name) => `"${name}"`).join(', ') || 'nothing'}, not "${wanted}"`);
}
for (const [query, wanted] of firstResults) {
  const [first] = resultsOf(query);
  if (first === wanted) continue;
  faults++;
  console.error(`"${query}" finds "${first}" first, not "${wanted}"`);
}
console.log(`${queries.length + firstResults.length} queries, ${faults} faults`);
exit(faults === 0 ? 0 : 1);
