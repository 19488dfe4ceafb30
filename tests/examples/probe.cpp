// SPDX-License-Identifier: Apache-2.0
// Programs that tests start under our launcher and under others.
//   probe ranks                                the main process prints "2 ranks, mpi, sum 1"
//   probe train FILE float64|float32|bf16|fp16 STEPS BATCH
//       trains BasicNet (no dropout) on weights and batches that parity.py wrote and prints a loss per step; on P ranks
//       each rank takes its P-th part of every batch, and the mean of the losses is printed
//   probe resnet FILE float64|float32 STEPS BATCH
//       the same with fashion_resnet's network and SGD, on one rank; the last number is the loss of the first batch in
//       evaluation mode
//   probe scaler INIT GROWTH BACKOFF INTERVAL FLAGS
//       the loss scale after each iteration; FLAGS is one of 0 and 1 per iteration, 1: a gradient was inf
//   probe learn no|bf16|fp16 DATA_DIR          trains two layers on the digits once and prints the test accuracy
//   probe learn_few no|bf16|fp16 DATA_DIR N    trains BasicNet on N batches, and tests it on a thousand digits
//   probe restarted                            the same, but rank 1 throws until torchrun has restarted it once
//   probe several                              two Accelerators side by side, a third afterwards
//   probe bad_index                            trains an embedding on a row that it does not have
//   probe bad_target                           the fused kernel of linear_cross_entropy with a target that is no class
//   probe fail RANK                            that rank throws before a collective, the others wait in it
//   probe leave RANK                           that rank exits before the second of two all-reduces of the others
//   probe shape RANK                           that rank gives another shape to an all-reduce
#include <accelerate/accelerate.hpp>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "examples/basic_net.hpp"
#include "examples/resnet18.hpp"
#include "tests/device.hpp"

namespace {

// The file is a sequence of float64 numbers: parameters in order, images, labels.
class Numbers {
 public:
  explicit Numbers(const std::string& path)
      : all_(torch::from_file(path, false, static_cast<int64_t>(std::filesystem::file_size(path) / 8),
                              torch::kDouble)) {}
  torch::Tensor take(at::IntArrayRef shape) {
    const int64_t count = c10::multiply_integers(shape);
    const auto part = all_.narrow(0, at_, count).reshape(shape).clone();
    at_ += count;
    return part;
  }

 private:
  torch::Tensor all_;
  int64_t at_ = 0;
};

accelerate::Precision precision_of(const std::string& name) {
  if (name == "bf16") return accelerate::Precision::bf16;
  return name == "fp16" ? accelerate::Precision::fp16 : accelerate::Precision::no;
}

void train(const std::string& path, const std::string& type, int64_t steps, int64_t batch) {
  accelerate::Accelerator accelerator({.mixed_precision = precision_of(type), .device = testing::device().str()});
  const auto dtype = type == "float64" ? torch::kDouble : torch::kFloat;
  at::set_num_threads(1);
  Numbers numbers(path);
  BasicNet net(/*dropout=*/false);
  net->to(dtype);
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.copy_(numbers.take(parameter.sizes()));
  }
  const auto images = numbers.take({steps, batch, 1, 28, 28}).to(accelerator.device(), dtype);
  const auto labels = numbers.take({steps, batch}).to(accelerator.device(), torch::kLong);
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adamw);

  const int64_t share = batch / accelerator.num_processes(), first = accelerator.process_index() * share;
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto loss =
        torch::nll_loss(model(images[step].narrow(0, first, share)), labels[step].narrow(0, first, share));
    accelerator.backward(loss);
    optimizer.step();
    const auto mean = accelerator.reduce(loss.detach(), accelerate::comm::ReduceOp::mean);
    accelerator.print("{:.17g}\n", mean.item<double>());
  }
}

void resnet(const std::string& path, const std::string& type, int64_t steps, int64_t batch) {
  accelerate::Accelerator accelerator({.device = testing::device().str()});
  const auto dtype = type == "float64" ? torch::kDouble : torch::kFloat;
  at::set_num_threads(1);
  Numbers numbers(path);
  auto net = resnet18();
  net->to(dtype);
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.copy_(numbers.take(parameter.sizes()));
  }
  const auto images = numbers.take({steps, batch, 1, 28, 28}).to(accelerator.device(), dtype);
  const auto labels = numbers.take({steps, batch}).to(accelerator.device(), torch::kLong);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));

  const auto loss_of = [&, &model = model](int64_t step) {
    return torch::nn::functional::cross_entropy(model(images[step]), labels[step]);
  };
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto loss = loss_of(step);
    accelerator.backward(loss);
    optimizer.step();
    accelerator.print("{:.17g}\n", loss.item<double>());
  }
  net->eval();
  const torch::NoGradGuard no_grad;
  accelerator.print("{:.17g}\n", loss_of(0).item<double>());
}

void scale(const accelerate::precision::GradScalerOptions& options, const std::string& flags) {
  const auto device = testing::device();
  accelerate::precision::GradScaler scaler(options, device, {});
  for (const char flag : flags) {
    const auto gradient = torch::full({3}, flag == '1' ? INFINITY : 1.0, device);
    scaler.update(scaler.unscale({gradient}, scaler.scale()));
    fmt::print("{:.17g} {}\n", scaler.state().scale, scaler.state().growth_tracker);
  }
}

torch::nn::Sequential two_layers() {
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 10));
}

