// SPDX-License-Identifier: Apache-2.0
// Compiled modules with mixed precision: the dtype of the export decides, and differences from the Accelerator's are
// reported.
#include "tests/nn/compiled_training.hpp"
//
#include <optional>
#include <utility>

#include "accelerate/precision/autocast.hpp"

using namespace compiled_testing;
using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::Precision;

namespace {

constexpr int64_t kSuccessfulSteps = 10;
constexpr double kBf16Rounding = 1.0 / 128;
constexpr double kFp16Rounding = 1.0 / 1024;

/// The eager module that compiled_packages.py exported as "block", with the values of a compiled one.
struct EagerBlockImpl : torch::nn::Module {
  explicit EagerBlockImpl(const CompiledModule& compiled) {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters().size(); ++i) parameters()[i].copy_(compiled->parameters()[i]);
  }
  at::Tensor forward(const at::Tensor& x) { return (x + torch::tanh(linear(x))).to(torch::kFloat); }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
};
TORCH_MODULE(EagerBlock);

CompiledModule compiled_block(const std::string& name) { return CompiledModule(package(name), kTrusted); }

struct PrecisionResult {
  std::vector<double> losses;
  Values values, gradients;  ///< after the last step, and of the first successful one
  int64_t skipped = 0;
};

/// Trains until the given number of steps were not skipped by loss scaling.
template <typename Net>
PrecisionResult train_in_precision(const Net& net, const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  PrecisionResult result;
  for (int64_t step = 0; step < kSuccessfulSteps;) {
    const Values before = values_of(*net);
    const at::Tensor x = torch::arange(20, torch::kFloat).add(7 * step).reshape({5, 4}).sin();
    optimizer.zero_grad();
    const at::Tensor outputs = model(x);
    REQUIRE((outputs.scalar_type() == torch::kFloat));
    const at::Tensor loss = torch::mse_loss(outputs, x.roll(1, 1));
    accelerator.backward(loss);
    const double scale = accelerator.loss_scale();
    Values gradients;
    for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad() / scale);
    optimizer.step();
    if (optimizer.step_was_skipped()) {
      REQUIRE(++result.skipped < 30);
      CHECK(largest_difference(values_of(*net), before) == 0);
      continue;
    }
    if (step++ == 0) result.gradients = gradients;
    result.losses.push_back(loss.template item<double>());
  }
  result.values = values_of(*net);
  for (const at::Tensor& value : net->parameters()) CHECK((value.scalar_type() == torch::kFloat));
  return result;
}

double largest_loss_difference(const PrecisionResult& left, const PrecisionResult& right) {
  double worst = 0;
  for (size_t i = 0; i < left.losses.size(); ++i) worst = std::max(worst, std::abs(left.losses[i] - right.losses[i]));
  return worst;
}

void check_within_rounding(const PrecisionResult& seen, const PrecisionResult& expected, double rounding) {
  CHECK(largest_loss_difference(seen, expected) < rounding);
  CHECK(largest_difference(seen.gradients, expected.gradients) < rounding);
  CHECK(largest_difference(seen.values, expected.values) < rounding);
}

AcceleratorOptions with_precision(std::optional<Precision> precision, double init_scale = 65536) {
  return {.cpu = true, .mixed_precision = precision, .grad_scaler = {.init_scale = init_scale}};
}

/// The warning about a package. Its text begins with "PATH was exported".
std::vector<std::string> warning_of(const std::string& name, const std::string& text) {
  return {"CompiledModule: " + package(name) + " was exported " + text};
}

}  // namespace

TEST_CASE("a package exported within autocast computes as eager autocast, with and without a region around it") {
  for (const auto& [name, rounding] : {std::pair("block", kBf16Rounding), std::pair("block_fp16", kFp16Rounding)}) {
    CAPTURE(name);
    const Expected expected(name);
    auto net = compiled_block(name);
    const at::Tensor x = expected.batch("x", 0);
    const at::Tensor out = net->forward(x);
    CHECK(difference(out, expected.tensor("out")) < rounding);
    const at::Tensor exact = x + torch::tanh(torch::linear(x, net->parameters()[0], net->parameters()[1]));
    CHECK(difference(out, exact.detach()) > 1e-5);  // 16 bits were used
    const accelerate::precision::Autocast region(accelerate::precision::AutocastRegion{});
    CHECK(net->forward(x).equal(out));
  }
}

