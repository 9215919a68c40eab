"""Replays logs through the allocator of PyTorch or CuPy: python3 through_peers.py SUBJECT ROUNDS SECONDS LOG ..., a line of JSON for each log;
started by compare.mjs. SUBJECT 'python nothing' does nothing, to try this program without a GPU."""
import gc
import json
import os
import sys
import time

subject, rounds, seconds, paths = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
end = time.monotonic() + seconds

# PyTorch reads its settings once, when it is imported; the second name is that of newer versions.
settings = {"torch expandable_segments": "expandable_segments:True", "torch cudaMallocAsync": "backend:cudaMallocAsync"}
if subject in settings:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = settings[subject]


class Nothing:
    """Counts, so that a limit can be tried."""

    failure = MemoryError
    has_limit = True

    def __init__(self):
        self.used = self.most = 0
        self.most_allowed = None

    def allocate(self, size):
        if self.most_allowed is not None and self.used + size > self.most_allowed:
            raise MemoryError
        self.used += size
        self.most = max(self.most, self.used)
        return size

    def free(self, size):
        self.used -= size

    def reserved(self):
        return self.most

    def driver_calls(self):
        return None

    def limit(self, size):
        self.most_allowed = size

    def empty(self):
        self.most = self.used


class Torch:
    def __init__(self):
        import torch

        torch.cuda.init()
        self.cuda = torch.cuda
        self.failure = torch.cuda.OutOfMemoryError
        # That of cudaMallocAsync counts live bytes, so that every log completes at its peak.
        self.has_limit = subject != "torch cudaMallocAsync"
        self.total = torch.cuda.get_device_properties(0).total_memory
        stream = torch.cuda.current_stream().cuda_stream
        raw = torch._C._cuda_cudaCachingAllocator_raw_alloc
        self.allocate = lambda size: raw(size, stream)
        self.free = torch._C._cuda_cudaCachingAllocator_raw_delete

    def reserved(self):
        return self.cuda.memory_stats().get("reserved_bytes.all.peak")

    def driver_calls(self):
        # Those that take memory from the device and give it back; other calls are not counted by PyTorch.
        if subject == "torch cudaMallocAsync":
            return None
        statistics = self.cuda.memory_stats()
        return statistics.get("num_device_alloc", 0) + statistics.get("num_device_free", 0)

    def limit(self, size):
        self.cuda.set_per_process_memory_fraction(1.0 if size is None else min(1.0, size / self.total))

    def empty(self):
        self.cuda.synchronize()
        self.cuda.empty_cache()
        self.cuda.reset_peak_memory_stats()


class CuPy:
    def __init__(self):
        import cupy

        self.runtime = cupy.cuda.runtime
        self.failure = cupy.cuda.memory.OutOfMemoryError
        self.is_asynchronous = subject == "cupy MemoryAsyncPool"
        self.has_limit = not self.is_asynchronous
        self.pool = cupy.cuda.MemoryAsyncPool() if self.is_asynchronous else cupy.cuda.MemoryPool()
        self.allocate = self.pool.malloc

    def free(self, _memory):
        """The memory is free when nothing refers to it."""

    def reserved(self):
        if not self.is_asynchronous:
            return self.pool.total_bytes()
        pool = self.runtime.deviceGetDefaultMemPool(0)
        return self.runtime.memPoolGetAttribute(pool, self.runtime.cudaMemPoolAttrReservedMemHigh)

    def driver_calls(self):
        return None

    def limit(self, size):
        self.pool.set_limit(size=0 if size is None else size)

    def empty(self):
        self.runtime.deviceSynchronize()
        self.pool.free_all_blocks()


def replay(allocate, free, log):
    """Nanoseconds of all operations."""
    sizes, operations = log["sizes"], log["operations"]
    pointers = [None] * len(sizes)
    began = time.perf_counter_ns()
    for n in operations:
        if n >= 0:
            pointers[n] = allocate(sizes[n])
        else:
            free(pointers[~n])
            pointers[~n] = None
    spent = time.perf_counter_ns() - began
    for pointer in pointers:
        if pointer is not None:
            free(pointer)
    return spent


def completes(allocator, log, size):
    sizes = log["sizes"]
    allocator.empty()
    allocator.limit(size)
    pointers = {}
    try:
        for n in log["operations"]:
            if n >= 0:
                pointers[n] = allocator.allocate(sizes[n])
            else:
                allocator.free(pointers.pop(~n))
        return True
    except allocator.failure:
        return False
    finally:
        while pointers:
            allocator.free(pointers.popitem()[1])
        allocator.limit(None)
        allocator.empty()


def capacity_of(allocator, log):
    """By the same limits as through-cistern.mjs."""
    if not allocator.has_limit:
        return "no limit counts what it holds"
    ratio = 1.0
    while ratio <= 3:
        if time.monotonic() > end:
            return f"above {ratio:.3f}, not searched to its end"
        if completes(allocator, log, int(log["peakBytes"] * ratio)):
            return round(ratio, 3)
        ratio += 0.01 if ratio < 1.095 else 0.025 if ratio < 1.495 else 0.1
    return "above 3"


def answer(allocator, log):
    allocator.empty()
    times = []
    calls = None
    for done in range(rounds):
        if done >= 2 and time.monotonic() > end:
            break
        before = allocator.driver_calls()
        times.append(replay(allocator.allocate, allocator.free, log))
        calls = None if before is None else allocator.driver_calls() - before
    reserved = allocator.reserved()
    own = min(replay(lambda size: size, lambda pointer: None, log) for _ in range(3))
    count = len(log["operations"])
    figures = {
        "log": log["name"],
        "operations": count,
        "peakBytes": log["peakBytes"],
        "nanoseconds": round(min(times) / count),
        "firstNanoseconds": round(times[0] / count),
        "loopNanoseconds": round(own / count),
        "driverCalls": calls,
        "reservedBytes": reserved,
        "capacity": capacity_of(allocator, log),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


try:
    chosen = {"torch": Torch, "cupy": CuPy, "python": Nothing}[subject.split()[0]]()
except ImportError as error:
    print(json.dumps({"skipped": f"{error.name or error} is not installed for {sys.executable}"}))
    sys.exit()
except Exception as error:
    print(json.dumps({"skipped": f"it cannot use the device: {type(error).__name__}: {error}"}))
    sys.exit()
for path in paths:
    with open(path) as file:
        each = json.load(file)
    gc.disable()
    print(json.dumps(answer(chosen, each)), flush=True)
    gc.enable()
