/** What programs leave out, because it is known to go wrong. */
export const leavesOut = {
  /** Steps of buffers, by host functions, while a step of the same buffer is being done. */
  stepsMeanwhile: false,
  /** Buffers that are alive when what they are in is rewound. */
  rewindsOfBuffers: false,
  /** Calls on streams that their owner has destroyed. */
  callsOnDestroyedStreams: true,
};
