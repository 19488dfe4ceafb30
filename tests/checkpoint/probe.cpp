// SPDX-License-Identifier: Apache-2.0
// A small training for parity.py and the tests that kill it: two layers on computed batches.
//
//   checkpoint_probe train OPTIMIZER LOAD|- STEPS SAVE|-   prints each loss, then draws of LibTorch's generator
//   checkpoint_probe loaded OPTIMIZER FOLDER               prints the steps that load_state() found, or "unknown"
//   checkpoint_probe schedules OUT IN      saves each kind after seven steps; unless IN is "-", loads it and prints
//                                          rate and momentum of the next five steps
//   checkpoint_probe rates ORDER FOLDER    loads Python's state of schedules that share an optimizer, prepared in the
//                                          order "exp,plateau", and prints the rates of three steps
//   checkpoint_probe pieces OUT IN         writes files for Python, prints the sums of Python's files
#include <accelerate/accelerate.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return fc2(torch::tanh(bn(fc1(x)))); }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(8, 16));
  torch::nn::BatchNorm1d bn = register_module("bn", torch::nn::BatchNorm1d(16));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(16, 2));
};
TORCH_MODULE(Net);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, std::vector<torch::Tensor> all) {
  namespace optim = torch::optim;
  // Two groups, as in fine-tuning.
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector(all.begin(), all.begin() + 2));
  groups.emplace_back(std::vector(all.begin() + 2, all.end()));
  if (name == "sgd") return std::make_unique<optim::SGD>(groups, optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  if (name == "adam") return std::make_unique<optim::Adam>(groups, optim::AdamOptions(0.01).amsgrad(true));
  if (name == "adamw") return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(0.01).weight_decay(0.1));
  if (name == "adagrad") return std::make_unique<optim::Adagrad>(groups, optim::AdagradOptions(0.05).lr_decay(0.01));
  if (name == "rmsprop") {
    return std::make_unique<optim::RMSprop>(groups, optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  }
  throw std::runtime_error("no optimizer " + name);
}

// Exact in float32, so that Python computes the same values.
torch::Tensor batch(int64_t step, int64_t columns) {
  const auto row = torch::arange(4).unsqueeze(1), column = torch::arange(columns).unsqueeze(0);
  return (row * 31 + column * 17 + step * 7).remainder(13).to(torch::kFloat) / 16 - 0.375;
}

void train(const std::vector<std::string>& arguments) {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(7);
  Net net;
  auto optimizer_of_torch = make_optimizer(arguments[1], net->parameters());
  accelerate::optim::StepLR step_lr(*optimizer_of_torch, 4, 0.5);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, *optimizer_of_torch, step_lr);
  int64_t step = 0;
  if (arguments[2] != "-") {
    accelerator.load_state(arguments[2]);
    step = scheduler->steps();
  }
  for (const int64_t end = step + std::stoll(arguments[3]); step < end; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model(batch(step, 8)), batch(step + 1, 2));
    accelerator.backward(loss);
    optimizer.step();
    scheduler.step();
    std::printf("%.9g\n", loss.item<double>());
  }
  if (arguments[4] != "-") accelerator.save_state(arguments[4]);
  const auto draws = torch::rand({3});
  std::printf("draws %.9g %.9g %.9g\n", draws[0].item<double>(), draws[1].item<double>(), draws[2].item<double>());
}

void loaded(const std::string& optimizer_name, const std::string& folder) {
  accelerate::Accelerator accelerator;
  Net net;
  auto optimizer_of_torch = make_optimizer(optimizer_name, net->parameters());
  accelerate::optim::StepLR step_lr(*optimizer_of_torch, 4, 0.5);
  auto prepared = accelerator.prepare(net, *optimizer_of_torch, step_lr);
  const auto found = accelerator.load_state(folder);
  fmt::print("{}\n", found.step_is_known ? fmt::to_string(found.step) : fmt::format("unknown, {}", found.step));
}

