/*
 * Memory for any thread, in C. cistern_get_thread_safe_resource of cistern.h returns such a table.
 * This header needs neither Node nor CUDA, so the code that allocates does not depend on them.
 *
 * Call every function on any thread, at any time until the release, even while the JavaScript thread
 * is blocked, and after the worker or the JavaScript object has ended. None enters JavaScript.
 */
#ifndef CISTERN_RESOURCE_H_
#define CISTERN_RESOURCE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where memory is, and who can access it. */
enum cistern_memory_kind { CISTERN_DEVICE = 0, CISTERN_MANAGED = 1, CISTERN_PINNED_HOST = 2, CISTERN_HOST = 3 };

/* The handles of the default streams, as CUDA has them (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD). */
enum { CISTERN_LEGACY_STREAM = 1, CISTERN_PER_THREAD_STREAM = 2 };

/* The results of functions. Later versions may add others. */
enum cistern_result {
  CISTERN_OK = 0,
  CISTERN_OUT_OF_MEMORY = 1,      /* of the resource */
  CISTERN_INVALID_ARGUMENT = 2,   /* an alignment that is no power of two, or too large */
  CISTERN_INVALID_POINTER = 3,    /* not allocated here, freed already, or of another size */
  CISTERN_STREAM_CAPTURED = 4,    /* the stream is being captured into a graph */
  CISTERN_HOST_OUT_OF_MEMORY = 5, /* no host memory for cistern's books */
  CISTERN_DRIVER_ERROR = 6,
  CISTERN_INTERNAL_ERROR = 7
};

/* Set `size` to sizeof the structure. */
typedef struct cistern_resource_statistics {
  size_t size;
  uint64_t live_bytes; /* as asked for */
  uint64_t live_allocations;
  uint64_t reserved_bytes; /* taken from the global arena, in superblocks */
} cistern_resource_statistics;

/*
 * A resource that any thread may call. Every member is constant until the release. `stream` is a
 * driver's handle (CUstream, cudaStream_t) of the resource's device; 0 is the legacy default stream.
 */
typedef struct cistern_thread_safe_resource {
  size_t size;
  int32_t device;
  int32_t memory_kind; /* enum cistern_memory_kind */
  void* state;         /* the first argument of every function */
  /*
   * Allocates at least `bytes` bytes at a multiple of `alignment` (a power of two, at most a superblock) and of
   * 256. Zero bytes give 0. Use the memory on `stream`, and on streams ordered after it.
   */
  int32_t (*allocate)(void* state, uint64_t bytes, uint64_t alignment, uint64_t stream, uint64_t* pointer);
  /* `bytes`: as requested at the allocation. Ordered on `stream`. If this fails, the memory is still allocated. */
  int32_t (*deallocate)(void* state, uint64_t pointer, uint64_t bytes, uint64_t alignment, uint64_t stream);
  void (*statistics)(void* state, cistern_resource_statistics* statistics);
  /* The error of this thread's last failed call, as a sentence; valid until its next call. */
  const char* (*last_error)(void* state);
  /* One more release is needed before the resource may end. */
  void (*retain)(void* state);
  /*
   * After the last release, use nothing of the table. Free everything before: memory that is still allocated
   * when the last table is released, and JavaScript's object has ended, is reclaimed only after a wait for the
   * device.
   */
  void (*release)(void* state);
  const void* identity; /* the same for every table of one JavaScript object */
  /*
   * Blocks this thread until the work queued on the stream has run. Do not call it on a thread that the stream may
   * be waiting for, such as JavaScript's while one of its host functions is queued.
   */
  int32_t (*synchronize)(void* state, uint64_t stream);
} cistern_thread_safe_resource;

/* Whether each can free memory of the other. */
static inline bool cistern_is_equal(const cistern_thread_safe_resource* a, const cistern_thread_safe_resource* b) {
  return a->identity == b->identity;
}

#ifdef __cplusplus
}
#endif

#endif /* CISTERN_RESOURCE_H_ */
