/* Stands in for NVIDIA's management library: one GPU, one instance of another, and one device whose users nobody is told. */
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } Process;

static char gpu, instance, secret;

int nvmlInit_v2(void) { return getenv("NVML_STAND_IN_FAILS") == NULL ? 0 : 9; }

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (strcmp(uuid, "GPU-00112233-4455-6677-8899-aabbccddeeff") == 0) *device = &gpu;
  else if (strcmp(uuid, "MIG-11111111-2222-3333-4444-555555555555") == 0) *device = &instance;
  else if (strcmp(uuid, "GPU-99999999-9999-9999-9999-999999999999") == 0) *device = &secret;
  else return 6;
  return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void* device, Memory* memory) {
  if (memory->version != (sizeof *memory | (2u << 24))) return 25;
  memory->total = device == &gpu ? 80ull << 30 : 10ull << 30;
  memory->used = 61ull << 30;
  memory->reserved = 1ull << 29;
  memory->free = device == &gpu ? 18ull << 30 : 9ull << 30;
  return 0;
}

static int list(Process* from, unsigned found, unsigned* count, Process* processes) {
  const unsigned room = *count;
  *count = found;
  if (room < found) return 7;
  for (unsigned i = 0; i < found; i++) processes[i] = from[i];
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
  if (device == &secret) return 4;
  if (device == &instance) {
    static Process many[100];
    for (unsigned i = 0; i < 100; i++) many[i] = (Process){1000000 + i, 1ull << 20, 1, 0};
    return list(many, 100, count, processes);
  }
  Process here[] = {{(unsigned)atoi(getenv("NVML_STAND_IN_PID")), 2ull << 30, 0, 0}, {4000000, 61ull << 30, 0, 0}};
  return list(here, 2, count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
  Process here[] = {{4000000, 61ull << 30, 0, 0}, {4000001, ~0ull, 0, 0}};
  return list(here, device == &gpu ? 2 : 0, count, processes);
}
