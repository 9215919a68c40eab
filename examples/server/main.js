// A server, which shows its memory on a live page. In another terminal: curl -s localhost:3000/picture/65536 | wc -c
//
//     CISTERN_WATCH=9464 node examples/server/main.js
import { createServer } from './server.js';

const server = createServer();
const address = await server.listen({ port: Number(process.env.PORT ?? 3000) });
console.log(`listening on ${address}`);
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.once(signal, async () => {
    await server.close();
    process.exit();
  });
}
