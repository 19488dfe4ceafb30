// SPDX-License-Identifier: Apache-2.0
// examples/mnist.cpp with checkpoints: it may be killed at any time, and continues from its last checkpoint when it is
// started again with --resume.
#include <accelerate/accelerate.hpp>

#include "basic_net.hpp"
#include "command_line.hpp"

namespace {

struct Options {
  std::string data_dir = "examples/data/mnist";
  std::string project_dir = "mnist_run";
  int64_t epochs = 3;
  int64_t batch_size = 64;
  int64_t checkpointing_steps = 50;
  bool resume = false;
  bool async = false;
  double lr = 1e-3;
  uint64_t seed = 42;
};

/// \returns the program's exit code.
int train(const Options& options) {
  accelerate::Accelerator accelerator({.project = {.project_dir = options.project_dir, .total_limit = 2}});
  accelerator.set_seed(options.seed, {.device_specific = true});
  const accelerate::PreemptionGuard notice;

  BasicNet net;
  torch::optim::AdamW adamw(net->parameters(), options.lr);
  auto digits = accelerate::data::mnist(options.data_dir, {.batch_size = options.batch_size, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, digits);

  int64_t step = 0, epoch = 0;
  if (options.resume) {
    const auto loaded = accelerator.load_state({}, {.if_any = true});
    step = loaded.step;
    epoch = loaded.epoch;
    if (!loaded.path.empty()) accelerator.print("continues after step {}, from {}\n", step, loaded.path.string());
  }
  for (; epoch < options.epochs; ++epoch) {
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      ++step;
      if (step % 20 == 0) accelerator.print("epoch {} step {} loss {:.4f}\n", epoch + 1, step, loss.item<double>());
      if (step % options.checkpointing_steps == 0) accelerator.save_state({}, {.async = options.async});
      if (notice.requested()) accelerator.set_trigger();
      if (accelerator.check_trigger()) {  // true on all ranks once one rank has been preempted
        accelerator.save_state();
        accelerator.print("stopped on request: saved after step {}\n", step);
        return accelerate::resume_exit_code;
      }
    }
  }
  accelerator.wait_for_checkpoint();
  accelerator.save_model(model, options.project_dir);
  accelerator.on_main_process([&] { fmt::print("trained for {} steps\n", step); });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains BasicNet on MNIST and can be resumed");
  app.add_option("--data-dir", options.data_dir, "Folder with the four IDX files, gzipped or not")
      ->capture_default_str();
  app.add_option("--project-dir", options.project_dir, "Folder for checkpoints and the trained weights")
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training set")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples per step and process")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--checkpointing_steps,--checkpointing-steps", options.checkpointing_steps,
                 "Optimizer steps from one checkpoint to the next")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}))
      ->capture_default_str();
  app.add_flag("--resume", options.resume, "Continue from the newest complete checkpoint, if there is one");
  app.add_flag("--async", options.async, "Write checkpoints while training continues");
  app.add_option("--seed", options.seed, "Seed of weights, order and dropout")->capture_default_str();
  return command_line::run(app, argc, argv, [&] { return train(options); });
}
