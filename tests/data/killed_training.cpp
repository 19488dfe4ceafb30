// SPDX-License-Identifier: Apache-2.0
// killed_training FOLDER [STEPS]: three epochs over 50 samples. Each rank appends a line "epoch: samples" per step to
// FOLDER/order.RANK, and rank 0 writes the loader's position to FOLDER/state.json, from which a later run resumes.
// After STEPS steps of a run all ranks are killed, as by a machine failure.
#include <unistd.h>

#include <accelerate/accelerate.hpp>
#include <accelerate/data/loader_state.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace fs = std::filesystem;

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const fs::path folder = argv[1];
  const int64_t steps = argc > 2 ? std::atoll(argv[2]) : -1;

  accelerate::Accelerator accelerator;
  auto loader = accelerator.prepare(
      accelerate::data::from_tensors(torch::arange(50), {}, {.batch_size = 3, .shuffle = true, .num_workers = 2}));
  loader->set_seed(11);
  const fs::path state = folder / "state.json";
  if (fs::exists(state)) {
    loader.load_state(accelerate::data::loader_state_from_json(nlohmann::json::parse(std::ifstream(state))));
  }
  accelerator.wait_for_everyone();
  std::ofstream order(folder / fmt::format("order.{}", accelerator.process_index()), std::ios::app);

  int64_t step = 0;
  while (loader->epoch() < 3) {
    const int64_t epoch = loader->epoch();
    for (auto& batch : loader) {
      order << epoch << ":";
      for (int64_t i = 0; i < batch.data.size(0); ++i) order << ' ' << batch.data[i].item<int64_t>();
      order << std::endl;
      if (accelerator.is_main_process()) {
        std::ofstream(folder / "state.new") << nlohmann::json(loader.state()).dump();
        fs::rename(folder / "state.new", state);
      }
      accelerator.wait_for_everyone();
      if (++step == steps) ::kill(::getpid(), SIGKILL);
    }
  }
}
