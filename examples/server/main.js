// npm start, then: curl -s localhost:3000/picture/65536 | wc -c
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
