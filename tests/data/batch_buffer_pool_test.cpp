// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/batch_buffer_pool.hpp"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "accelerate/data/parallel_for_samples.hpp"
#include "accelerate/data/sources/image_folder.hpp"
#include "accelerate/data/sources/mnist.hpp"
#include "accelerate/data/sources/tokens.hpp"
#include "accelerate/data/transforms/to_float.hpp"
#include "accelerate/data/transforms/transform.hpp"
#include "tests/data/sources/reads_png.hpp"
#include "tests/data/support.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::data::BatchBufferPool;
using accelerate::data::LoaderOptions;
using sources::index;
using sources::list;
using sources::Numbers;
using testing::TemporaryFolder;

namespace {

/// Counts LibTorch's CPU allocations of a given size.
class CountedMemory {
 public:
  explicit CountedMemory(size_t bytes) : counting_(bytes) { c10::SetCPUAllocator(&counting_); }
  ~CountedMemory() { c10::SetCPUAllocator(counting_.own); }
  [[nodiscard]] int64_t pieces() const { return counting_.count; }

 private:
  struct Counting final : c10::Allocator {
    explicit Counting(size_t size) : bytes(size) {}
    c10::DataPtr allocate(size_t size) override {
      if (size == bytes) ++count;
      return own->allocate(size);
    }
    [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return own->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t size) const override { own->copy_data(to, from, size); }
    c10::Allocator* own = c10::GetCPUAllocator();
    size_t bytes;
    std::atomic<int64_t> count{0};
  };
  Counting counting_;
};

/// Addresses of all batches of an epoch.
std::set<const void*> places(accelerate::data::Loader loader) {
  std::set<const void*> seen;
  for (auto& batch : loader) {
    seen.insert(batch.data.const_data_ptr());
    seen.insert(batch.target.const_data_ptr());
  }
  return seen;
}
std::set<const void*> places(const LoaderOptions& options) {
  return places(accelerate::data::from_tensors(torch::arange(4000).view({1000, 4}), torch::arange(1000), options));
}

}  // namespace

TEST_CASE("released memory is reused by the next request for as many bytes") {
  BatchBufferPool memory;
  auto first = memory.take({2, 3}, at::kFloat);
  const void* const place = first.const_data_ptr();
  const auto second = memory.take({2, 3}, at::kFloat);
  CHECK(second.const_data_ptr() != place);
  first.reset();
  CHECK(memory.take({5, 3}, at::kFloat).const_data_ptr() != place);
  const auto third = memory.take({6}, at::kInt);  // as many bytes
  CHECK(third.const_data_ptr() == place);
  CHECK(third.sizes() == at::IntArrayRef{6});
  CHECK((third.scalar_type() == at::kInt));
  CHECK(third.is_contiguous());
  CHECK(memory.take({0, 3}, at::kFloat).numel() == 0);
}

TEST_CASE("a view keeps the values of its batch, and changes to a batch do not reach the next one") {
  BatchBufferPool memory;
  auto batch = memory.take({4}, at::kLong);
  batch.copy_(index({1, 2, 3, 4}));
  const auto view = batch.slice(0, 2);
  batch.reset();
  auto next = memory.take({4}, at::kLong).fill_(9);
  CHECK(list(view) == Numbers{3, 4});
  next = next.to(at::kFloat);  // releases the memory
  auto changed = memory.take({4}, at::kFloat);
  changed.unsqueeze_(0);
  changed.requires_grad_();
  changed.reset();
  CHECK(memory.take({4}, at::kFloat).sizes() == at::IntArrayRef{4});
  CHECK_FALSE(memory.take({4}, at::kFloat).requires_grad());
}

TEST_CASE("a batch that autograd saved keeps its memory until backward") {
  BatchBufferPool memory;
  const auto weight = torch::ones({3}, at::TensorOptions().requires_grad(true));
  at::Tensor loss;
  {
    const auto batch = memory.take({3}, at::kFloat).fill_(2);
    loss = (weight * batch).sum();
  }
  memory.take({3}, at::kFloat).fill_(7);
  loss.backward();
  CHECK(weight.grad().equal(torch::full({3}, 2.0)));
}

TEST_CASE("a loop reuses memory for all its batches; workers need as many buffers as they prefetch") {
  CHECK(places({.batch_size = 10, .shuffle = true}).size() == 2);
  const auto ahead = places({.batch_size = 10, .num_workers = 2, .prefetch_factor = 3});
  CHECK(ahead.size() <= 2 * (2 * 3 + 1));
}

