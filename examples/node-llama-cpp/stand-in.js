// The part of node-llama-cpp that this example uses, for machines without it: a Llama asks its orchestrator what is
// free, reserves what a model needs while it loads, and marks it as long as it is loaded.

/** Who really has the memory: here nobody, unless the test names an addon that allocates from CUDA. */
const library = process.env.LLAMA_STAND_IN_LIBRARY
  ? process.getBuiltinModule('node:module').createRequire(import.meta.url)(process.env.LLAMA_STAND_IN_LIBRARY)
  : undefined;

export class InsufficientMemoryError extends Error {
  name = 'InsufficientMemoryError';
}

export async function getLlama({ deviceBytes = 2 ** 30 } = {}) {
  let inUse = 0;
  const llama = {
    _vramOrchestrator: { getMemoryState: async () => ({ free: deviceBytes - inUse, total: deviceBytes, unifiedSize: 0 }) },

    async loadModel({ modelPath, bytes }) {
      const orchestrator = llama._vramOrchestrator;
      const { free } = await orchestrator.getMemoryState();
      if (bytes > free) throw new InsufficientMemoryError(`${modelPath} needs ${bytes} bytes, ${free} are free`);
      const reservation = orchestrator.reserveMemory(bytes);
      try {
        await new Promise((resolve) => setTimeout(resolve, 5)); // it is read from disk
        const pointer = library?.allocate(bytes);
        inUse += bytes;
        const marking = orchestrator.markAllocation(bytes);
        return {
          async dispose() {
            library?.free(pointer);
            inUse -= bytes;
            marking.dispose();
          },
        };
      } finally {
        reservation.dispose();
      }
    },
  };
  return llama;
}
