"""The decoder of main.js in PyTorch, with torch.cuda.graph and PyTorch's own allocator: the same shapes and options, and the same four numbers."""
import argparse
import json
import re
import sys
import time

try:
    import torch
except ImportError:
    print(json.dumps({"skipped": f"torch is not installed for {sys.executable}"}))
    sys.exit()
if not torch.cuda.is_available():
    print(json.dumps({"skipped": "torch finds no GPU"}))
    sys.exit()

BATCH_SIZES = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]


def size(text):
    number, unit = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB)", text).groups()
    return int(number) * 1024 ** ["B", "KiB", "MiB", "GiB"].index(unit)


parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--tokens", type=int, default=8)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--requests", type=int, default=32)
parser.add_argument("--cache", type=size, default=size("2MiB"))
parser.add_argument("--sleep", type=size, default=size("64MiB"))
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
layers, width = options.layers, options.width
device = torch.device("cuda")


def matrix(rows, columns):
    return (torch.rand(rows, columns, device=device) * 2 - 1) * (3 / rows) ** 0.5


weights = [[matrix(width, width), matrix(width, width), matrix(width, 4 * width), matrix(4 * width, width)] for _ in range(layers)]
hidden = torch.ones(BATCH_SIZES[-1], width, device=device)
caches = torch.zeros(BATCH_SIZES[-1], layers, width, device=device)


def normalized(x):
    return x * torch.rsqrt(x.pow(2).mean(dim=1, keepdim=True) + 1e-6)


def step(rows):
    x = hidden[:rows]
    for layer, (query, output, up, down) in enumerate(weights):
        mixed = normalized(x) @ query + caches[:rows, layer]
        caches[:rows, layer] = mixed / 2
        x.addmm_(mixed, output)
        x.addmm_((normalized(x) @ up).relu_(), down)


def captured(share):
    """The graphs of all batch sizes, each with a private pool, or with one for all; and the bytes that the pools hold."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for rows in (BATCH_SIZES[0], BATCH_SIZES[-1]):
            step(rows)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graphs = {}
    pool = torch.cuda.graph_pool_handle() if share else None
    # The largest first, as PyTorch advises for a pool that is shared.
    for rows in reversed(BATCH_SIZES):
        graphs[rows] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[rows], pool=pool, stream=stream):
            step(rows)
    torch.cuda.synchronize()
    return graphs, torch.cuda.memory_reserved() - before


def tokens_a_second(graph):
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(options.tokens):
        graph.replay()
    torch.cuda.synchronize()
    return options.batch * options.tokens / (time.perf_counter() - began)


def requests_with_half_of_the_memory():
    """Those whose caches fit: there is no room for the others, and nothing that lets caches leave."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    limit = torch.cuda.memory_reserved() + options.requests // 2 * options.cache
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    held = []
    try:
        for _ in range(options.requests):
            held.append(torch.zeros(options.cache, dtype=torch.uint8, device=device))
    except torch.cuda.OutOfMemoryError:
        pass
    finished = len(held)
    held.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    return finished


def sleep_and_wake():
    """By copies; what used the memory needs its new address afterwards."""
    model = torch.full((options.sleep,), 7, dtype=torch.uint8, device=device)
    torch.cuda.synchronize()
    began = time.perf_counter()
    kept = torch.empty(options.sleep, dtype=torch.uint8, pin_memory=True)
    kept.copy_(model, non_blocking=True)
    torch.cuda.synchronize()
    del model
    torch.cuda.empty_cache()
    slept = time.perf_counter()
    model = kept.to(device, non_blocking=True)
    torch.cuda.synchronize()
    woken = time.perf_counter()
    assert int(model[-1]) == 7
    return slept - began, woken - slept


own, bytes_of_private = captured(share=False)
del own
torch.cuda.empty_cache()
shared, bytes_of_shared = captured(share=True)
speed = tokens_a_second(shared[options.batch])
del shared
finished = requests_with_half_of_the_memory()
slept, woken = sleep_and_wake()
numbers = {
    "device": torch.cuda.get_device_name(0),
    "torch": torch.__version__,
    "tokensASecond": speed,
    "graphs": len(BATCH_SIZES),
    "bytesOfGraphs": bytes_of_private,
    "bytesOfGraphsInOnePool": bytes_of_shared,
    "requests": options.requests,
    "finished": finished,
    "sleepBytes": options.sleep,
    "sleepSeconds": slept,
    "wakeSeconds": woken,
}
print(json.dumps(numbers, indent=None if options.json else 2))
