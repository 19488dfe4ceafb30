// SPDX-License-Identifier: Apache-2.0
// Batches of 60000 images of 28 x 28 bytes, shuffled: as floats in [0, 1], as they come, and their bytes copied.
#include <accelerate/accelerate.hpp>
#include <cstring>
#include <optional>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace data = accelerate::data;

namespace {

constexpr int64_t kImages = 60000;

/// Walks a prepared loader for ever, a batch a step.
template <typename Loader>
class Endless {
 public:
  explicit Endless(Loader loader) : loader_(std::move(loader)) {}
  void step() {
    if (position_) ++*position_;
    if (!position_ || *position_ == loader_.end()) position_.emplace(loader_.begin());
    if ((*position_)->data.numel() == 0) throw std::logic_error("an empty batch");
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
  auto alone = std::make_shared<Endless<decltype(prepared(floats, 64, 0))>>(prepared(floats, 64, 0));
  auto ahead = std::make_shared<Endless<decltype(prepared(floats, 64, 0))>>(prepared(floats, 64, 1));
  auto gathered = std::make_shared<Endless<decltype(prepared(bytes, 256, 0))>>(prepared(bytes, 256, 0));
  auto begun = std::make_shared<Endless<decltype(prepared(floats, 64, 0))>>(prepared(floats, 64, 0));

  const auto from = torch::randint(256, {kImages, 28, 28}, torch::kByte);
  const auto to = torch::empty({256, 28, 28}, torch::kByte);
  int64_t at = 0;
  const auto copy = [&from, &to, &at] {
    at = (at + 256) % (kImages - 256);
    std::memcpy(to.data_ptr(), from[at].data_ptr(), to.nbytes());
  };
  return bench::serve(
      accelerator.process_index(), bench::about(accelerator),
      {bench::timed("batch", [alone] { alone->step(); }), bench::timed("batch-1-worker", [ahead] { ahead->step(); }),
       bench::timed("gather-256", [gathered] { gathered->step(); }), bench::timed("memcpy-256", copy),
       bench::timed("epoch-start", [begun] { begun->begin(); })});
}
