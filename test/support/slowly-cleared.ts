import { Device } from '../../src/index.js';

/**
 * Until this is disposed, the software device counts as a GPU for whoever asks whether threads should clear pinned memory. It keeps
 * its own name for all that matters to a test besides.
 */
export function slowlyCleared(device = Device.get()): Disposable {
  const { backend } = device;
  const set = (value: string) => Object.defineProperty(device, 'backend', { value });
  set('cuda');
  return { [Symbol.dispose]: () => set(backend) };
}
