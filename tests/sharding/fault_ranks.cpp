// SPDX-License-Identifier: Apache-2.0
// fault_ranks POINT [CHECKPOINT]: one rank of a sharded training in which rank 1 is killed at a given point. Rank 0
// prints its error and exits with 3.
#include <sys/syscall.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>

#include "accelerate/accelerate.hpp"
#include "tests/device.hpp"

namespace {

std::atomic<bool> is_killed_at_fsync = false;

}  // namespace

/// Replaces the function of the C library in this program: a rank that saves calls it after it has written a file.
extern "C" int fsync(int file) {
  if (is_killed_at_fsync) std::raise(SIGKILL);
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace {

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) {
      x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
      if (killed_at == "forward" && is_victim) std::raise(SIGKILL);
    }
    if (killed_at == "backward" && is_victim) {
      x.register_hook([](const torch::Tensor& gradient) {
        std::raise(SIGKILL);
        return gradient;
      });
    }
    return x;
  }
  torch::nn::ModuleList layers = register_module(
      "layers", torch::nn::ModuleList(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8), torch::nn::Linear(8, 8)));
  std::string killed_at{};
  bool is_victim = false;
};

}  // namespace

int main(int count, char** arguments) {
  const std::string point = count > 1 ? arguments[1] : "", checkpoint = count > 2 ? arguments[2] : "";
  try {
    accelerate::Accelerator accelerator(
        {.timeout = std::chrono::seconds(5),
         .device = testing::device().str(),
         .fsdp_plugin = {.sharding_strategy = accelerate::ShardingStrategy::full_shard, .min_num_params = 60}});
    const auto net = std::make_shared<Net>();
    if (point == "save_state") {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.fill_(0.5);
    }
    torch::optim::AdamW adamw(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const bool is_victim = accelerator.process_index() == 1;
    if (point == "load_state") {
      accelerator.load_state(checkpoint);
      const auto whole = accelerate::Accelerator::summon_full_params(model);
      const auto parameters = net->parameters();
      const bool is_loaded =
          std::ranges::all_of(parameters, [](const auto& p) { return p.eq(0.5).all().template item<bool>(); });
      return is_loaded ? 0 : 4;
    }
    if (point == "save_state") accelerator.save_state(checkpoint);
    for (int64_t step = 0; step < 3; ++step) {
      if (step == 2) {
        net->killed_at = point;
        net->is_victim = is_victim;
      }
      optimizer.zero_grad();
      const auto loss = model(torch::ones({2, 8}, accelerator.device())).mean();
      if (step == 2 && point == "between" && is_victim) std::raise(SIGKILL);
      accelerator.backward(loss);
      if (step == 2 && point == "step" && is_victim) std::raise(SIGKILL);
      optimizer.step();
    }
    if (point == "save_state") {
      is_killed_at_fsync = is_victim;
      accelerator.save_state(checkpoint);
    }
    if (point == "save" && is_victim) std::raise(SIGKILL);
    accelerator.save_model(model, "/dev/null/never-written");
  } catch (const accelerate::Error& error) {
    std::printf("%s: %s\n", std::string(error_kind_name(error.kind())).c_str(), error.what());
    return 3;
  }
  return 0;
}
