// SPDX-License-Identifier: Apache-2.0
// Training steps that are worth a GPU; bench/gpu.sh runs it beside Accelerate and Lightning Fabric.
#include <accelerate/accelerate.hpp>

#include "bench/harness.hpp"
#include "bench/nets.hpp"

namespace {

/// Two convolutions of 3x3, each with BatchNorm, beside the input or its 1x1 convolution.
struct ResidualImpl : torch::nn::Module {
  ResidualImpl(int64_t from, int64_t to, int64_t stride)
      : conv1(register_module("conv1", convolution(from, to, 3, stride))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(to))),
        conv2(register_module("conv2", convolution(to, to, 3, 1))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(to))) {
    if (from == to && stride == 1) return;
    shortcut = register_module("shortcut",
                               torch::nn::Sequential(convolution(from, to, 1, stride), torch::nn::BatchNorm2d(to)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (shortcut.is_empty() ? x : shortcut->forward(x)));
  }
  static torch::nn::Conv2d convolution(int64_t from, int64_t to, int64_t size, int64_t stride) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, size).stride(stride).padding(size / 2).bias(false));
  }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Residual);

/// torchvision's resnet18: [B, 3, 224, 224] -> [B, 1000].
torch::nn::Sequential resnet18() {
  using namespace torch::nn;
  Sequential net(Conv2d(Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)), BatchNorm2d(64), ReLU(),
                 MaxPool2d(MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t from = 64;
  for (const int64_t to : {64, 128, 256, 512}) {
    net->push_back(Residual(from, to, from == to ? 1 : 2));
    net->push_back(Residual(to, to, 1));
    from = to;
  }
  net->push_back(AdaptiveAvgPool2d(AdaptiveAvgPool2dOptions(1)));
  net->push_back(Flatten());
  net->push_back(Linear(512, 1000));
  return net;
}

/// Tokens [B, T + 1] -> their loss, without logits.
struct LanguageLossImpl : torch::nn::Module {
  LanguageLossImpl(const bench::TransformerOptions& options, bool the_fused)
      : fused(the_fused), transformer(register_module("transformer", bench::Transformer(options))) {}
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto length = tokens.size(1) - 1;
    return accelerate::nn::linear_cross_entropy(transformer->hidden(tokens.narrow(1, 0, length)),
                                                transformer->token->weight, tokens.narrow(1, 1, length),
                                                {.fused_kernel = fused});
  }
  bool fused;
  bench::Transformer transformer;
};
TORCH_MODULE(LanguageLoss);

struct Step {
  std::function<void()> plain, graphed;
};

/// \param loss  Function of the network's output for x.
template <typename Net, typename Loss>
Step training_step(const Net& net, const torch::Tensor& inputs, const Loss& loss,
                   accelerate::Precision precision = accelerate::Precision::no) {
  auto accelerator =
      std::make_shared<accelerate::Accelerator>(accelerate::AcceleratorOptions{.mixed_precision = precision});
  auto [model, optimizer] = accelerator->prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-4));
  auto function = [=, model = model, optimizer = optimizer](const at::Tensor& x) mutable {
    optimizer.zero_grad();
    accelerator->backward(loss(model, x));
    optimizer.step();
  };
  const auto x = inputs.to(accelerator->device());
  return {[=]() mutable { function(x); }, [=, step = accelerator->graphed_step(function)]() mutable { step(x); }};
}

/// Forward and backward of GPT-2's last layer with its loss: 8192 rows in bf16.
std::function<void()> last_layer(const torch::Device& device, bool fused) {
  const auto options = torch::TensorOptions(device).dtype(torch::kBFloat16);
  const auto x = torch::randn({8192, 768}, options).requires_grad_(true);
  const auto weight = (torch::randn({50257, 768}, options) * 0.02).requires_grad_(true);
  const auto target = torch::randint(50257, {8192}, options.dtype(torch::kLong));
  return [=] {
    x.mutable_grad() = weight.mutable_grad() = torch::Tensor();
    accelerate::nn::linear_cross_entropy(x, weight, target, {.fused_kernel = fused}).backward();
  };
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(1);
  const auto device = accelerator.device();
  const auto finish = bench::finish(accelerator);

  const auto gpt2 = [](bool fused_bias) {
    return bench::TransformerOptions{
        .vocabulary = 50257, .length = 1024, .layers = 12, .heads = 12, .width = 768, .fused_bias = fused_bias};
  };
  const auto tokens_of_language = torch::randint(50257, {8, 1025});
  const auto language_step = [&](bool fused_bias) {
    return training_step(
        bench::Transformer(gpt2(fused_bias)), tokens_of_language,
        [](auto& model, const at::Tensor& tokens) {
          const auto logits = model(tokens.narrow(1, 0, tokens.size(1) - 1));
          return torch::cross_entropy_loss(logits.flatten(0, 1), tokens.narrow(1, 1, tokens.size(1) - 1).flatten());
        },
        accelerate::Precision::bf16);
  };
  const Step language = language_step(true), stock_language = language_step(false);
  const auto language_loss_step = [&](bool fused) {
    return training_step(
        LanguageLoss(gpt2(true), fused), tokens_of_language,
        [](auto& model, const at::Tensor& tokens) { return model(tokens); }, accelerate::Precision::bf16);
  };
  const Step language_loss = language_loss_step(false), fused_language_loss = language_loss_step(true);
  const auto classes = torch::randint(1000, {64}).to(device);
  const Step images = training_step(
      resnet18(), torch::randn({64, 3, 224, 224}),
      [classes](auto& model, const at::Tensor& x) { return torch::cross_entropy_loss(model(x), classes); });
  const auto digits = torch::randint(10, {64}).to(device);
  const Step small =
      training_step(bench::BasicNet(), torch::randn({64, 1, 28, 28}),
                    [digits](auto& model, const at::Tensor& x) { return torch::nll_loss(model(x), digits); });
  return bench::serve(
      accelerator.process_index(), bench::about(accelerator),
      {bench::timed("gpt2", language.plain, finish), bench::timed("gpt2-stock", stock_language.plain, finish),
       bench::timed("gpt2-graph", language.graphed, finish), bench::timed("gpt2-loss", language_loss.plain, finish),
       bench::timed("gpt2-loss-graph", language_loss.graphed, finish),
       bench::timed("gpt2-loss-fused", fused_language_loss.plain, finish),
       bench::timed("gpt2-loss-fused-graph", fused_language_loss.graphed, finish),
       bench::timed("loss", last_layer(device, false), finish),
       bench::timed("loss-fused", last_layer(device, true), finish), bench::timed("resnet18", images.plain, finish),
       bench::timed("cnn", small.plain, finish), bench::timed("cnn-graph", small.graphed, finish)});
}