/// Rates and momenta of the next steps, after saving to a folder or loading from it.
template <typename Make>
void schedule(const std::string& folder, bool load, const char* kind, const Make& make) {
  accelerate::Accelerator accelerator({.cpu = true});
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto made = make(sgd);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, made);
  const auto step = [&, &stepped = optimizer, &moved = scheduler] {
    stepped.step();
    if constexpr (requires { made.step(1.0); }) {
      moved.step(1.0);  // a metric without improvement
    } else {
      moved.step();
    }
  };
  if (load) {
    accelerator.load_state(folder + "/" + kind);
  } else {
    for (int i = 0; i < 7; ++i) step();
    accelerator.save_state(folder + "/" + kind);
  }
  std::printf("%s %s", load ? "loaded" : "saved", kind);
  for (int i = 0; i < 5; ++i) {
    step();
    const auto& options = static_cast<const torch::optim::SGDOptions&>(sgd.param_groups()[0].options());
    std::printf(" %.17g %.17g", options.lr(), options.momentum());
  }
  std::printf("\n");
}

void schedules(const std::string& folder, bool load) {
  namespace optim = accelerate::optim;
  using SGD = torch::optim::SGD;
  const auto each = [&](const char* kind, const auto& make) { schedule(folder, load, kind, make); };
  each("StepLR", [](SGD& sgd) { return optim::StepLR(sgd, 3, 0.5); });
  each("LibTorchs_StepLR", [](SGD& sgd) { return torch::optim::StepLR(sgd, 3, 0.5); });
  each("MultiStepLR", [](SGD& sgd) { return optim::MultiStepLR(sgd, {2, 9, 11}, 0.5); });
  each("ExponentialLR", [](SGD& sgd) { return optim::ExponentialLR(sgd, 0.9); });
  each("CosineAnnealingLR", [](SGD& sgd) { return optim::CosineAnnealingLR(sgd, 20, 0.01); });
  each("PolynomialLR", [](SGD& sgd) { return optim::PolynomialLR(sgd, 10, 2.0); });
  each("LambdaLR",
       [](SGD& sgd) { return optim::LambdaLR(sgd, [](int64_t step) { return 1.0 / static_cast<double>(1 + step); }); });
  each("ReduceLROnPlateau", [](SGD& sgd) { return optim::ReduceLROnPlateau(sgd, {.factor = 0.5, .patience = 2}); });
  each("CosineAnnealingWarmRestarts", [](SGD& sgd) { return optim::CosineAnnealingWarmRestarts(sgd, 4, 2, 0.01); });
  each("CyclicLR", [](SGD& sgd) { return optim::CyclicLR(sgd, 0.01, 0.2, {.step_size_up = 3}); });
  each("OneCycleLR", [](SGD& sgd) { return optim::OneCycleLR(sgd, 0.5, 20); });
  each("OneCycleLR_of_three", [](SGD& sgd) {
    return optim::OneCycleLR(
        sgd, 0.5, 20, {.anneal_strategy = optim::AnnealStrategy::linear, .cycle_momentum = false, .three_phase = true});
  });
  each("SequentialLR", [](SGD& sgd) {
    return optim::SequentialLR(
        sgd,
        {optim::LinearLR(sgd, 0.1, 1.0, 3), optim::CosineAnnealingWarmRestarts(sgd, 3), optim::ExponentialLR(sgd, 0.9)},
        {3, 10});
  });
  each("SequentialLR_to_come", [](SGD& sgd) {
    return optim::SequentialLR(sgd, {optim::LinearLR(sgd, 0.1, 1.0, 5), optim::OneCycleLR(sgd, 0.5, 20)}, {8});
  });
  each("ChainedScheduler", [](SGD& sgd) {
    return optim::ChainedScheduler({optim::ConstantLR(sgd, 0.1, 9), optim::ExponentialLR(sgd, 0.9)});
  });
  each("ChainedScheduler_of_sequences", [](SGD& sgd) {
    const optim::SequentialLR sequence(sgd, {optim::LinearLR(sgd, 0.1, 1.0, 3), optim::ExponentialLR(sgd, 0.9)}, {3});
    return optim::ChainedScheduler({sequence, optim::StepLR(sgd, 2, 0.5)});
  });
}

void rates(const std::string& order, const std::string& folder) {
  accelerate::Accelerator accelerator;
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerate::optim::ExponentialLR made(sgd, 0.9);
  accelerate::optim::ReduceLROnPlateau plateau(sgd, {.factor = 0.5, .patience = 0});
  std::optional<decltype(accelerator.prepare(plateau))> first, last;
  if (order.starts_with("plateau,")) first = accelerator.prepare(plateau);
  auto exp = accelerator.prepare(made);
  if (order.ends_with(",plateau")) last = accelerator.prepare(plateau);
  accelerator.load_state(folder);
  for (int i = 0; i < 3; ++i) {
    optimizer.step();
    exp.step();
    fmt::print("{:.17g}\n", exp.get_last_lr()[0]);
  }
}

