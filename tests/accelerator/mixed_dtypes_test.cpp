// SPDX-License-Identifier: Apache-2.0
// One model and one optimizer with parameters of several dtypes, compared with a plain LibTorch loop in one process.
#include "tests/testing.hpp"
//
#include <torch/nn/utils/clip_grad.h>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;

namespace {

using MixedTensors = std::vector<at::Tensor>;
constexpr int64_t kMixedMicroBatches = 8, kMixedWindow = 2;
constexpr double kMixedMaxNorm = 0.05;

at::Tensor sine_waves(at::IntArrayRef shape, double start, at::ScalarType dtype) {
  return torch::sin(torch::arange(c10::multiply_integers(shape), at::kDouble) * 1.7 + start).view(shape).to(dtype);
}

/// float64, then float32, then the requested dtype. Only rank 0 uses of_first; no rank uses idle.
struct MixedNetImpl : torch::nn::Module {
  explicit MixedNetImpl(at::ScalarType last) {
    wide = register_parameter("wide", sine_waves({3, 4}, 1, at::kDouble));
    of_first = register_parameter("of_first", sine_waves({4}, 2, at::kDouble));
    idle = register_parameter("idle", sine_waves({2}, 3, at::kDouble));
    middle = register_parameter("middle", sine_waves({4, 3}, 4, at::kFloat));
    narrow = register_parameter("narrow", sine_waves({3, 2}, 5, last));
  }
  at::Tensor forward(const at::Tensor& x, bool first) {
    at::Tensor h = torch::tanh(x.matmul(wide));
    if (first) h = h + of_first;
    h = torch::tanh(h.to(at::kFloat).matmul(middle));
    return h.to(narrow.scalar_type()).matmul(narrow).to(at::kDouble);
  }
  at::Tensor wide, of_first, idle, middle, narrow;
};
TORCH_MODULE(MixedNet);

at::Tensor mixed_loss(const at::Tensor& output) { return output.pow(2).mean(); }
at::Tensor mixed_batch(int64_t rank, int64_t micro_batch) {
  return sine_waves({5, 3}, 11.0 * static_cast<double>(rank) + 0.3 * static_cast<double>(micro_batch), at::kDouble);
}

/// Two groups; the options of the second one change after two windows.
template <typename Optimizer, typename Options>
Optimizer in_two_groups(const MixedTensors& parameters, const Options& options) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(MixedTensors{parameters.begin(), parameters.begin() + 2}, std::make_unique<Options>(options));
  groups.emplace_back(MixedTensors{parameters.begin() + 2, parameters.end()}, std::make_unique<Options>(options));
  return Optimizer(std::move(groups), options);
}
template <typename Options>
void change_second_group(torch::optim::Optimizer& optimizer, int64_t micro_batch) {
  if (micro_batch != 3) return;
  static_cast<Options&>(optimizer.param_groups()[1].options()).lr(0.03).weight_decay(0.3);
}

/// LibTorch clips and steps on the means over ranks and micro-batches. Returns the parameters and each norm.
template <typename Optimizer, typename Options>
MixedTensors trained_by_libtorch(int64_t ranks, const Options& options, at::ScalarType last) {
  MixedNet net(last);
  const MixedTensors parameters = net->parameters();
  auto optimizer = in_two_groups<Optimizer>(parameters, options);
  MixedTensors norms;
  for (int64_t micro = 0; micro < kMixedMicroBatches; ++micro) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      (mixed_loss(net(mixed_batch(rank, micro), rank == 0)) / static_cast<double>(kMixedWindow * ranks)).backward();
    }
    if (micro % kMixedWindow == kMixedWindow - 1) {
      norms.push_back(torch::scalar_tensor(torch::nn::utils::clip_grad_norm_(parameters, kMixedMaxNorm), at::kDouble));
      optimizer.step();
      optimizer.zero_grad();
    }
    change_second_group<Options>(optimizer, micro);
  }
  MixedTensors all = parameters;
  all.insert(all.end(), norms.begin(), norms.end());
  return all;
}

template <typename Optimizer, typename Options>
MixedTensors trained_prepared(Accelerator& accelerator, const Options& of_optimizer, at::ScalarType last) {
  MixedNet net(last);
  auto stock = in_two_groups<Optimizer>(net->parameters(), of_optimizer);
  auto [model, optimizer] = accelerator.prepare(net, stock);
  MixedTensors norms;
  for (int64_t micro = 0; micro < kMixedMicroBatches; ++micro) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(
        mixed_loss(model(mixed_batch(accelerator.process_index(), micro), accelerator.is_main_process())));
    const at::Tensor norm = accelerator.clip_grad_norm_(model, kMixedMaxNorm);
    if (accelerator.sync_gradients()) norms.push_back(norm);
    optimizer.step();
    optimizer.zero_grad();
    change_second_group<Options>(stock, micro);
  }
  MixedTensors all = net->parameters();
  all.insert(all.end(), norms.begin(), norms.end());
  return all;
}

template <typename Optimizer, typename Options>
void check_mixed(const Options& of_optimizer, at::ScalarType last, double tolerance,
                 const accelerate::gradient::CommHook& hook = {}) {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    const MixedTensors expected = trained_by_libtorch<Optimizer>(ranks, of_optimizer, last);
    AcceleratorOptions options{.cpu = true, .gradient_accumulation_steps = kMixedWindow};
    options.comm_hook = hook;
    options.buckets = {.cap_bytes = 128, .first_cap_bytes = 64};
    on_ranks(
        ranks,
        [&](Accelerator& accelerator) {
          const MixedTensors seen = trained_prepared<Optimizer>(accelerator, of_optimizer, last);
          REQUIRE(seen.size() == expected.size());
          for (size_t i = 0; i < seen.size(); ++i) {
            CAPTURE(i);
            CHECK(at::allclose(seen[i].to(at::kDouble), expected[i].to(at::kDouble), tolerance, tolerance));
          }
          CHECK(torch::equal(seen[2].detach(), sine_waves({2}, 3, at::kDouble)));  // weight decay does not change idle
        },
        options);
  }
}

}  // namespace

TEST_CASE("a model with float64 and float32: windows, clipping, changing groups, a parameter of one rank") {
  using namespace torch::optim;  // NOLINT
  check_mixed<SGD>(SGDOptions(0.5).momentum(0.9).weight_decay(0.1).nesterov(true), at::kFloat, 1e-6);
  check_mixed<AdamW>(AdamWOptions(0.1).weight_decay(0.1), at::kFloat, 1e-6);
  check_mixed<RMSprop>(RMSpropOptions(0.1).momentum(0.5).weight_decay(0.1), at::kFloat, 1e-5);
}

TEST_CASE("bfloat16 parameters step in their own precision, also with a compressing hook") {
  using namespace torch::optim;  // NOLINT
  const auto sgd = SGDOptions(0.5).momentum(0.9).weight_decay(0.1);
  check_mixed<SGD>(sgd, at::kBFloat16, 2e-2);
  check_mixed<SGD>(sgd, at::kFloat, 2e-2, accelerate::gradient::fp16_compress_hook());
  check_mixed<SGD>(sgd, at::kBFloat16, 2e-2, accelerate::gradient::bf16_compress_hook());
}
