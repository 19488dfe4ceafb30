// SPDX-License-Identifier: Apache-2.0
// Convolutions with split output channels: every option against LibTorch's layer, and the overlap of their backward.
#include "tests/tensor_parallel/support.hpp"
//
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>
#include <vector>

using namespace tensor_parallel_testing;
using accelerate::comm::run_threads;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;

namespace {

struct Layers {
  Layers(const Conv2dOptions& options, const Group& group)
      : stock(seeded([&] { return Conv2d(options); })),
        split(seeded([&] { return ColumnParallelConv2d(options, group); })) {
    stock->to(at::kDouble);
    split->to(at::kDouble);
  }
  Conv2d stock;
  ColumnParallelConv2d split;
};

/// The channels of this rank.
at::Tensor part_of(const at::Tensor& whole, const Group& group) {
  return whole.chunk(group.size(), -3)[static_cast<size_t>(group.rank())];
}

/// Output and gradients for one input.
void check_conv(Layers& layers, const at::Tensor& input, const Group& group) {
  const at::Tensor mine = input.clone().requires_grad_(true), theirs = input.clone().requires_grad_(true);
  const at::Tensor seen = layers.split(mine), expected = layers.stock(theirs);
  CHECK(close(seen.detach(), part_of(expected.detach(), group)));
  const at::Tensor weights = numbers(expected.sizes(), 77);
  (seen * part_of(weights, group)).sum().backward();
  (expected * weights).sum().backward();
  CHECK(close(mine.grad(), theirs.grad()));
  check_same_gradients(layers.split, layers.stock);
}

/// Counts the calls of an operator on this thread and runs a function before the second one.
struct SecondCall {
  SecondCall(std::string_view name, std::function<void()> before) : operator_name(name), run(std::move(before)) {
    current = this;
    handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          if (function.name() == current->operator_name && ++current->calls == 2) current->run();
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  SecondCall(const SecondCall&) = delete;
  SecondCall& operator=(const SecondCall&) = delete;
  ~SecondCall() { at::removeCallback(handle); }

  static inline thread_local SecondCall* current = nullptr;
  std::string_view operator_name;
  std::function<void()> run;
  at::CallbackHandle handle = 0;
  int64_t calls = 0;
};

/// True if rank 0 has started the all-reduce of the input's gradient before it computes the gradient of the weight. The
/// other rank calls only this all-reduce, which returns if both ranks have started it.
template <typename Layer>
bool starts_before_weight_gradient(Layer layer, const at::Tensor& input, const Group& group, std::string_view name,
                                   std::atomic<bool>& reduced) {
  if (group.rank() == 1) {
    group.all_reduce(torch::zeros_like(input));
    reduced = true;
    return true;
  }
  const at::Tensor x = input.clone().requires_grad_(true);
  const at::Tensor loss = layer(x).sum();
  bool is_before = false;
  const SecondCall watch(name, [&] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    while (!reduced && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    is_before = reduced;
  });
  loss.backward();
  CHECK(watch.calls == 2);
  return is_before;
}

}  // namespace

TEST_CASE("a split convolution has the output and gradients of the whole one for every option") {
  for (const int64_t ranks : {1, 2, 4}) {
    run_threads(ranks, [](const Group& group) {
      const std::vector<Conv2dOptions> all{
          Conv2dOptions(3, 8, 3),
          Conv2dOptions(3, 8, 1).bias(false),
          Conv2dOptions(3, 8, {3, 2}).stride({2, 1}).padding({1, 2}).dilation({1, 2}),
          Conv2dOptions(3, 4, 5).stride(3).padding(2),
          Conv2dOptions(3, 8, 3).padding(torch::kSame),
          Conv2dOptions(3, 8, {2, 4}).padding(torch::kSame).dilation({3, 1}),  // two different sides
          Conv2dOptions(3, 8, 3).padding(torch::kValid).dilation(2),
      };
      for (const auto& options : all) {
        Layers layers(options, group);
        CAPTURE(group.size());
        check_conv(layers, numbers({2, 3, 9, 7}, 1), group);
        layers.stock->zero_grad();
        layers.split->zero_grad();
        check_conv(layers, numbers({3, 9, 7}, 2), group);  // without a batch
        layers.stock->zero_grad();
        layers.split->zero_grad();
        check_conv(layers, numbers({2, 3, 9, 7}, 3).contiguous(at::MemoryFormat::ChannelsLast), group);
        layers.stock->zero_grad();
        layers.split->zero_grad();
        check_conv(layers, numbers({2, 9, 7, 3}, 4).permute({0, 3, 1, 2}).slice(3, 0, 6), group);  // a view
      }
    });
  }
}

TEST_CASE("the output of a split convolution can be modified in place") {
  run_threads(2, [](const Group& group) {
    Layers layers(Conv2dOptions(3, 4, 3), group);
    for (const at::Tensor& input : {numbers({2, 3, 5, 5}, 1), numbers({3, 5, 5}, 2)}) {
      const at::Tensor mine = input.clone().requires_grad_(true), theirs = input.clone().requires_grad_(true);
      layers.split(mine).mul_(2).sum().backward();
      layers.stock(theirs).mul_(2).sum().backward();
      CHECK(close(mine.grad(), theirs.grad()));
    }
  });
}

TEST_CASE("gradients of a convolution that are not needed are not computed") {
  run_threads(2, [](const Group& group) {
    Layers layers(Conv2dOptions(3, 4, 3), group);
    const at::Tensor x = numbers({2, 3, 5, 5}, 1);
    const auto without = [&](bool input, bool weight, bool bias) {
      layers.split->zero_grad();
      layers.stock->zero_grad();
      layers.split->weight.requires_grad_(weight);
      layers.split->bias.requires_grad_(bias);
      const at::Tensor mine = x.clone().requires_grad_(input), theirs = x.clone().requires_grad_(true);
      layers.split(mine).sum().backward();
      layers.stock(theirs).sum().backward();
      CHECK(mine.grad().defined() == input);
      if (input) CHECK(close(mine.grad(), theirs.grad()));
      const auto rank = static_cast<size_t>(group.rank());
      CHECK(layers.split->weight.grad().defined() == weight);
      if (weight) CHECK(close(layers.split->weight.grad(), layers.stock->weight.grad().chunk(2)[rank]));
      CHECK(layers.split->bias.grad().defined() == bias);
      if (bias) CHECK(close(layers.split->bias.grad(), layers.stock->bias.grad().chunk(2)[rank]));
    };
    for (const int number : {1, 2, 3, 4, 5, 6, 7}) without((number & 1) != 0, (number & 2) != 0, (number & 4) != 0);
  });
}

TEST_CASE("under autocast a split convolution computes in bfloat16, and its gradients are float32") {
  run_threads(2, [](const Group& group) {
    Layers layers(Conv2dOptions(3, 4, 3).padding(1), group);
    layers.split->to(at::kFloat);
    const at::Tensor x = numbers({2, 3, 5, 5}, 1, at::kFloat).requires_grad_(true);
    const at::Tensor exact = x.detach().to(at::kDouble).requires_grad_(true);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor low = layers.split(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK((low.scalar_type() == at::kBFloat16));
    low.to(at::kFloat).sum().backward();
    layers.stock(exact).sum().backward();
    CHECK((x.grad().scalar_type() == at::kFloat));
    CHECK(torch::allclose(x.grad().to(at::kDouble), exact.grad(), 0.05, 0.05));
    CHECK((layers.split->weight.grad().scalar_type() == at::kFloat));
  });
}

TEST_CASE("a split convolution has second derivatives, and a retained graph gives the same gradients twice") {
  run_threads(2, [](const Group& group) {
    Layers layers(Conv2dOptions(3, 4, 3).stride(2), group);
    const at::Tensor input = numbers({2, 3, 7, 7}, 1);
    const at::Tensor mine = input.clone().requires_grad_(true), theirs = input.clone().requires_grad_(true);
    const at::Tensor seen = reduce_from_group(layers.split(mine).pow(3).sum(), group);
    const at::Tensor expected = layers.stock(theirs).pow(3).sum();
    CHECK(close(torch::autograd::grad({seen}, {mine}, {}, true)[0],
                torch::autograd::grad({expected}, {theirs}, {}, true)[0]));
    const auto first = torch::autograd::grad({seen}, {mine, layers.split->weight}, {}, true, true);
    const auto stock_first = torch::autograd::grad({expected}, {theirs, layers.stock->weight}, {}, true, true);
    const auto part = [&](const at::Tensor& whole) { return whole.chunk(2)[static_cast<size_t>(group.rank())]; };
    CHECK(close(first[0].detach(), stock_first[0].detach()));
    CHECK(close(first[1].detach(), part(stock_first[1]).detach()));
    // Penalties on the gradient of the input, and on that of the weight, which uses the input.
    for (const double of_weight : {0.0, 1.0}) {
      const at::Tensor penalty =
          (1 - of_weight) * first[0].pow(2).sum() + of_weight * reduce_from_group(first[1].pow(2).sum(), group);
      const at::Tensor stock_penalty =
          (1 - of_weight) * stock_first[0].pow(2).sum() + of_weight * stock_first[1].pow(2).sum();
      const auto second = torch::autograd::grad({penalty}, {mine, layers.split->weight}, {}, true);
      const auto stock_second = torch::autograd::grad({stock_penalty}, {theirs, layers.stock->weight}, {}, true);
      CHECK(close(second[0], stock_second[0]));
      CHECK(close(second[1], part(stock_second[1])));
    }
  });
}

TEST_CASE("a split convolution of complex numbers has the gradients of the whole one") {
  run_threads(2, [](const Group& group) {
    Layers layers(Conv2dOptions(3, 4, 3), group);
    layers.stock->to(at::kComplexDouble);
    layers.split->to(at::kComplexDouble);
    const at::Tensor input = torch::complex(numbers({2, 3, 5, 5}, 1), numbers({2, 3, 5, 5}, 2));
    const at::Tensor mine = input.clone().requires_grad_(true), theirs = input.clone().requires_grad_(true);
    layers.split(mine).abs().sum().backward();
    layers.stock(theirs).abs().sum().backward();
    CHECK(close(mine.grad(), theirs.grad()));
  });
}

TEST_CASE("the all-reduce of the input's gradient starts before the gradient of the weight is computed") {
  std::atomic<bool> conv_reduced = false, linear_reduced = false;
  run_threads(2, [&](const Group& group) {
    const auto conv = seeded([&] { return ColumnParallelConv2d(Conv2dOptions(3, 4, 3), group); });
    CHECK(starts_before_weight_gradient(conv, torch::ones({2, 3, 5, 5}), group, "aten::convolution_backward",
                                        conv_reduced));
    const auto linear = seeded([&] { return ColumnParallelLinear(6, 8, group); });
    CHECK(starts_before_weight_gradient(linear, torch::ones({2, 6}), group, "aten::mm", linear_reduced));
  });
}
