// The kernels of examples/decoder, which the host computes as kernels.cu does.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "strict_driver/allocation.h"
#include "strict_driver/kernels.h"
#include "strict_driver/report.h"

namespace cistern::strict {
namespace {

using Floats = std::vector<float>;

Floats Read(const Words& words) {
  Floats floats(words.count);
  for (std::size_t i = 0; i < words.count; ++i) {
    const std::uint32_t word = words.first[i];
    std::memcpy(&floats[i], &word, sizeof word);
  }
  return floats;
}

void Write(const Words& words, const Floats& floats) {
  for (std::size_t i = 0; i < words.count; ++i) {
    std::uint32_t word;
    std::memcpy(&word, &floats[i], sizeof word);
    words.first[i] = word;
  }
}

void CheckLives(std::initializer_list<const Words*> all) {
  for (const Words* words : all) CheckLife(words->allocation, "a kernel of the decoder");
}

}  // namespace

void Normalize(const Parameters& parameters, Operation* operation) {
  const std::size_t rows = parameters[2];
  const std::size_t width = parameters[3];
  operation->run = [=, from = FindWords(operation, parameters[0], rows * width, false),
                    to = FindWords(operation, parameters[1], rows * width, true)] {
    CheckLives({&from, &to});
    Floats floats = Read(from);
    for (std::size_t row = 0; row < rows; ++row) {
      float* const first = floats.data() + row * width;
      float sum = 0;
      for (std::size_t i = 0; i < width; ++i) sum += first[i] * first[i];
      const float scale = 1 / std::sqrt(sum / static_cast<float>(width) + 1e-6F);
      for (std::size_t i = 0; i < width; ++i) first[i] *= scale;
    }
    Write(to, floats);
  };
}

void Attend(const Parameters& parameters, Operation* operation) {
  const std::size_t rows = parameters[2];
  const std::size_t width = parameters[3];
  const std::size_t layer = parameters[4];
  operation->run = [=, device = operation->device, query = FindWords(operation, parameters[0], rows * width, true),
                    caches = FindWords(operation, parameters[1], rows * 2, false)] {
    CheckLives({&query, &caches});
    Floats floats = Read(query);
    for (std::size_t row = 0; row < rows; ++row) {
      const std::uint64_t address = caches.first[2 * row] | static_cast<std::uint64_t>(caches.first[2 * row + 1]) << 32;
      // Where the caches are is known only now.
      Operation found;
      found.device = device;
      Lock lock(big_lock);
      const Words cache = FindWords(&found, address + layer * width * sizeof(float), width, true);
      lock.unlock();
      if (cache.first == nullptr) return;
      CheckLives({&cache});
      Floats kept = Read(cache);
      for (std::size_t i = 0; i < width; ++i) {
        float& value = floats[row * width + i];
        value += kept[i];
        kept[i] = value / 2;
      }
      Write(cache, kept);
    }
    Write(query, floats);
  };
}

void Activate(const Parameters& parameters, Operation* operation) {
  operation->run = [words = FindWords(operation, parameters[0], parameters[1], true)] {
    CheckLives({&words});
    Floats floats = Read(words);
    for (float& value : floats) value = std::max(value, 0.0F);
    Write(words, floats);
  };
}

void Multiply(const Parameters& parameters, Operation* operation) {
  const std::size_t rows = parameters[3];
  const std::size_t inner = parameters[4];
  const std::size_t columns = parameters[5];
  operation->run = [=, adds = parameters[6] != 0, first = FindWords(operation, parameters[0], rows * inner, false),
                    second = FindWords(operation, parameters[1], inner * columns, false),
                    result = FindWords(operation, parameters[2], rows * columns, true)] {
    CheckLives({&first, &second, &result});
    const Floats a = Read(first);
    const Floats b = Read(second);
    Floats c = adds ? Read(result) : Floats(rows * columns);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t k = 0; k < inner; ++k) {
        const float factor = a[row * inner + k];
        for (std::size_t column = 0; column < columns; ++column) c[row * columns + column] += factor * b[k * columns + column];
      }
    }
    Write(result, c);
  };
}

}  // namespace cistern::strict
