// SPDX-License-Identifier: Apache-2.0
// A training that is killed with signal 9 after each of its micro-batches in turn, and restarted, equals the
// uninterrupted training: its last checkpoint has the same bytes.
//
//   checkpoint_kills FOLDER                one process, killed after each micro-batch
//   checkpoint_kills FOLDER AFTER UNSAVED  one rank of killed_ranks.py: the last rank is killed after AFTER
//   micro-batches
//                                          (never if 0), before they are saved if UNSAVED is 1
#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/accelerate.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "accelerate/base/remove_tree.hpp"

namespace {

namespace fs = std::filesystem;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(bn(first(x)));
    return second(torch::dropout(x, 0.3, is_training()));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 10));
  torch::nn::BatchNorm1d bn = register_module("bn", torch::nn::BatchNorm1d(10));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(10, 3));
};
TORCH_MODULE(Net);

/// Losses so far, with their loss scales.
struct History {
  std::string lines;
  int64_t micro_batches = 0;
  [[nodiscard]] std::string state() const { return lines; }
  void load_state(const std::string& state) {
    lines = state;
    micro_batches = std::count(lines.begin(), lines.end(), '\n');
  }
};

constexpr int64_t samples = 28, batch_size = 4, epochs = 2, micro_batches = epochs * samples / batch_size;

/// \param killed_after  Micro-batch after which the process is killed, before or after its save (which the writer
///                      thread may not have completed); 0 for none.
void train(const fs::path& folder, accelerate::AcceleratorOptions options, int64_t killed_after, bool before_saving) {
  options.cpu = true;
  options.project = {.project_dir = folder, .total_limit = 3};
  accelerate::Accelerator accelerator(options);
  accelerator.set_seed(3);
  Net net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  accelerate::optim::OneCycleLR one_cycle(adamw, 0.02, 40);
  const auto x = torch::arange(samples * 6, torch::kFloat).remainder(23).reshape({samples, 6}) / 11.5 - 1;
  auto data = accelerate::data::from_tensors(x, torch::arange(samples).remainder(3),
                                             {.batch_size = batch_size, .shuffle = true});
  auto [model, optimizer, scheduler, loader] = accelerator.prepare(net, adamw, one_cycle, data);
  History history;
  accelerator.register_for_checkpointing(history);
  const auto kill_if = [&](bool now) {
    if (now && accelerator.is_last_process() && history.micro_batches == killed_after) ::raise(SIGKILL);
  };
  for (int64_t epoch = accelerator.load_state({}, {.if_any = true}).epoch; epoch < epochs; ++epoch) {
    for (auto& [images, labels] : loader) {
      auto window = accelerator.accumulate(model);
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      history.lines += fmt::format("{:a} {}\n", loss.item<double>(), accelerator.loss_scale());
      ++history.micro_batches;
      kill_if(before_saving);
      accelerator.save_state({}, {.async = history.micro_batches % 4 < 2, .durable = false});
      kill_if(!before_saving);
    }
  }
  accelerator.save_state(folder / "end", {.durable = false});
}

/// Runs in a child process. Returns false if it did not end as expected.
bool run(const fs::path& folder, const accelerate::AcceleratorOptions& options, int64_t killed_after = 0,
         bool before_saving = false) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      train(folder, options, killed_after, before_saving);
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return killed_after > 0 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                          : WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The names of the files that differ.
std::string differing(const fs::path& one, const fs::path& other) {
  std::string names;
  for (const auto& entry : fs::directory_iterator(one)) {
    const auto name = entry.path().filename();
    if (bytes_of(entry.path()) != bytes_of(other / name)) names.append(" ").append(name.string());
  }
  return names;
}

int check(const fs::path& folder, const char* what, const accelerate::AcceleratorOptions& options) {
  int failures = 0;
  const fs::path calm = folder / "calm", killed = folder / "killed";
  if (!run(calm, options)) return 1;
  for (int64_t after = 1; after <= micro_batches; ++after) {
    for (const bool before_saving : {false, true}) {
      accelerate::base::remove_tree(killed);
      const bool right = run(killed, options, after, before_saving) && run(killed, options);
      const std::string differ = right ? differing(calm / "end", killed / "end") : " it did not run";
      if (differ.empty()) continue;
      ++failures;
      std::printf("%s, killed after %d%s:%s\n", what, static_cast<int>(after), before_saving ? ", unsaved" : "",
                  differ.c_str());
    }
  }
  std::printf("%s: %d kills, %zu bytes of equal weights\n", what, static_cast<int>(2 * micro_batches),
              bytes_of(calm / "end" / "model.safetensors").size());
  accelerate::base::remove_tree(calm);
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  at::set_num_threads(1);  // processes are forked
  const fs::path folder = argv[1];
  const accelerate::AcceleratorOptions in_windows{.mixed_precision = accelerate::Precision::fp16,
                                                  .gradient_accumulation_steps = 3,
                                                  .grad_scaler = {.init_scale = 1e9, .growth_interval = 3}};
  if (argc == 4) {
    train(folder, in_windows, std::stoll(argv[2]), std::string_view(argv[3]) == "1");
    return 0;
  }
  accelerate::base::remove_tree(folder);
  const int failures =
      check(folder, "float32", {}) + check(folder, "fp16 with a moving scale, within windows of three", in_windows);
  accelerate::base::remove_tree(folder);
  return failures == 0 ? 0 : 1;
}