TEST_CASE("mixed_precision bf16 trains a package exported in bfloat16 as the eager module, without a warning") {
  PrecisionResult compiled;
  CHECK(lines_logged_by([&] {
          compiled = train_in_precision(compiled_block("block"), with_precision(Precision::bf16));
        }).empty());
  const auto source = compiled_block("block");
  const auto eager = train_in_precision(EagerBlock(source), with_precision(Precision::bf16));
  const auto exact = train_in_precision(EagerBlock(source), with_precision(Precision::no));
  check_within_rounding(compiled, eager, kBf16Rounding);
  CHECK(largest_difference(compiled.gradients, exact.gradients) > 1e-6);  // 16 bits were used
  CHECK(largest_difference(compiled.values, values_of(*source)) > 10 * kBf16Rounding);
}

TEST_CASE("mixed_precision fp16 scales the loss of a package exported in float16, and skips steps that overflow") {
  const auto source = compiled_block("block_fp16");
  const auto exact = train_in_precision(EagerBlock(source), with_precision(Precision::no));
  for (const double init_scale : {1024.0, 0x1p24}) {
    CAPTURE(init_scale);
    const auto compiled = train_in_precision(compiled_block("block_fp16"), with_precision(Precision::fp16, init_scale));
    const auto eager = train_in_precision(EagerBlock(source), with_precision(Precision::fp16, init_scale));
    check_within_rounding(compiled, eager, kFp16Rounding);
    check_within_rounding(compiled, exact, kFp16Rounding);
    CHECK((compiled.skipped > 0) == (init_scale > 65536));
    CHECK(std::abs(compiled.skipped - eager.skipped) <= 1);
  }
  CHECK(largest_difference(exact.values, values_of(*source)) > 10 * kFp16Rounding);
}

TEST_CASE("loss scaling keeps gradients of a package that would be 0 in float16 without it") {
  const at::Tensor x = torch::arange(20, torch::kFloat).reshape({5, 4}).sin();
  const auto gradient = [&](std::optional<Precision> precision) {
    auto net = compiled_block("block_fp16");
    Accelerator accelerator(with_precision(precision));
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    accelerator.backward(model(x).sum() * 1e-9);
    return (net->parameters()[0].grad() / accelerator.loss_scale()).abs().max().item<double>();
  };
  const auto lines = lines_logged_by([&] { CHECK(gradient(Precision::no) == 0); });
  CHECK(lines == warning_of("block_fp16",
                            "with autocast=torch.float16, and mixed precision is off, so small gradients become 0 "
                            "unless the loss is scaled; set mixed_precision to fp16"));
  CHECK(gradient(Precision::fp16) > 1e-10);
}

TEST_CASE("a package exported without autocast, or with another dtype, computes as exported and warns once") {
  const auto without = train_in_precision(compiled_block("block"), with_precision(Precision::no));
  PrecisionResult other;
  CHECK(lines_logged_by([&] {
          other = train_in_precision(compiled_block("block"), with_precision(Precision::fp16, 1));
        }).back() ==
        warning_of("block",
                   "with autocast=torch.bfloat16, so it computes in bfloat16 although mixed precision is float16; "
                   "export it with autocast=torch.float16")[0]);
  CHECK(largest_difference(other.values, without.values) == 0);

  const auto train_mlp = [](std::optional<Precision> precision) {
    Accelerator accelerator(with_precision(precision));
    auto net = compiled_mlp();
    return train_on_ranks(accelerator, net);
  };
  Values plain;
  CHECK(lines_logged_by([&] { plain = train_mlp(Precision::bf16); }) ==
        warning_of("mlp",
                   "without autocast, so it computes in the dtype of its parameters although mixed precision is "
                   "bfloat16; export it with autocast=torch.bfloat16"));
  CHECK(largest_difference(plain, train_mlp(Precision::no)) == 0);
}

TEST_CASE("parameters in pure bf16, and an eager layer in bf16 before a package of float32, are refused") {
  const auto text = [](const std::string& tensor) {
    return error_of("block", tensor +
                                 " has dtype BFloat16, the package was compiled for Float; convert it, or export "
                                 "the module with this dtype");
  };
  const at::Tensor x = torch::ones({5, 4});
  {
    Accelerator accelerator({.cpu = true, .precision_policy = accelerate::precision::pure_bf16()});
    auto model = accelerator.prepare(compiled_block("block"));
    CHECK(testing::refusal([&] { model(x); }) == text("parameter linear.weight"));
  }
  Accelerator accelerator(with_precision(Precision::bf16));
  auto model = accelerator.prepare(torch::nn::Sequential(torch::nn::Linear(4, 4), compiled_block("block")));
  CHECK(testing::refusal([&] { model(x); }) == text("input 0"));
}
