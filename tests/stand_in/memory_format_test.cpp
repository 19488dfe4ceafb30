// SPDX-License-Identifier: Apache-2.0
// channels_last on a device: batches are reordered after the copy, and training gives the numbers of the CPU.
#include "tests/stand_in/ranks.hpp"

namespace memory_format_on_devices {

using accelerate::Accelerator;
using accelerate::MemoryFormat;
using stand_in::same_as_on_cpu;
using stand_in::Tensors;

/// [n, 3, 6, 6] and labels.
accelerate::data::Loader images(int64_t samples, accelerate::data::LoaderOptions options) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{5});
  const at::Tensor pixels = at::randn({samples, 3, 6, 6}, generator);
  return accelerate::data::from_tensors(pixels, torch::arange(samples) % 4, options);
}

bool is_last(const at::Tensor& tensor) { return tensor.suggest_memory_format() == at::MemoryFormat::ChannelsLast; }

TEST_CASE("batches on the device have the format, copied ahead or on demand") {
  accelerate::AcceleratorOptions options;
  options.memory_format = MemoryFormat::channels_last;
  for (const auto pinned : {std::optional<bool>(), std::optional(false)}) {
    same_as_on_cpu(
        [pinned](Accelerator& accelerator) -> Tensors {
          Tensors found;
          for (auto& batch : accelerator.prepare(images(11, {.batch_size = 2, .pin_memory = pinned}))) {
            CHECK(is_last(batch.data));
            CHECK(batch.data.device() == accelerator.device());
            found.push_back(batch.data * 2);
            found.push_back(batch.target);
          }
          return found;
        },
        options);
  }
}

TEST_CASE("a net trains on the device in channels_last as on the CPU") {
  accelerate::AcceleratorOptions options;
  options.memory_format = MemoryFormat::channels_last;
  same_as_on_cpu(
      [](Accelerator& accelerator) -> Tensors {
        auto net = stand_in::made_equal([] {
          return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::ReLU(), torch::nn::Conv2d(4, 4, 1),
                                       torch::nn::Flatten(), torch::nn::Linear(64, 4));
        });
        auto [model, optimizer, loader] =
            accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
                                images(12, {.batch_size = 3}));
        for (auto& batch : loader) {
          optimizer.zero_grad();
          accelerator.backward(torch::cross_entropy_loss(model(batch.data), batch.target));
          optimizer.step();
        }
        for (const auto& parameter : net->parameters()) {
          if (parameter.dim() != 4) continue;
          CHECK(is_last(parameter));
          CHECK(parameter.grad().strides() == parameter.strides());
        }
        return net->parameters();
      },
      options);
}

}  // namespace memory_format_on_devices
