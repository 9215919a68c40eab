// The kernels of the decoder. NVRTC compiles this file when the program starts; without NVRTC, kernels.ptx is used, which was made of it:
// nvcc --ptx -arch=compute_75 -o kernels.ptx kernels.cu, and its version lowered to 7.0, so that drivers of CUDA 12 take it.

// Each row over the root of the mean of its squares. One block of 256 threads for each row.
extern "C" __global__ void normalize(const float *x, float *result, unsigned rows, unsigned width) {
  __shared__ float sums[256];
  const float *row = x + (unsigned long long)blockIdx.x * width;
  float sum = 0;
  for (unsigned i = threadIdx.x; i < width; i += 256) sum += row[i] * row[i];
  sums[threadIdx.x] = sum;
  for (unsigned half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  const float scale = rsqrtf(sums[0] / width + 1e-6f);
  for (unsigned i = threadIdx.x; i < width; i += 256) result[(unsigned long long)blockIdx.x * width + i] = row[i] * scale;
}

// Stands for attention: each row has a cache of its own, whose address the table has. The query is added to what the cache has of this layer,
// and half of the result is kept there for the next token. One block for each row.
extern "C" __global__ void attend(float *query, float *const *caches, unsigned rows, unsigned width, unsigned layer) {
  float *cache = caches[blockIdx.x] + (unsigned long long)layer * width;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const float sum = query[(unsigned long long)blockIdx.x * width + i] + cache[i];
    query[(unsigned long long)blockIdx.x * width + i] = sum;
    cache[i] = sum / 2;
  }
}

// What is negative becomes 0. One thread for each number.
extern "C" __global__ void activate(float *x, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) x[i] = fmaxf(x[i], 0);
}

// a has rows x inner numbers, b inner x columns; the product replaces what is in c, or is added to it. One thread for each number of c.
// Only where there is no cuBLAS: it is far slower.
extern "C" __global__ void multiply(const float *a, const float *b, float *c, unsigned rows, unsigned inner, unsigned columns, unsigned adds) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  const unsigned row = i / columns;
  const unsigned column = i % columns;
  float sum = adds ? c[i] : 0;
  for (unsigned k = 0; k < inner; ++k) sum += a[row * inner + k] * b[k * columns + column];
  c[i] = sum;
}
