// SPDX-License-Identifier: Apache-2.0
// Training steps that are worth a GPU; bench/gpu.sh runs it beside Accelerate, Lightning Fabric and torch.compile.
#include <accelerate/accelerate.hpp>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu_models.hpp"
#include "bench/harness.hpp"

namespace {

using accelerate::AcceleratorOptions;
using bench::Batch;
using bench::GpuSizes;

/// Runs one step and returns its loss.
using StepFunction = std::function<at::Tensor()>;

/// \param loss  Function of the prepared model, x and y.
template <typename Net, typename Loss>
StepFunction training_step(const Net& net, const Batch& batch, const Loss& loss, const AcceleratorOptions& options,
                           bool graphed) {
  auto accelerator = std::make_shared<accelerate::Accelerator>(options);
  auto [model, optimizer] = accelerator->prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-4));
  const auto y = batch.y.defined() ? batch.y.to(accelerator->device()) : at::Tensor();
  auto function = [=, model = model, optimizer = optimizer](const at::Tensor& x) mutable {
    optimizer.zero_grad();
    const at::Tensor value = loss(model, x, y);
    accelerator->backward(value);
    optimizer.step();
    return value.detach();
  };
  const bool channels_last = options.memory_format == accelerate::MemoryFormat::channels_last;
  const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const auto x = batch.x.to(accelerator->device()).contiguous(format);
  if (!graphed) return [=]() mutable { return function(x); };
  return [=, step = accelerator->graphed_step(function)]() mutable { return step(x); };
}

/// The first losses of a training. Their computation also warms up and captures the step.
struct Training {
  static constexpr int64_t kLosses = 8;
  explicit Training(StepFunction the_step) : step(std::move(the_step)) {
    for (int64_t i = 0; i < kLosses; ++i) losses.push_back(step().clone());
  }
  StepFunction step;
  std::vector<at::Tensor> losses{};
};

/// The two trainings that were used last. Earlier ones are released, because a GPU has no memory for all of them.
class Trainings {
 public:
  explicit Trainings(accelerate::Accelerator& accelerator)
      : accelerator_(accelerator), finish_(bench::finish(accelerator)) {}
  void add(std::string name, std::function<StepFunction()> make) { makers_.emplace_back(std::move(name), make); }

  Training& get(const std::string& name) {
    for (auto live = live_.begin(); live != live_.end(); ++live) {
      if (live->first != name) continue;
      live_.splice(live_.end(), live_, live);
      return live->second;
    }
    release_all_but(1);
    for (const auto& [known, make] : makers_) {
      if (known == name) return live_.emplace_back(name, Training(make())).second;
    }
    throw std::logic_error("there is no training '" + name + "'");
  }
  /// Returns the peak of allocated memory of a new training, in bytes; 0 on the CPU.
  double peak(const std::string& name) {
    release_all_but(0);
    accelerator_.reset_peak_memory();
    get(name);
    return static_cast<double>(accelerator_.memory().peak_allocated_bytes);
  }

  /// Returns the cases NAME (seconds), NAME/loss (the loss of a step from 1 to 8), and NAME/peak (bytes).
  std::vector<bench::Case> cases() {
    std::vector<bench::Case> result;
    for (const auto& [name, make] : makers_) {
      const auto add = [&, name = name](const char* suffix, const auto& round) {
        const auto checked = [this, round](int64_t count) { return or_case_error([&] { return round(count); }); };
        result.push_back({.name = name + suffix, .round = checked, .needs_driver = *suffix != '\0'});
      };
      add("", [this, name = name](int64_t count) {
        const auto step = [&training = get(name)] { training.step(); };
        return bench::seconds_per_step(count, step, finish_);
      });
      add("/loss", [this, name = name](int64_t step) {
        return get(name).losses.at(static_cast<size_t>(step - 1)).item<double>();
      });
      add("/peak", [this, name = name](int64_t) { return peak(name); });
    }
    return result;
  }

 private:
  void release_all_but(size_t count) {
    if (finish_) finish_();
    while (live_.size() > count) live_.pop_front();
    accelerator_.free_memory();  // the caches of LibTorch
  }
  template <typename Round>
  double or_case_error(const Round& round) const {
    if (accelerator_.num_processes() > 1) return round();
    try {
      return round();
    } catch (const std::exception& error) {
      throw bench::CaseError(error.what());
    }
  }

  accelerate::Accelerator& accelerator_;
  std::function<void()> finish_;
  std::vector<std::pair<std::string, std::function<StepFunction()>>> makers_{};
  std::list<std::pair<std::string, Training>> live_{};
};

const AcceleratorOptions kBf16{.mixed_precision = accelerate::Precision::bf16};

// Losses of a prepared model of any type.
const auto loss_of_logits = [](auto& model, const at::Tensor& tokens, const at::Tensor&) {
  const auto length = tokens.size(1) - 1;
  const auto logits = model(tokens.narrow(1, 0, length));
  return torch::cross_entropy_loss(logits.flatten(0, 1), tokens.narrow(1, 1, length).flatten());
};
const auto loss_of_model = [](auto& model, const at::Tensor& tokens, const at::Tensor&) { return model(tokens); };
const auto cross_entropy = [](auto& model, const at::Tensor& x, const at::Tensor& y) {
  return torch::cross_entropy_loss(model(x), y);
};
const auto nll = [](auto& model, const at::Tensor& x, const at::Tensor& y) { return torch::nll_loss(model(x), y); };

