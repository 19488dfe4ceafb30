// SPDX-License-Identifier: Apache-2.0
// A forward of 64 x Linear(2048) with one row, 1.07 GB of weights in a file, beside reading the same bytes once: with
// the pages of the file in memory, and without them, so that each forward reads the disk.
#include <fcntl.h>
#include <unistd.h>

#include <accelerate/accelerate.hpp>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace fs = std::filesystem;

namespace {

constexpr int64_t kWidth = 2048, kLayers = 64;

torch::nn::Sequential wide_layers() {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  return net;
}

/// The file of the weights.
class File {
 public:
  explicit File(const fs::path& path) : bytes_(fs::file_size(path)), descriptor_(::open(path.c_str(), O_RDONLY)) {
    if (descriptor_ < 0 || ::fsync(descriptor_) != 0) throw std::runtime_error(path.string() + " cannot be read");
    for (auto& buffer : buffers_) buffer.resize(kWidth * kWidth * sizeof(float));
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  /// Reads the bytes once, in parts of one layer into two buffers in turn, which are as much memory as an offload uses.
  void read() {
    size_t part = 0;
    for (size_t begin = 0; begin < bytes_;) {
      auto& buffer = buffers_[part++ % buffers_.size()];
      const ssize_t count = ::pread(descriptor_, buffer.data(), buffer.size(), static_cast<off_t>(begin));
      if (count <= 0) throw std::runtime_error("the weights cannot be read");
      begin += static_cast<size_t>(count);
    }
  }
  /// Removes the file's pages from memory.
  void drop_pages() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

 private:
  size_t bytes_;
  int descriptor_;
  std::array<std::vector<char>, 2> buffers_{};
};

/// A case with steps that read the disk, because no page of the file is in memory.
bench::Case from_disk(std::string name, const File& file, const std::function<void()>& step) {
  return {std::move(name), [&file, step](int64_t iterations) {
            double seconds = 0;
            for (int64_t i = 0; i < iterations; ++i) {
              file.drop_pages();
              const auto start = std::chrono::steady_clock::now();
              step();
              seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
            }
            return seconds / static_cast<double>(iterations);
          }};
}

}  // namespace

int main() {
  const char* given = std::getenv("ACCELERATE_BENCH_DATA");  // an empty folder that bench/run creates
  if (given == nullptr) {
    fmt::print(stderr, "bench_offload: is started by bench/run, which makes its folder\n");
    return 2;
  }
  const torch::NoGradGuard no_grad;
  const accelerate::Accelerator accelerator({.cpu = true});
  torch::manual_seed(1);
  auto net = wide_layers();
  const auto x = torch::randn({1, kWidth});
  const auto expected = net->forward(x);
  accelerate::disk_offload(*net, fs::path(given) / "ours");
  const auto forward = [&] {
    if (!net->forward(x).equal(expected)) throw std::runtime_error("the offloaded model computes other values");
  };
  forward();  // the first forward records the order of the layers
  File file(fs::path(given) / "ours" / "model.safetensors");
  const auto read = [&] { file.read(); };
  return bench::serve(0, bench::about(accelerator),
                      {bench::timed("forward", forward), bench::timed("read", read),
                       from_disk("forward-disk", file, forward), from_disk("read-disk", file, read)});
}
