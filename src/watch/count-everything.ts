/**
 * Counts what a program allocates through any of its resources, and where its buffers come from, for a
 * page about a program that nobody prepared for it.
 */
import { observeProgramCalls } from '../adaptors/pass-through/program-calls.js';
import { StatisticsResourceAdaptor } from '../adaptors/pass-through/statistics-resource-adaptor.js';
import { findBufferSites } from './buffer-sites.js';

/** Counts every resource that is constructed from now on, and finds the call sites of buffers. */
export function countEverything(): void {
  findBufferSites();
  observeProgramCalls<StatisticsResourceAdaptor>({
    isAdaptor: (resource) => resource instanceof StatisticsResourceAdaptor,
    isOwn: () => true,
    adaptorOf: (resource) => new StatisticsResourceAdaptor(resource, { name: String(resource) }),
    disposed: (adaptor) => adaptor[Symbol.dispose](),
  });
}