template <typename MakeNet>
void learn(const std::string& precision, const std::string& folder, const MakeNet& make_net,
           int64_t batches = std::numeric_limits<int64_t>::max(),
           int64_t to_test = std::numeric_limits<int64_t>::max()) {
  accelerate::Accelerator accelerator({.mixed_precision = precision_of(precision), .device = testing::device().str()});
  accelerator.set_seed(42);
  auto net = make_net();
  using accelerate::data::Split;
  auto [model, optimizer, loader, test_loader] =
      accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 1e-3),
                          accelerate::data::mnist(folder, {.batch_size = 64, .shuffle = true}),
                          accelerate::data::mnist(folder, {.batch_size = 1000}, Split::test));
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    accelerator.backward(torch::nn::functional::cross_entropy(model(images), labels));
    optimizer.step();
    if (--batches == 0) break;
  }
  const torch::NoGradGuard no_grad;
  int64_t right = 0, seen = 0;
  for (auto& [images, labels] : test_loader) {
    const torch::Tensor matches = accelerator.gather_for_metrics(model(images).argmax(1).eq(labels));
    right += matches.sum().item<int64_t>();
    seen += matches.size(0);
    if (seen >= to_test) break;
  }
  accelerator.print("test accuracy {:.4f}\n", static_cast<double>(right) / static_cast<double>(seen));
}

void ranks() {
  accelerate::Accelerator accelerator({.cpu = true});
  const auto sum = accelerator.reduce(torch::tensor(accelerator.process_index()));
  accelerator.print("{} ranks, {}, sum {}\n", accelerator.num_processes(), accelerator.group().backend(),
                    sum.item<int64_t>());
}

void restarted() {
  accelerate::Accelerator accelerator({.cpu = true});
  accelerator.wait_for_everyone();
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (accelerator.process_index() == 1 && std::string_view(count) == "0")
    throw std::runtime_error("the first time fails");
  const auto sum = accelerator.reduce(torch::tensor(accelerator.process_index()));
  accelerator.print("{} ranks, restart {}, sum {}\n", accelerator.num_processes(), count, sum.item<int64_t>());
}

// A second and a third Accelerator beside and after the first.
void several() {
  accelerate::Accelerator first({.cpu = true});
  {
    accelerate::Accelerator second({.cpu = true});
    const auto sum = second.reduce(first.reduce(torch::tensor(1)));
    first.print("beside: {}\n", sum.item<int64_t>());
  }
  accelerate::Accelerator third({.cpu = true});
  third.print("after: {}\n", third.reduce(torch::tensor(1)).item<int64_t>());
}

void bad_index() {
  accelerate::Accelerator accelerator({.device = testing::device().str()});
  torch::nn::Embedding net(10, 4);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto x = torch::tensor({3, 99}).to(accelerator.device());
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto loss = model(x).sum();
    accelerator.backward(loss);
    optimizer.step();
    accelerator.print("loss {}\n", loss.item<double>());
  }
}

void bad_target() {
  accelerate::Accelerator accelerator({.device = testing::device().str()});
  const auto x = torch::ones({3, 4}, accelerator.device()), weight = torch::ones({10, 4}, accelerator.device());
  const auto target = torch::tensor({3, 10, 4}).to(accelerator.device());
  const auto loss = accelerate::nn::linear_cross_entropy(x, weight, target, {.fused_kernel = true});
  accelerator.print("loss {}\n", loss.item<double>());
}

accelerate::AcceleratorOptions to_fail() {
  return {.timeout = std::chrono::seconds(60), .device = testing::device().str()};
}

void fail(int64_t rank) {
  accelerate::Accelerator accelerator(to_fail());
  if (accelerator.process_index() == rank) throw std::runtime_error("this rank fails on purpose");
  accelerator.wait_for_everyone();
}

/// All ranks but one call two all-reduces on the device; that one calls only the first.
void leave(int64_t rank) {
  accelerate::Accelerator accelerator(to_fail());
  const auto tensor = torch::ones({4}, accelerator.device());
  accelerator.group().all_reduce(tensor);
  if (accelerator.process_index() == rank) return;
  accelerator.group().all_reduce(tensor);
  accelerator.print("sum {}\n", tensor[0].item<double>());
}

/// One rank calls an all-reduce on the device with another shape.
void shape(int64_t rank) {
  accelerate::Accelerator accelerator(to_fail());
  const auto tensor = torch::ones({accelerator.process_index() == rank ? 5 : 4}, accelerator.device());
  accelerator.group().all_reduce(tensor);
  accelerator.print("sum {}\n", tensor[0].item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.at(0) == "ranks") ranks();
    if (words.at(0) == "restarted") restarted();
    if (words.at(0) == "several") several();
    if (words.at(0) == "bad_index") bad_index();
    if (words.at(0) == "bad_target") bad_target();
    if (words.at(0) == "fail") fail(std::stoll(words.at(1)));
    if (words.at(0) == "leave") leave(std::stoll(words.at(1)));
    if (words.at(0) == "shape") shape(std::stoll(words.at(1)));
    if (words.at(0) == "train") {
      train(words.at(1), words.at(2), std::stoll(words.at(3)), std::stoll(words.at(4)));
    }
    if (words.at(0) == "resnet") {
      resnet(words.at(1), words.at(2), std::stoll(words.at(3)), std::stoll(words.at(4)));
    }
    if (words.at(0) == "scaler") {
      scale({.init_scale = std::stod(words.at(1)),
             .growth_factor = std::stod(words.at(2)),
             .backoff_factor = std::stod(words.at(3)),
             .growth_interval = std::stoll(words.at(4)),
             .min_scale = 0},
            words.at(5));
    }
    if (words.at(0) == "learn") learn(words.at(1), words.at(2), two_layers);
    if (words.at(0) == "learn_few") {
      learn(
          words.at(1), words.at(2), [] { return BasicNet(/*dropout=*/false); }, std::stoll(words.at(3)), 1000);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
}
