// SPDX-License-Identifier: Apache-2.0
// Reordering of tensors, and of the batches of Accelerate's and foreign loaders.
#include "tests/testing.hpp"
//
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "accelerate/prepared/memory_format.hpp"
#include "tests/accelerator/ranks.hpp"

namespace memory_format_batches {

using accelerate::Accelerator;
using accelerate::MemoryFormat;
using accelerate::prepared::in_memory_format;
using accelerate::prepared::set_memory_format;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

/// [rows, 3, 4, 4] with the numbers of its rows.
at::Tensor pixels(int64_t first, int64_t rows) {
  return torch::arange(first, first + rows, at::kFloat).view({-1, 1, 1, 1}).repeat({1, 3, 4, 4});
}

struct Sample {
  at::Tensor image, label;
  std::string name;
};
auto tree_members(Sample& s) { return std::tie(s.image, s.label, s.name); }

const accelerate::AcceleratorOptions kOptions{.cpu = true, .memory_format = MemoryFormat::channels_last};

TEST_CASE("tensors with the format's number of dimensions are reordered, values and shapes stay") {
  const at::Tensor image = torch::randn({2, 3, 4, 5}), video = torch::randn({2, 3, 4, 5, 6});
  const at::Tensor last = in_memory_format(image, MemoryFormat::channels_last);
  CHECK(last.is_contiguous(kLast));
  CHECK(last.equal(image));
  CHECK(last.sizes() == image.sizes());
  CHECK(in_memory_format(last, MemoryFormat::channels_last).is_same(last));
  CHECK(in_memory_format(video, MemoryFormat::channels_last).is_same(video));
  CHECK(in_memory_format(image, MemoryFormat::channels_last_3d).is_same(image));
  CHECK(in_memory_format(video, MemoryFormat::channels_last_3d).is_contiguous(at::MemoryFormat::ChannelsLast3d));
  CHECK(in_memory_format(last, MemoryFormat::contiguous).is_same(last));
  CHECK_FALSE(in_memory_format({}, MemoryFormat::channels_last).defined());
  const at::Tensor sparse = torch::zeros({1, 2, 3, 4}).to_sparse();
  CHECK(in_memory_format(sparse, MemoryFormat::channels_last).is_same(sparse));
  CHECK(in_memory_format(torch::zeros({2, 3, 4, 5}, at::kByte), MemoryFormat::channels_last).is_contiguous(kLast));
  // LibTorch recognises the format of images with one channel by their strides.
  const at::Tensor grey = in_memory_format(torch::randn({2, 1, 4, 4}), MemoryFormat::channels_last);
  CHECK((grey.suggest_memory_format() == kLast));
  CHECK(in_memory_format(torch::zeros({0, 3, 4, 5}), MemoryFormat::channels_last).sizes() ==
        at::IntArrayRef({0, 3, 4, 5}));
}

TEST_CASE("tensors in place keep their identity, requires_grad and gradient") {
  const at::Tensor weight = torch::randn({4, 3, 2, 2}).requires_grad_(), flat = torch::randn({4}).requires_grad_();
  const at::Tensor values = weight.detach().clone();
  weight.mutable_grad() = torch::arange(48, at::kFloat).view({4, 3, 2, 2});
  const at::Tensor gradient = weight.grad().clone();
  (weight * 2).sum().backward();
  set_memory_format({{"weight", weight}, {"flat", flat}, {"none", {}}}, MemoryFormat::channels_last);
  CHECK(weight.is_contiguous(kLast));
  CHECK(weight.equal(values));
  CHECK(weight.requires_grad());
  CHECK(weight.is_leaf());
  CHECK(weight.grad().is_contiguous(kLast));
  CHECK(weight.grad().equal(gradient + 2));
  (weight * 3).sum().backward();
  CHECK(weight.grad().is_contiguous(kLast));
  CHECK(weight.grad().equal(gradient + 5));
}

TEST_CASE("batches of Accelerate's loaders are reordered on 1 and 2 ranks, with and without dispatch") {
  for (const int64_t ranks : {1, 2}) {
    for (const bool dispatches : {false, true}) {
      auto options = kOptions;
      options.dispatch_batches = dispatches;
      on_ranks(
          ranks,
          [](Accelerator& accelerator) {
            auto loader =
                accelerator.prepare(accelerate::data::from_tensors(pixels(0, 7), torch::arange(7), {.batch_size = 2}));
            std::vector<int64_t> seen;
            for (auto& batch : loader) {
              CHECK(batch.data.is_contiguous(kLast));
              CHECK(batch.data.select(1, 2).select(1, 3).select(1, 1).to(at::kLong).equal(batch.target));
              const auto all = accelerator.gather_for_metrics(batch.data.select(1, 0).select(1, 0).select(1, 0));
              for (const int64_t one : numbers(all)) seen.push_back(one);
            }
            std::sort(seen.begin(), seen.end());
            CHECK(seen == up_to(7));  // the padding was recognised by the memory of the reordered batch
            for (auto& batch : loader.skip_first_batches(1)) CHECK(batch.data.is_contiguous(kLast));
          },
          options);
    }
  }
}

TEST_CASE("batches of foreign loaders are reordered in every structure, without changing their tensors") {
  for (const int64_t ranks : {1, 2}) {
    on_ranks(
        ranks,
        [](Accelerator& accelerator) {
          const auto count = [&](auto& batches, const auto& image_of) {
            auto loader = accelerator.prepare(batches);
            int64_t found = 0;
            for (auto& batch : loader) {
              CHECK(image_of(batch).is_contiguous(kLast));
              ++found;
            }
            for (const auto& batch : batches) CHECK(image_of(batch).is_contiguous());
            CHECK(found * accelerator.num_processes() == 4);
          };
          std::vector<at::Tensor> plain;
          std::vector<std::map<std::string, at::Tensor>> named;
          std::vector<Sample> structs;
          for (int64_t i = 0; i < 4; ++i) {
            plain.push_back(pixels(2 * i, 2));
            named.push_back({{"x", pixels(2 * i, 2)}, {"y", torch::arange(2)}});
            structs.push_back({pixels(2 * i, 2), torch::arange(2), "batch"});
          }
          count(plain, [](const at::Tensor& batch) { return batch; });
          count(named, [](const auto& batch) { return batch.at("x"); });
          count(structs, [](const Sample& batch) { return batch.image; });
        },
        kOptions);
  }
}

TEST_CASE("batches of LibTorch's loaders are reordered") {
  Accelerator accelerator(kOptions);
  auto dataset = torch::data::datasets::TensorDataset(std::vector<at::Tensor>{pixels(0, 1)[0], pixels(1, 1)[0]})
                     .map(torch::data::transforms::Stack<torch::data::TensorExample>());
  auto loader = accelerator.prepare(torch::data::make_data_loader(std::move(dataset), 2));
  int64_t batches = 0;
  for (auto& batch : loader) {
    CHECK(batch.data.is_contiguous(kLast));
    CHECK(batch.data.sizes() == at::IntArrayRef({2, 3, 4, 4}));
    ++batches;
  }
  CHECK(batches == 1);
}

}  // namespace memory_format_batches
