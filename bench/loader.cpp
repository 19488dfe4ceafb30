// SPDX-License-Identifier: Apache-2.0
// Shuffled batches of 60000 images of 28 x 28 bytes: as floats in [0, 1], unconverted, and copied as bytes; token
// blocks from a mapped file; JPEG images.
#include <accelerate/accelerate.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace data = accelerate::data;

namespace {

constexpr int64_t kImages = 60000;

/// Walks a loader for ever, a batch a step.
template <typename Loader>
class Endless {
 public:
  explicit Endless(Loader loader) : loader_(std::move(loader)) {}
  auto& step() {
    if (position_) ++*position_;
    if (!position_ || *position_ == loader_.end()) position_.emplace(loader_.begin());
    if ((**position_).data.numel() == 0) throw std::logic_error("an empty batch");
    return **position_;
  }
  /// Begins an epoch and takes its first batch.
  void begin() {
    position_.reset();
    position_.emplace(loader_.begin());
  }

 private:
  Loader loader_;
  std::optional<decltype(std::declval<Loader&>().begin())> position_;
};

template <typename Loader>
bench::Case walked(std::string name, Loader loader) {
  auto endless = std::make_shared<Endless<Loader>>(std::move(loader));
  return bench::timed(std::move(name), [endless] { endless->step(); });
}

/// torch::data's way: an image at a time, stacked; floats are made of a batch at once, which is faster than one by one.
struct TorchImages : torch::data::Dataset<TorchImages> {
  TorchImages(at::Tensor some_images, at::Tensor some_labels)
      : images(std::move(some_images)), labels(std::move(some_labels)) {}
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {images[i], labels[i]};
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(images.size(0)); }
  at::Tensor images, labels;
};

bench::Case torch_data(const at::Tensor& images, const at::Tensor& labels) {
  auto stacked = TorchImages(images, labels).map(torch::data::transforms::Stack<>());
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(std::move(stacked), 64);
  // Its end is no std::default_sentinel, and a second begin() before it is an error.
  struct Walk {
    decltype(loader) of;
    decltype(of->begin()) position = of->begin();
    at::Tensor floats{};
  };
  auto walk = std::make_shared<Walk>(Walk{std::move(loader)});
  return bench::timed("torch-data", [walk, first = true]() mutable {
    if (!std::exchange(first, false)) ++walk->position;
    if (walk->position == walk->of->end()) walk->position = walk->of->begin();
    walk->floats = walk->position->data.to(torch::kFloat).div_(255);
  });
}

bench::Case memcpy_of(int64_t rows) {
  const auto from = torch::randint(256, {kImages, 28, 28}, torch::kByte);
  const auto to = torch::empty({rows, 28, 28}, torch::kByte);
  return bench::timed(fmt::format("memcpy-{}", rows), [=, at = int64_t{0}]() mutable {
    at = (at + rows) % (kImages - rows);
    std::memcpy(to.data_ptr(), static_cast<const char*>(from.const_data_ptr()) + at * from.stride(0), to.nbytes());
  });
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator({.cpu = true});
  const auto images = torch::randint(256, {kImages, 28, 28}, torch::kByte);
  const auto labels = torch::randint(10, {kImages});
  const auto bytes = data::memory_source(images, labels);
  const auto floats = data::transform(bytes, data::ToFloat());
  const auto prepared = [&](const std::shared_ptr<const data::Source>& source, int64_t batch_size, int64_t workers) {
    return accelerator.prepare(
        data::Loader(source, {.batch_size = batch_size, .shuffle = true, .num_workers = workers}));
  };
  auto begun = std::make_shared<Endless<decltype(prepared(floats, 64, 0))>>(prepared(floats, 64, 0));
  std::vector<bench::Case> cases{walked("batch", prepared(floats, 64, 0)),
                                 walked("batch-1-worker", prepared(floats, 64, 1)),
                                 torch_data(images, labels),
                                 walked("gather-256", prepared(bytes, 256, 0)),
                                 memcpy_of(256),
                                 walked("gather-4096", prepared(bytes, 4096, 0)),
                                 memcpy_of(4096),
                                 bench::timed("epoch-start", [begun] { begun->begin(); })};
  if (const char* folder = std::getenv("ACCELERATE_BENCH_DATA")) {  // the driver's, made by peers/loader_data.py
    const std::filesystem::path files = folder;
    cases.push_back(
        walked("tokens", accelerator.prepare(data::text_blocks({.path = files / "tokens.bin", .block_size = 1024},
                                                               {.batch_size = 8, .shuffle = true}))));
    cases.push_back(walked("jpeg-2-workers",
                           accelerator.prepare(data::image_folder(
                               {.path = files / "images"}, {.batch_size = 32, .shuffle = true, .num_workers = 2}))));
  }
  return bench::serve(accelerator.process_index(), bench::about(accelerator), cases);
}
