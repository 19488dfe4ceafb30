// SPDX-License-Identifier: Apache-2.0
// What tests start under our launcher and under others'.
//   probe who                                  the main process prints "2 ranks, mpi, sum 1"
//   probe train FILE float64|float32 STEPS BATCH
//       trains BasicNet (no dropout) on the weights and batches that parity.py wrote and prints a loss per step; on P
//       ranks each takes its P-th of every batch, and the mean of the losses is printed
//   probe restarted                            the same, but rank 1 throws until torchrun has restarted it once
//   probe several                              two Accelerators side by side, a third afterwards
//   probe fail RANK                            that rank throws before a collective, the others wait in it
#include <accelerate/accelerate.hpp>
#include <cstdlib>
#include <filesystem>

#include "examples/basic_net.hpp"

namespace {

// The file is one run of float64 numbers: parameters in order, images, labels.
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

void train(const std::string& path, torch::ScalarType dtype, int64_t steps, int64_t batch) {
  accelerate::Accelerator accelerator({.cpu = true});
  at::set_num_threads(1);
  Numbers numbers(path);
  BasicNet net(/*dropout=*/false);
  net->to(dtype);
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.copy_(numbers.take(parameter.sizes()));
  }
  const auto images = numbers.take({steps, batch, 1, 28, 28}).to(dtype);
  const auto labels = numbers.take({steps, batch}).to(torch::kLong);
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

void who() {
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

void fail(int64_t rank) {
  accelerate::Accelerator accelerator({.cpu = true, .timeout = std::chrono::seconds(60)});
  if (accelerator.process_index() == rank) throw std::runtime_error("this rank fails on purpose");
  accelerator.wait_for_everyone();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.at(0) == "who") who();
    if (words.at(0) == "restarted") restarted();
    if (words.at(0) == "several") several();
    if (words.at(0) == "fail") fail(std::stoll(words.at(1)));
    if (words.at(0) == "train") {
      train(words.at(1), words.at(2) == "float64" ? torch::kDouble : torch::kFloat, std::stoll(words.at(3)),
            std::stoll(words.at(4)));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
}
