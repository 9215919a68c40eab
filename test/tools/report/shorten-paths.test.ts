import { expect, test } from 'vitest';
import { shortenPaths } from '../../../src/tools/report/shorten-paths.js';

test("the program's common folder is left out, and what is above node_modules in dependencies", () => {
  const stacks = [
    '',
    'parse (file:///home/me/app/routes/parse.js:3:7)\nhandle (file:///home/me/app/server.js:9:1)\nrun (/opt/x/node_modules/fastify/lib/run.js:1:2)',
    'process (node:internal/process/task_queues:95:5)\n<anonymous> (/home/me/app/server.js:40:2)',
  ];
  expect(shortenPaths(stacks)).toEqual([
    '',
    'parse (routes/parse.js:3:7)\nhandle (server.js:9:1)\nrun (node_modules/fastify/lib/run.js:1:2)',
    'process (node:internal/process/task_queues:95:5)\n<anonymous> (server.js:40:2)',
  ]);
});