void add_gpt2(Trainings& all, const GpuSizes& sizes, bool graphed, const std::string& suffix) {
  auto options = sizes.gpt2;
  options.fused_bias = true;
  const auto add = [&](const char* name, const auto& make_net, const AcceleratorOptions& precision, const auto& loss) {
    all.add(name + suffix, [=] { return training_step(make_net(), bench::tokens(sizes), loss, precision, graphed); });
  };
  const auto with_loss = [options](bool fused) {
    return [=] { return bench::with_weights(bench::LanguageLoss(options, fused)); };
  };
  const auto blocks = [options](bool fused) {
    return [=] {
      auto compiled = options;
      compiled.compiled_block = bench::compiled_package("gpt2-block");
      return bench::with_weights(bench::LanguageLoss(compiled, fused));
    };
  };
  const AcceleratorOptions pure_bf16{.precision_policy = accelerate::precision::pure_bf16()};
  const auto network = [] { return accelerate::nn::CompiledModule(bench::compiled_package("gpt2")); };
  const auto logits = [options] { return bench::with_weights(bench::Transformer(options)); };
  const auto stock_logits = [stock = sizes.gpt2] { return bench::with_weights(bench::Transformer(stock)); };
  add("gpt2", logits, kBf16, loss_of_logits);
  add("gpt2-stock", stock_logits, kBf16, loss_of_logits);
  add("gpt2-loss", with_loss(false), kBf16, loss_of_model);
  add("gpt2-loss-fused", with_loss(true), kBf16, loss_of_model);
  add("gpt2-loss-pure-bf16", with_loss(false), pure_bf16, loss_of_model);
  add("gpt2-blocks", blocks(false), kBf16, loss_of_model);
  add("gpt2-blocks-fused", blocks(true), kBf16, loss_of_model);
  add("gpt2-network", network, kBf16, loss_of_model);
}

void add_images(Trainings& all, const GpuSizes& sizes, bool graphed, const std::string& suffix) {
  const auto add = [&](const char* name, const auto& make_net, Batch (*batch)(const GpuSizes&),
                       accelerate::MemoryFormat format, const auto& loss) {
    all.add(name + suffix,
            [=] { return training_step(make_net(), batch(sizes), loss, {.memory_format = format}, graphed); });
  };
  constexpr auto contiguous = accelerate::MemoryFormat::contiguous, last = accelerate::MemoryFormat::channels_last;
  const auto resnet = [=] { return bench::with_weights(bench::resnet(sizes)); };
  const auto compiled = [] {
    return accelerate::nn::CompiledModule(bench::compiled_package("resnet18-channels-last"));
  };
  add("resnet18", resnet, bench::images, contiguous, cross_entropy);
  add("resnet18-channels-last", resnet, bench::images, last, cross_entropy);
  add("resnet18-channels-last-compiled", compiled, bench::images, last, cross_entropy);
  const auto basic_net = [] { return bench::with_weights(bench::BasicNet()); };
  const auto compiled_basic_net = [] { return accelerate::nn::CompiledModule(bench::compiled_package("cnn")); };
  add("cnn", basic_net, bench::digits, contiguous, nll);
  add("cnn-compiled", compiled_basic_net, bench::digits, contiguous, nll);
}

/// Forward and backward of GPT-2's last layer with its loss, in bf16.
StepFunction last_layer(const GpuSizes& sizes, const torch::Device& device, bool fused) {
  const auto options = torch::TensorOptions(device).dtype(torch::kBFloat16);
  const auto rows = sizes.sequences * sizes.gpt2.length, width = sizes.gpt2.width, classes = sizes.gpt2.vocabulary;
  torch::manual_seed(1);
  const auto x = torch::randn({rows, width}, options).requires_grad_(true);
  const auto weight = (torch::randn({classes, width}, options) * 0.02).requires_grad_(true);
  const auto target = torch::randint(classes, {rows}, options.dtype(torch::kLong));
  return [=] {
    x.mutable_grad() = weight.mutable_grad() = torch::Tensor();
    const auto loss = accelerate::nn::linear_cross_entropy(x, weight, target, {.fused_kernel = fused});
    loss.backward();
    return loss.detach();
  };
}

}  // namespace

int main() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(1);
  const auto device = accelerator.device();
  const auto sizes = bench::gpu_sizes();
  Trainings all(accelerator);
  for (const bool graphed : {false, true}) {
    const std::string suffix = graphed ? "-graph" : "";
    add_gpt2(all, sizes, graphed, suffix);
    add_images(all, sizes, graphed, suffix);
  }
  all.add("loss", [=] { return last_layer(sizes, device, false); });
  all.add("loss-fused", [=] { return last_layer(sizes, device, true); });
  return bench::serve(accelerator.process_index(), bench::about(accelerator), all.cases());
}