TEST_CASE("a steady loop allocates nothing, for any number of prefetched batches") {
  const auto data = torch::zeros({4000, 1000}, torch::kByte);
  const auto target = torch::zeros({4000, 125}, torch::kDouble);
  for (const int64_t workers : {0, 16}) {
    auto loader = accelerate::data::from_tensors(data, target, {.batch_size = 10, .num_workers = workers});
    const CountedMemory counted(10'000);  // bytes of a batch's data, and of its target
    for (int epoch = 0; epoch < 3; ++epoch) {
      for ([[maybe_unused]] auto& batch : loader) {
        if (workers > 0) std::this_thread::sleep_for(std::chrono::microseconds(200));  // all are read ahead
      }
    }
    CAPTURE(workers);
    CHECK(counted.pieces() >= 2);
    CHECK(counted.pieces() <= 2 * (2 * workers + 2));
  }
}

TEST_CASE("every batch that the user keeps retains its values") {
  auto loader = accelerate::data::from_tensors(torch::arange(600), torch::arange(600) * 10, {.batch_size = 2});
  std::vector<accelerate::data::Batch> kept;
  for (auto& batch : loader) kept.push_back(batch);
  CHECK(kept.size() == 300);
  for (size_t i = 0; i < kept.size(); ++i) {
    CHECK(list(kept[i].data) == Numbers{static_cast<int64_t>(2 * i), static_cast<int64_t>(2 * i + 1)});
    CHECK(kept[i].target.equal(kept[i].data * 10));
  }
}

TEST_CASE("several threads take buffers concurrently and never share one") {
  BatchBufferPool memory;
  std::vector<std::thread> threads;
  std::atomic<int64_t> wrong{0};
  for (int64_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (int64_t round = 0; round < 2000; ++round) {
        const auto mine = memory.take({8}, at::kLong);
        auto* const numbers = mine.mutable_data_ptr<int64_t>();
        std::fill_n(numbers, 8, id * 10000 + round);
        if (round % 64 == 0) std::this_thread::yield();
        for (int64_t i = 0; i < 8; ++i) wrong += numbers[i] != id * 10000 + round;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("digits, token blocks and bytes converted to floats use reusable memory") {
  namespace fs = std::filesystem;
  const LoaderOptions options{.batch_size = 100, .shuffle = true, .drop_last = true};
  CHECK(places(accelerate::data::mnist(fs::path(TEST_SOURCE_DIR "/examples/data/mnist"), options)).size() == 2);
  const TemporaryFolder folder;
  std::ofstream(folder.path / "x.bin") << std::string(4000, 'x');
  CHECK(places(accelerate::data::text_blocks({.path = folder.path / "x.bin", .block_size = 3}, {.batch_size = 50}))
            .size() == 2);
  const auto bytes = accelerate::data::memory_source(torch::zeros({1000, 5}, torch::kByte), torch::arange(1000));
  CHECK(places({accelerate::data::transform(bytes, accelerate::data::ToFloat()), options}).size() == 2);
}

TEST_CASE("images of a folder use reusable memory, as floats and as bytes") {
  if (!testing::reads_png()) return;
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path / "x");
  for (int i = 0; i < 12; ++i) {
    std::filesystem::copy_file(TEST_SOURCE_DIR "/tests/data/sources/recorded/images/rgb.png",
                               folder.path / "x" / (std::to_string(i) + ".png"));
  }
  for (const auto dtype : {torch::kFloat, torch::kByte}) {
    CHECK(places(accelerate::data::image_folder({.path = folder.path, .dtype = dtype}, {.batch_size = 3})).size() == 2);
  }
}

TEST_CASE("several threads make large batches of digits and tokens, with the samples of one thread") {
  const auto before = at::get_num_threads();
  at::set_num_threads(3);
  const auto check = [](const accelerate::data::Loader& loader, int64_t samples) {
    const auto numbers = torch::randint(loader.sample_count(), {samples}, torch::kLong);
    const auto all = loader.source()->read(numbers);
    for (const int64_t i : {int64_t{0}, samples / 2, samples - 1}) {
      const auto one = loader.source()->read(numbers.slice(0, i, i + 1));
      CHECK(all.data[i].equal(one.data[0]));
      CHECK(all.target[i].equal(one.target[0]));
    }
  };
  check(accelerate::data::mnist(std::filesystem::path(TEST_SOURCE_DIR "/examples/data/mnist"), {}), 3000);
  const TemporaryFolder folder;
  std::ofstream file(folder.path / "x.bin");
  for (int i = 0; i < 20000; ++i) file << static_cast<char>(i % 251) << static_cast<char>(i % 7);
  file.close();
  const auto text =
      accelerate::data::text_blocks({.path = folder.path / "x.bin", .block_size = 500, .vocabulary = 6400});
  check(text, 2000);
  at::set_num_threads(before);
}

TEST_CASE("parallel parts use LibTorch's number of threads; a worker, or few samples, use one") {
  const auto before = at::get_num_threads();
  at::set_num_threads(2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<int> calls(1000, 0);
  const auto numbers = torch::arange(1000);
  const auto part = [&](int64_t first, int64_t count) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    for (int64_t i = first; i < first + count; ++i) ++calls[static_cast<size_t>(i)];
  };
  accelerate::data::parallel_for_samples(numbers, 100, part);
  CHECK(threads.size() == 2);
  CHECK(calls == std::vector<int>(1000, 1));
  threads.clear();
  accelerate::data::parallel_for_samples(numbers, 1000, part);
  CHECK(threads == std::set{std::this_thread::get_id()});
  const auto failing = [](int64_t first, int64_t) {
    if (first > 0) throw std::runtime_error("a part");
  };
  CHECK_THROWS_WITH(accelerate::data::parallel_for_samples(numbers, 1, failing), "a part");
  at::set_num_threads(before);
}
