// A plugin of typedoc: what the site is called in its sidebar, in which order, and what its search finds.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, sep } from 'node:path';
import { Application, Comment, CommentTag, Converter, IndexEvent, PageEvent, ReflectionKind, RendererEvent } from 'typedoc';

/**
 * The pages of docs/, in the order in which they are read. `words` are what people type who look for the
 * page and do not know what it is called. Words joined by `_` are a phrase, which finds the page before others that have only its words.
 */
export const sections = [
  {
    title: 'Start',
    pages: [
      ['guides/install', 'installation npm setup driver device docker wsl windows mac cuda_version driver_version'],
      ['guides/tutorial', 'getting_started first example memory leak using dispose'],
      ['guides/stream-order', 'stream ordered event wait free'],
      ['guides/choosing', 'choose which resource specification allocator malloc cudaMallocAsync'],
      [
        'guides/coming-from',
        'rmm pytorch cupy tensorflow tfjs tf.js julia cuda.jl halide vllm migration kv cache pluggable_allocator max_split_size garbage_collection_threshold',
      ],
    ],
  },
  {
    title: 'Guides',
    pages: [
      ['guides/out-of-memory', 'out of memory oom'],
      [
        'guides/where-did-it-go',
        'memory_leak memory_usage where did my memory go record cistern run vram node-llama-cpp gpuLayers transformers.js onnxruntime',
      ],
      ['outside', 'run preload interpose libcuda outside library binary'],
      ['deallocation-events', 'policy eager deferred off rmm#1995 event'],
      ['recording', 'log record CISTERN_LOG_FILE annotate phases labels stack_trace call_site'],
      ['report', 'leak peak fragmentation diff what grew html page'],
      ['replay', 'fit estimate batch size'],
      ['watch', 'live page prometheus opentelemetry metrics leak monitor grafana'],
      ['guides/ci', 'continuous integration github action threshold regression leak test summary jest vitest'],
      ['guides/plans', 'plan planned offsets minimalloc'],
      ['guides/graphs', 'cuda graph capture'],
      ['guides/decoder', 'cublas nvrtc koffi kernels language model example pytorch'],
      ['guides/serving', 'admission quota account tenant requests fastify 429 too many requests'],
      ['guides/sleeping', 'sleep wake offload'],
      ['guides/machine', 'idle memory returns container cgroup limit nvml who holds the device'],
      ['guides/lasting-memory', 'cistern keep restart weights persistent outlive process region memory service'],
      ['guides/managed-memory', 'managed unified prefetch advise'],
      ['workers', 'worker thread transfer detach shared'],
      ['processes', 'ipc export open share process'],
      ['peers', 'multi gpu several devices peer access nvlink'],
      ['foreign-memory', 'dlpack interoperability zero copy'],
      ['guides/libraries', 'library current resource'],
      ['guides/own-resources', 'custom own resource defineAdaptor conformance'],
      ['addons', 'native addon c c++ header cistern.h napi'],
      ['guides/native-threads', 'thread AsyncWorker rapids cudf cuvs onnxruntime cistern.hpp'],
      ['guides/bundlers', 'webpack vite esbuild rollup bundler electron jest vitest esm commonjs'],
      ['order-violations', 'race checker checkOrder sanitizer double free use_after_free segfault crash'],
      ['stream-order-protocol', 'rule lanes events reuse model'],
      ['admission-protocol', 'wait queue deadlock refuse overtake model'],
      ['sleep-protocol', 'wake unmap contents model'],
      ['gpu', 'hardware bundle'],
    ],
  },
  {
    title: 'Reference',
    pages: [
      ['adaptors', 'kinds leaves adaptors list'],
      ['commands', 'command line cli cistern options'],
      ['errors', 'error codes exceptions ERR_CISTERN double_free segfault crash'],
      ['formats', 'log format csv recording snapshot convert perfetto kineto profiler nsys nsight umpire raft rmm csv snapshot'],
      ['options', 'option default tuning when to set'],
      ['settings', 'environment variable CISTERN_DEVICE'],
      ['compatibility', 'node_version node versions platforms bun deno yarn pnpm docker typescript types'],
      ['measurements', 'benchmark performance nanoseconds overhead'],
      ['crossings', 'spill graph sleep worker process tensor together combined'],
      ['glossary', 'terms words'],
    ],
  },
  {
    title: 'Design',
    pages: [
      ['architecture', 'levels layers diagram'],
      ['walk', 'newcomer first hour'],
      ['files', 'source files'],
      ['proof', 'tests fuzz mutants property'],
    ],
    folder: 'design',
  },
];

/** The exports are the section before the design. */
const exportsTitle = 'Exports';

