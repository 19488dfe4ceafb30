// SPDX-License-Identifier: Apache-2.0
// Checkpoints on machines without a shared disk: each machine has the files of its own ranks. If one of two checkpoints
// is damaged on a single machine, every machine loads the other one.
//
//   own_disks FOLDER   on a local disk of each machine; removed at the end. Exits with 0 on success.
#include <fmt/ranges.h>

#include <accelerate/accelerate.hpp>
#include <fstream>
#include <set>

#include "accelerate/base/remove_tree.hpp"

namespace fs = std::filesystem;

namespace {

int failures = 0;

void expect(const accelerate::Accelerator& accelerator, bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  fmt::print(stderr, "own_disks: rank {}: {}\n", accelerator.process_index(), what);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void run(const fs::path& project) {
  accelerate::Accelerator accelerator({.cpu = true, .project = {.project_dir = project, .save_on_each_node = true}});
  const int64_t rank = accelerator.process_index();
  torch::nn::Linear net(3, 2);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::Adam(net->parameters(), 0.1));
  const auto step = [&] {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({1, 3})).square().sum());
    optimizer.step();
  };
  step();
  accelerator.save_state();
  torch::manual_seed(static_cast<uint64_t>(rank) + 5);
  const auto weights = net->weight.detach().clone();
  step();
  accelerator.save_state({}, {.async = true});
  accelerator.wait_for_checkpoint();
  // Each machine has one folder, with the random states of its own ranks only.
  const auto names = names_in(project / "checkpoints" / "checkpoint_1");
  for (const char* name : {"manifest.json", "model.safetensors", "optimizer.bin"}) {
    expect(accelerator, names.contains(name), fmt::format("{} is missing", name));
  }
  expect(accelerator, names.contains(fmt::format("random_states_{}.pkl", rank)), "its random states are missing");
  expect(accelerator, names.size() == 3 + static_cast<size_t>(accelerator.num_processes()) / 2,
         fmt::format("there are {} files", names.size()));
  accelerator.save_model(model, project / "weights");
  expect(accelerator, fs::exists(project / "weights" / "model.safetensors"), "the weights are missing");
  accelerator.wait_for_everyone();
  if (accelerator.is_last_process()) {
    std::ofstream(project / "checkpoints" / "checkpoint_1" / "model.safetensors", std::ios::app) << "x";
  }
  accelerator.wait_for_everyone();
  const auto loaded = accelerator.load_state();
  expect(accelerator, loaded.path == project / "checkpoints" / "checkpoint_0", "loaded " + loaded.path.string());
  expect(accelerator,
         loaded.skipped_checkpoints.size() == 1 &&
             loaded.skipped_checkpoints[0].starts_with("checkpoint_1: model.safetensors has ") &&
             loaded.skipped_checkpoints[0].ends_with(
                 fmt::format(", on rank {}'s machine", accelerator.num_processes() / 2)),
         fmt::format("passed over {}", fmt::join(loaded.skipped_checkpoints, "; ")));
  expect(accelerator, net->weight.equal(weights), "the weights are others");
  std::string message;
  try {
    accelerator.load_state(project / "checkpoints" / "checkpoint_1");
  } catch (const accelerate::Error& error) {
    message = error.what();
  }
  expect(accelerator,
         message.find("checkpoint_1 is incomplete or damaged: model.safetensors has ") != std::string::npos, message);
  accelerator.wait_for_everyone();
  // Complete on each machine, but from another save on one of them.
  if (accelerator.is_last_process()) {
    accelerate::base::remove_tree(project / "checkpoints" / "checkpoint_1");
    fs::copy(project / "checkpoints" / "checkpoint_0", project / "checkpoints" / "checkpoint_1",
             fs::copy_options::recursive);
  }
  accelerator.wait_for_everyone();
  const auto again = accelerator.load_state();
  const std::string differs =
      fmt::format("not of one save on all machines: on rank 0's it is of step 2, on rank {}'s another of step 1",
                  accelerator.num_processes() / 2);
  expect(accelerator, again.path == project / "checkpoints" / "checkpoint_0", "then loaded " + again.path.string());
  expect(accelerator,
         again.skipped_checkpoints.size() == 1 && again.skipped_checkpoints[0] == "checkpoint_1: " + differs,
         fmt::format("then passed over {}", fmt::join(again.skipped_checkpoints, "; ")));
  message.clear();
  try {
    accelerator.load_state(project / "checkpoints" / "checkpoint_1");
  } catch (const accelerate::Error& error) {
    message = error.what();
  }
  expect(accelerator,
         message.find("checkpoint_1 is " + differs + "; load one that all machines have") != std::string::npos,
         message);
  accelerator.wait_for_everyone();
  if (accelerator.is_local_main_process()) accelerate::base::remove_tree(project);
}

}  // namespace

int main(int, char** argv) {
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "own_disks: {}\n", error.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