/// A user-defined object with tensors, and one with bytes.
struct Averages {
  [[nodiscard]] accelerate::prepared::TensorDict state_dict() const {
    accelerate::prepared::TensorDict dict;
    dict.insert("mean", torch::arange(3, torch::kFloat));
    dict.insert("count", torch::full({}, 7, torch::kLong));
    return dict;
  }
  void load_state_dict(const accelerate::prepared::TensorDict&) const {}
};
struct Bytes {
  [[nodiscard]] std::string state() const { return std::string("a\0\xff", 3); }
  void load_state(const std::string&) const {}
};

void print(const accelerate::prepared::TensorDict& dict) {
  for (const auto& item : dict) {
    std::printf("%s %s %.17g\n", item.key().c_str(), c10::toString(item.value().scalar_type()),
                item.value().to(torch::kDouble).sum().item<double>());
  }
}

void parameter_shards(const std::string& out, const std::string& in) {
  accelerate::Accelerator accelerator({.cpu = true,
                                       .mixed_precision = accelerate::Precision::fp16,
                                       .grad_scaler = {.init_scale = 1024, .growth_interval = 50}});
  Net net;
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(torch::arange(parameter.numel(), torch::kFloat).reshape(parameter.sizes()));
    }
  }
  auto model = accelerator.prepare(net);
  Averages averages;
  Bytes bytes;
  accelerator.register_for_checkpointing(averages, bytes);
  accelerator.save_state(out + "/state");
  accelerator.save_state(out + "/state_sharded", {.max_shard_size = "300"});
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.zero_();
  }
  accelerator.load_state(out + "/state_sharded");  // the following state is unchanged
  accelerator.save_model(model, out + "/sharded", {.max_shard_size = "300"});
  accelerator.save_model(model, out + "/bin", {.safe_serialization = false});
  accelerator.save_model(model, out + "/sharded_bin", {.max_shard_size = "300", .safe_serialization = false});
  for (const char* file : {"/pytorch_model.bin", "/model.safetensors", "/sharded"}) {
    accelerator.load_model(model, in + file);
    double sum = 0;
    for (const auto& [name, tensor] : accelerate::prepared::weights_of(model.core())) {
      sum += (tensor.to(torch::kDouble).flatten() * torch::arange(1, tensor.numel() + 1, torch::kDouble))
                 .sum()
                 .item<double>();
    }
    std::printf("%s %.17g\n", file, sum);
  }
  for (const char* file : {"/values.pt", "/nested.pt"}) print(accelerate::Accelerator::load(in + file));
}

/// Accepts any state.
struct Taken {
  accelerate::prepared::TensorDict dict{};
  [[nodiscard]] accelerate::prepared::TensorDict state_dict() const { return dict; }
  void load_state_dict(const accelerate::prepared::TensorDict& saved) { dict = saved; }
};

/// Loads Python's folders with a schedule as a registered object, and the state of a GradScaler.
void registered(const std::string& in) {
  for (const char* folder : {"/state", "/state_of_disabled"}) {
    accelerate::Accelerator accelerator(
        {.cpu = true, .mixed_precision = accelerate::Precision::fp16, .grad_scaler = {.init_scale = 1024}});
    auto model = accelerator.prepare(Net());
    Taken schedule;
    accelerator.register_for_checkpointing(schedule);
    accelerator.load_state(in + folder);
    std::printf("%s %.17g\n", folder, accelerator.loss_scale());
    print(schedule.dict);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.size() == 5 && arguments[0] == "train") {
      train(arguments);
    } else if (arguments.size() == 3 && arguments[0] == "loaded") {
      loaded(arguments[1], arguments[2]);
    } else if (arguments.size() == 3 && arguments[0] == "schedules") {
      schedules(arguments[1], /*load=*/false);
      if (arguments[2] != "-") schedules(arguments[2], /*load=*/true);
    } else if (arguments.size() == 3 && arguments[0] == "rates") {
      rates(arguments[1], arguments[2]);
    } else if (arguments.size() == 3 && arguments[0] == "pieces") {
      parameter_shards(arguments[1], arguments[2]);
      registered(arguments[2]);
    } else {
      throw std::runtime_error(
          "train OPTIMIZER LOAD STEPS SAVE, loaded OPTIMIZER FOLDER, schedules OUT IN, rates ORDER FOLDER, or pieces "
          "OUT IN");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
