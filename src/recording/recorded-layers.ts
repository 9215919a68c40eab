import { layersOf } from '../adaptors/layers.js';
import { isKeeping } from '../adaptors/pooling/keeper.js';
import type { GrowthObserver } from '../adaptors/pooling/upstream-blocks.js';
import type { Stream } from '../driver/streams/stream.js';
import type { DevicePointer, MemoryResource, MemoryResourceAdaptor } from '../memory-resource.js';
import { kindOf } from '../resource-kind.js';
import type { Recording } from './recording.js';
import { RecordKind } from './recording-format.js';

/**
 * For each recording, the layers of the adaptors that record, and of the pooling resources below
 * them.
 */
const layersByRecording = new WeakMap<Recording, WeakMap<MemoryResource, number>>();

/** The layer that an adaptor records to. */
export interface AdaptorLayer {
  readonly index: number;
  /**
   * Whether the layer ends with the adaptor: if a pooling resource is directly below the adaptor,
   * they share the layer, and it ends with the resource.
   */
  readonly isOwn: boolean;
}

/**
 * Adds a layer to a recording for a new adaptor. Each pooling resource below it gets a layer, too,
 * in which its current blocks and its later growth are recorded.
 * @param isShared whether adaptors on resources of the same name, above the same layer, share one
 */
export function addAdaptorLayer(
  recording: Recording,
  adaptor: MemoryResourceAdaptor,
  name: string | undefined,
  isShared: boolean,
): AdaptorLayer {
  if (adaptor.device.backend === 'software') recording.recordManagedMemory();
  let layers = layersByRecording.get(recording);
  if (layers === undefined) {
    layers = new WeakMap();
    layersByRecording.set(recording, layers);
  }
  const { upstream } = adaptor;
  const nameOf = (resource: MemoryResource) => (resource === upstream ? name : undefined) ?? kindOf(resource);
  for (const resource of layersOf(upstream).reverse()) {
    if (!isKeeping(resource) || layers.has(resource)) continue;
    const index = recording.addLayer(nameOf(resource), layerBelow(layers, resource));
    layers.set(resource, index);
    resource.observeGrowth(new GrowthRecorder(recording, index));
  }
  const ofPool = isKeeping(upstream) ? layers.get(upstream) : undefined;
  const index = ofPool ?? recording.addLayer(nameOf(upstream), layerBelow(layers, adaptor), isShared);
  layers.set(adaptor, index);
  return { index, isOwn: ofPool === undefined };
}

/** The nearest layer below a resource. */
function layerBelow(layers: WeakMap<MemoryResource, number>, resource: Partial<MemoryResourceAdaptor>): number | undefined {
  for (let below = resource.upstream; below !== undefined; below = (below as Partial<MemoryResourceAdaptor>).upstream) {
    const layer = layers.get(below);
    if (layer !== undefined) return layer;
  }
  return undefined;
}

class GrowthRecorder implements GrowthObserver {
  readonly #recording: Recording;
  readonly #layer: number;

  constructor(recording: Recording, layer: number) {
    this.#recording = recording;
    this.#layer = layer;
  }

  get isDone(): boolean {
    return this.#recording.isDisposed;
  }

  grew(pointer: DevicePointer, bytes: number, stream: Stream): void {
    this.#append(RecordKind.growth, pointer, bytes, stream);
  }

  releases(pointer: DevicePointer, bytes: number, stream: Stream): void {
    this.#append(RecordKind.release, pointer, bytes, stream);
  }

  ended(): void {
    this.#recording.removeLayer(this.#layer);
  }

  #append(kind: number, pointer: DevicePointer, bytes: number, stream: Stream): void {
    // A host function may have ended the stream during the call of the upstream.
    const identity = stream.isDisposed ? undefined : stream.identity;
    this.#recording.append(kind | this.#recording.headOf(this.#layer, identity), pointer, bytes);
    this.#recording.flushIfAuto();
  }
}
