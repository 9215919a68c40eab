// A server whose requests wait until memory is promised to them, and whose tenants have limits. It sends itself
// more requests than its memory has room for; none fails in the middle.
//
//     node examples/serving.mjs [requests]
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  DeviceBuffer,
  formatBytes,
  MiB,
  NotAdmittedError,
  OutOfMemoryError,
  PoolMemoryResource,
  Stream,
  VirtualMemoryResource,
  withResource,
} from 'cistern';
import { Account, AccountingResourceAdaptor, AdmittingResourceAdaptor } from 'cistern/serving';
import Fastify from 'fastify';

const pool = new PoolMemoryResource(new VirtualMemoryResource());
const admitting = new AdmittingResourceAdaptor(pool, { limitBytes: 16 * MiB });
const resource = new AccountingResourceAdaptor(admitting);
const tenants = new Map([
  ['free', new Account({ name: 'free', limitBytes: 6 * MiB })],
  ['paying', new Account({ name: 'paying' })],
]);

const server = Fastify({ bodyLimit: 32 * MiB });
server.addContentTypeParser('application/octet-stream', { parseAs: 'buffer' }, (_request, body, done) => done(null, body));

// Body in, body out, with as much scratch memory between. On a GPU, the copies would be kernels.
server.post('/:tenant/echo', async (request, reply) => {
  const tenant = tenants.get(request.params.tenant);
  const left = new AbortController();
  reply.raw.once('close', () => left.abort());
  const priority = request.params.tenant === 'paying' ? 1 : 0;
  const grant = await admitting.reserve(2 * request.body.byteLength, { signal: left.signal, timeoutMilliseconds: 60_000, priority });
  try {
    return await tenant.run(() => grant.run(() => withResource(resource, () => echo(request.body))));
  } finally {
    grant.dispose();
  }
});

async function echo(body) {
  const stream = new Stream();
  const buffers = [];
  try {
    for (const source of [body, body.byteLength]) buffers.push(new DeviceBuffer(source, { stream }));
    const [input, output] = buffers;
    output.copyFrom(input);
    await sleep(2); // the model
    return Buffer.from(await output.toHost());
  } finally {
    for (const buffer of buffers) buffer.dispose();
    stream.dispose();
  }
}

// A client learns whether to come again, or to send less.
server.setErrorHandler((error, _request, reply) => {
  if (error instanceof NotAdmittedError) {
    if (error.reason === 'too-large') reply.code(413).send(error.message);
    else reply.code(503).header('Retry-After', '1').send(error.message);
  } else if (error instanceof OutOfMemoryError && error.account !== undefined) {
    reply.code(429).send(error.message); // the tenant's own limit
  } else {
    reply.code(500).send(error.message);
  }
});

const requests = Number(process.argv[2] ?? 100);
const send = (tenant, bytes) =>
  server.inject({
    method: 'POST',
    url: `/${tenant}/echo`,
    headers: { 'content-type': 'application/octet-stream' },
    payload: Buffer.alloc(bytes, 7),
  });
const answers = await Promise.all(Array.from({ length: requests }, (_, i) => send('paying', (1 + (i % 4)) * MiB)));
const right = answers.filter(({ statusCode, rawPayload }) => statusCode === 200 && rawPayload.every((byte) => byte === 7)).length;
const { admittedAfterWait, committedBytes } = admitting.statistics();
const paying = tenants.get('paying');
console.log(`${right} of ${requests} requests answered, ${admittedAfterWait} of them after a wait for memory`);
console.log(
  `at most ${formatBytes(paying.peakBytes)} of ${formatBytes(admitting.limitBytes)} allocated; ${formatBytes(committedBytes)} left`,
);

for (const [tenant, bytes] of [
  ['free', 4 * MiB],
  ['paying', 9 * MiB],
]) {
  const { statusCode, payload } = await send(tenant, bytes);
  console.log(`${tenant}, ${formatBytes(bytes)}: ${statusCode}, ${payload}`);
}
await server.close();
