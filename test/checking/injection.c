/* A tool that writes down what it is told through NVTX's memory extension, in the forms of NVTX's headers. Only tests load it. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { size_t id, slots; intptr_t* functions; } Segment;
typedef struct { uint16_t version, size, module, compatibility; size_t segments; Segment* first; void* function; const void* more; } Module;
typedef struct { size_t bytes; const void* pointer; } Range;
typedef struct { uint16_t compatibility, size; uint32_t reserved, usage, type; size_t bytes; const Range* range; } Heap;
typedef struct { uint16_t compatibility, size; uint32_t type; void* heap; size_t count, bytes; const Range* ranges; } Regions;
typedef struct { uint16_t compatibility, size; uint32_t type; size_t count, bytes; const void* const* regions; } Ends;

static FILE* out;
static uintptr_t last;

static void* HeapBegins(void* domain, const Heap* heap) {
  fprintf(out, "heap %zx %zu %d\n", (size_t)heap->range->pointer, heap->range->bytes,
          domain == NULL && heap->compatibility == 0x102 && heap->usage == 1 && heap->type == 1 && heap->bytes == sizeof(Range));
  return (void*)++last;
}
static void HeapEnds(void* domain, void* heap) { fprintf(out, "heap ends %zu\n", (size_t)heap), (void)domain; }
static void RegionBegins(void* domain, const Regions* regions) {
  fprintf(out, "region %zu %zx %zu %d\n", (size_t)regions->heap, (size_t)regions->ranges->pointer, regions->ranges->bytes,
          domain == NULL && regions->compatibility == 0x102 && regions->type == 1 && regions->count == 1 && regions->bytes == sizeof(Range));
}
static void RegionEnds(void* domain, const Ends* ends) {
  fprintf(out, "region ends %zx %d\n", (size_t)*ends->regions, domain == NULL && ends->type == 1 && ends->count == 1 && ends->bytes == sizeof(void*));
}

int InitializeInjectionNvtxExtension(Module* module) {
  const char* path = getenv("INJECTION_LOG");
  if (path == NULL || module->module != 1 || module->compatibility != 0x102 || module->first->slots < 6) return 0;
  out = fopen(path, "w");
  setlinebuf(out);
  module->first->functions[0] = (intptr_t)HeapBegins;
  module->first->functions[1] = (intptr_t)HeapEnds;
  module->first->functions[3] = (intptr_t)RegionBegins;
  module->first->functions[5] = (intptr_t)RegionEnds;
  return 1;
}
