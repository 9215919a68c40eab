import Fastify from 'fastify';
import { render, sum } from './handlers.js';
import { liveBytes, statusOf, withRequestMemory } from './memory.js';

/** The server, not yet listening. */
export function createServer() {
  const server = Fastify({ bodyLimit: 64 * 1024 * 1024 });
  server.addContentTypeParser('application/octet-stream', { parseAs: 'buffer' }, (_request, body, done) => done(null, body));
  server.setErrorHandler((error, _request, reply) => {
    const status = error.statusCode ?? statusOf(error);
    reply.code(status).send({ error: error.message, code: error.code });
  });

  server.post('/sum', (request) => withRequestMemory(async (memory) => ({ sum: await sum(memory, request.body) })));
  server.get('/picture/:size', (request, reply) =>
    withRequestMemory(async (memory) => {
      reply.type('application/octet-stream');
      return Buffer.from(await render(memory, Number(request.params.size), 7));
    }),
  );
  server.get('/memory', () => ({ liveBytes: liveBytes() }));
  return server;
}
