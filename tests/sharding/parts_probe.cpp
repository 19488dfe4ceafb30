// SPDX-License-Identifier: Apache-2.0
// parts_probe FOLDER: the same training state saved in parts by 3 ranks, whole by rank 0, and as a model alone.
#include <filesystem>

#include "accelerate/accelerate.hpp"
#include "tests/sharding/models.hpp"

namespace {

void save(const std::filesystem::path& folder, accelerate::StateDictType type) {
  accelerate::simulate(3, [&] {
    accelerate::Accelerator accelerator({.cpu = true,
                                         .sharding = accelerate::ShardingStrategy::full_shard,
                                         .fsdp_plugin = {.min_num_params = 30, .state_dict_type = type}});
    const auto of = sharding_testing::model_cases()[2];
    const auto net = of.make();
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    for (int64_t i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      accelerator.backward(sharding_testing::loss_of(model(of.inputs(i))));
      optimizer.step();
    }
    const bool is_full = type == accelerate::StateDictType::full_state_dict;
    accelerator.save_state(folder / (is_full ? "full" : "parts"));
    accelerator.save_model(model, folder / "model");
  });
}

}  // namespace

int main(int, char** arguments) {
  save(arguments[1], accelerate::StateDictType::sharded_state_dict);
  save(arguments[1], accelerate::StateDictType::full_state_dict);
  return 0;
}
