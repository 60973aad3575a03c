// Times of calls on the GPU: medians of replays of a CUDA graph whose nodes rotate over operands that
// together do not fit into the cache, beside the time that a plain copy takes for the same bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cuda/check.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/dtype.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::bench {

// Memory of the GPU, freed at the end of its scope.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) { cuda::check(cudaMalloc(&data_, bytes)); }
  template <class T>
  explicit Memory(const std::vector<T>& values) : Memory(values.size() * sizeof(T)) {
    cuda::check(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice));
  }
  Memory(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  template <class T>
  void copy_to(std::vector<T>& values) const {  // after all work of the GPU
    cuda::check(cudaDeviceSynchronize());
    cuda::check(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost));
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// The least that a call must do.
struct Work {
  Work(std::size_t bytes_moved, double operations = 0) : bytes(bytes_moved), flop(operations) {}
  std::size_t bytes;
  double flop;
};

struct Row {
  std::string op, shape;
  double us, floor_us, flop;
};

class Bench {
 public:
  Bench();

  // Random elements, since zeros run faster than real numbers.
  template <class T>
  void fill(T* to, std::int64_t size, double deviation = 1) const {
    std::vector<T> tile(static_cast<std::size_t>(std::min<std::int64_t>(size, 1 << 20)));
    std::mt19937 engine(std::random_device{}());
    std::normal_distribution<float> draw(0, static_cast<float>(deviation));
    for (T& x : tile) x = from_float<T>(draw(engine));
    cuda::check(cudaMemcpy(to, tile.data(), tile.size() * sizeof(T), cudaMemcpyHostToDevice));
    for (std::int64_t filled = std::ssize(tile); filled < size; filled *= 2) {
      const auto count = static_cast<std::size_t>(std::min(filled, size - filled));
      cuda::check(cudaMemcpy(to + filled, to, count * sizeof(T), cudaMemcpyDeviceToDevice));
    }
  }

  // How many sets of operands of so many bytes the calls rotate over.
  static std::int64_t sets_of(std::size_t bytes);

  // record(device, set) puts one call into the stream. The floor is of the bytes alone.
  using Record = std::function<void(const Cuda& device, std::int64_t set)>;
  void measure(const std::string& op, const std::string& shape, const Work& work, std::int64_t sets,
               const Record& record);

  double copy_bytes_per_us() const { return copy_bytes_per_us_; }
  const std::vector<Row>& rows() const { return rows_; }

 private:
  double median_us(const std::function<void()>& work, int repetitions) const;
  // Of one of the calls of a graph.
  double graph_us(std::int64_t sets, std::int64_t nodes, int repetitions,
                  const Record& record) const;

  cudaStream_t stream_ = nullptr;
  double copy_bytes_per_us_ = 0;
  std::vector<Row> rows_;
};

// Each in a file of its own.
void bench_varlen_causal_conv(Bench& bench);
void bench_dflash2_dynamic_conv(Bench& bench);
void bench_gated_delta_rates(Bench& bench);
void bench_gated_delta_net(Bench& bench);
void bench_replays(Bench& bench);
void write_results(const std::string& folder);

}  // namespace deltaworks::bench
