// A pool of workers: gives each job to the worker with the fewest jobs.
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { detachBuffer, discardBuffer } from 'cistern/workers';

export class WorkerPool {
  #workers;
  #jobs = new Map();
  #lastId = 0;

  constructor(count) {
    this.#workers = Array.from({ length: count }, () => ({
      worker: new Worker(new URL('worker.js', import.meta.url)),
      busy: new Set(),
      done: 0,
    }));
    for (const each of this.#workers) {
      each.worker.on('message', (answer) => this.#take(each, answer));
      each.worker.on('error', (error) => this.#fail(each, error));
    }
  }

  /** How many jobs each worker has done. */
  get done() {
    return this.#workers.map(({ done }) => done);
  }

  /** Hands a buffer over. Resolves with the answer, whose message must be attached or discarded. */
  run(buffer) {
    const worker = this.#workers.reduce((least, each) => (each.busy.size < least.busy.size ? each : least));
    const id = ++this.#lastId;
    const message = detachBuffer(buffer);
    worker.busy.add(id);
    worker.worker.postMessage({ id, message });
    return new Promise((resolve, reject) => this.#jobs.set(id, { resolve, reject, message }));
  }

  async end() {
    for (const { worker } of this.#workers) {
      worker.postMessage({});
      await once(worker, 'exit');
    }
  }

  #take(each, { id, ...answer }) {
    each.busy.delete(id);
    if (!answer.isRefused) each.done++;
    this.#jobs.get(id).resolve(answer);
    this.#jobs.delete(id);
  }

  /** Memory of a message that nobody has attached comes home. */
  #fail(each, error) {
    for (const id of each.busy) {
      const { reject, message } = this.#jobs.get(id);
      discardBuffer(message);
      reject(error);
      this.#jobs.delete(id);
    }
    each.busy.clear();
  }
}