/** What a module is imported as, by its folder in src/. */
function importedAs(folder) {
  const name = folder.replace(/^tools\//, '');
  return name === 'index' ? 'cistern' : `cistern/${name === 'formats' ? 'logs' : name}`;
}

/** The group of each folder of src/; the first that a file's path contains. */
const groups = [
  ['src/basics/errors', 'Errors'],
  ['src/buffers/current-resource', 'Resources'],
  ['src/buffers/', 'Buffers'],
  ['src/adaptors/', 'Adaptors'],
  ['src/resources/', 'Resources'],
  ['src/resource', 'Resources'],
  ['src/memory-resource', 'Resources'],
  ['src/specification/', 'Stacks from text'],
  ['src/tools/formats/', 'Logs'],
  ['src/files/', 'Logs'],
  ['src/plans/', 'Plans'],
  ['src/tools/planning/', 'Plans'],
  ['src/tools/replay/', 'Replay'],
  ['src/tools/report/', 'Reports'],
  ['src/tools/watch/', 'Watching'],
  ['src/tools/testing/', 'Testing'],
  ['src/driver/', 'Devices, streams and events'],
  ['src/collector/', 'Buffers'],
];

const docs = join(import.meta.dirname, '..', 'docs');

/** The pages, in order: the section of each, its path below docs/ and its words. */
const pages = sections.flatMap(({ title, pages: listed, folder }) => [
  ...listed.map(([path, words]) => ({ section: title, path, words })),
  ...(folder === undefined ? [] : pagesIn(folder).map((path) => ({ section: title, path, words: '' }))),
]);

function pagesIn(folder) {
  return readdirSync(join(docs, folder), { recursive: true })
    .filter((name) => name.endsWith('.md'))
    .map((name) => join(folder, name).split(sep).join('/').slice(0, -'.md'.length))
    .sort();
}

/** @param {import('typedoc').Application} app */
export function load(app) {
  const forgotten = pagesIn('.').filter((path) => !path.startsWith('api/') && !pages.some((page) => page.path === path));
  for (const path of forgotten) app.logger.error(`docs/${path}.md is in no section of scripts/typedoc-site.mjs`);
  /** What is found by other words than its own. */
  const wordsOf = new Map();
  app.on(Application.EVENT_BOOTSTRAP_END, () => {
    app.options.setValue(
      'projectDocuments',
      pages.map(({ path }) => join(docs, `${path}.md`)),
    );
  });
  app.converter.on(Converter.EVENT_CREATE_DOCUMENT, (_context, document) => {
    // Its name is that of the file until now.
    const { section, words } = pages.find(({ path }) => path.endsWith(`/${document.name}`) || path === document.name);
    wordsOf.set(document, words);
    document.frontmatter.category = section;
    const heading = document.content.find(({ kind, text }) => kind === 'text' && /^# /m.test(text));
    const title = /^# (.*)$/m.exec(heading?.text ?? '')?.[1];
    if (title !== undefined) document.name = title.replaceAll('`', '');
  });
  app.converter.on(Converter.EVENT_CREATE_DECLARATION, (context, reflection) => {
    if (reflection.kindOf(ReflectionKind.Module)) {
      reflection.name = importedAs(reflection.name);
      categorize(reflection, exportsTitle);
    } else if (reflection.parent?.kindOf(ReflectionKind.Module)) {
      const file = context.getSymbolFromReflection(reflection)?.declarations?.[0]?.getSourceFile().fileName ?? '';
      categorize(reflection, groups.find(([place]) => file.includes(place))?.[1] ?? 'Other');
    }
  });
  // The core does not import what its comments name of a capability, nor the other way round.
  app.converter.addUnknownSymbolResolver(({ moduleSource, symbolReference }, { project }, link) => {
    if (link === undefined || moduleSource !== undefined || symbolReference?.path === undefined) return undefined;
    const names = symbolReference.path.map(({ path }) => path);
    for (const entry of project.children ?? []) {
      const found = entry.getChildByName(names);
      if (found !== undefined) return { target: found };
    }
    return undefined;
  });
  app.converter.on(Converter.EVENT_RESOLVE_END, ({ project }) => {
    // The front page has its name above it already.
    const [first] = project.readme ?? [];
    if (first?.kind === 'text') first.text = first.text.replace(/^# .*\n+/, '');
  });
  app.renderer.on(PageEvent.END, (page) => {
    // By its own name: no address of the site is known, and a page has the same name wherever it is.
    const canonical = `<link rel="canonical" href="${encodeURI(page.url.slice(page.url.lastIndexOf('/') + 1))}"/>`;
    page.contents = withLandmarks(page.contents ?? '').replace('</head>', `${canonical}</head>`);
  });
  app.renderer.on(RendererEvent.END, ({ outputDirectory }) => searchForPhrases(join(outputDirectory, 'assets', 'main.js')));
  app.renderer.on(IndexEvent.PREPARE_INDEX, (event) => prepareIndex(event, wordsOf));
}

/**
 * A page whose parts readers of screens can jump to, and whose tables can be scrolled with keys: typedoc's theme has no landmark for the
 * text and for what is on the page, leaves out levels of headings, and has links in titles that unfold. Long names in titles and tables
 * break between words.
 */
function withLandmarks(page) {
  let level = 0;
  return page
    .replace(/<h([1-6])\b/g, (heading, own) => {
      level = Math.min(Number(own), level + 1);
      return level === Number(own) ? heading : `${heading} aria-level="${level}"`;
    })
    .replace(/<h1\b.*?<\/h1>|<td\b.*?<\/td>/gs, (part) => part.replace(/>[^<]+/g, betweenWords))
    .replace(/<summary\b.*?<\/summary>/gs, (summary) => summary.replace(/<a [^>]*aria-label="Permalink".*?<\/a>/gs, ''))
    .replace('class="col-content"', 'class="col-content" role="main"')
    .replace('class="page-menu"', 'class="page-menu" role="navigation" aria-label="Contents of this page"')
    .replaceAll('<table>', '<table tabindex="0">')
    .replaceAll('<th></th>', '<td></td>');
}

/** A text that may break where words of a name meet. */
function betweenWords(text) {
  return text.replace(/(?<=[a-z0-9])(?=[A-Z])|(?<=\w(?:_|::|[./(]))(?=\w)/g, '<wbr/>');
}

function categorize(reflection, category) {
  reflection.comment ??= new Comment();
  if (reflection.comment.getTag('@category') !== undefined) return;
  reflection.comment.blockTags.push(new CommentTag('@category', [{ kind: 'text', text: category }]));
}

/**
 * What counts for the search: the words of a title before those of a text, guides and classes before
 * options, members and the reasons for the design. The page of the site searches for parts of words.
 */
function prepareIndex(event, wordsOf) {
  Object.assign(event.searchFieldWeights, { name: 1, title: 20, words: 20, comment: 0.5, document: 0.1 });
  for (const [i, reflection] of event.searchResults.entries()) {
    const words = wordsOf.get(reflection);
    const isDesign = words === '';
    if (reflection.isDocument()) reflection.relevanceBoost = isDesign ? 0.2 : 3;
    else if (!reflection.parent?.kindOf(ReflectionKind.Module)) reflection.relevanceBoost = 0.002;
    else reflection.relevanceBoost = reflection.kindOf(ReflectionKind.Class) ? 1.5 : reflection.kindOf(ReflectionKind.Function) ? 0.5 : 0.1;
    event.searchFields[i] = { title: inWords(reflection.name), words: words ?? '', ...textsOf(reflection) };
  }
}

/**
 * The texts of a page, without numbers: nobody searches for them, and lunr, with which the pages search, confuses words such
 * as #133 and #1333, and then fails.
 */
function textsOf(reflection) {
  const comments = [reflection, ...(reflection.signatures ?? [])].flatMap(({ comment }) => comment ?? []);
  const parts = comments.flatMap(({ summary, blockTags }) => [...summary, ...blockTags.flatMap(({ content }) => content)]);
  const textOf = (all) => all.map(({ text }) => text.replace(/#?\d[\d.,]*/g, ' ')).join('\n');
  return { comment: textOf(parts), document: reflection.isDocument() ? textOf(reflection.content) : '' };
}

/** Lets the script of the pages search also for all words of a query, joined as in {@link sections}. */
function searchForPhrases(file) {
  const script = readFileSync(file, 'utf8');
  const pattern = /(\w+)\.split\(" "\)\.map\((\w+)=>\2\.length\?`\*\$\{\2\}\*`:""\)\.join\(" "\)/g;
  if (script.match(pattern)?.length !== 1) throw new Error(`${file} no longer splits what is typed into words: see searchForPhrases`);
  const phrase = '($1.includes(" ")?" *"+$1.split(/ +/).join("_")+"*^20":"")';
  writeFileSync(file, script.replace(pattern, `$&+${phrase}`));
}

/** `PoolMemoryResource` in words, without those that most names have. */
function inWords(name) {
  return name.replace(/(?<=[a-z0-9])(?=[A-Z])/g, ' ').replace(/ (?:Memory )?Resource(?: Adaptor)?$/, '');
}
