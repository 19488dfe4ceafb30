// SPDX-License-Identifier: Apache-2.0
// Loads a checkpoint of Hugging Face Accelerate's FSDP and trains on, for fsdp.py.
//
//   fsdp_probe DTYPE STRATEGY FOLDER OUT   prints the steps that load_state() found and draws of each rank's generator;
//   saves the loaded state in OUT/loaded and that after three steps in OUT/after. Then loads the weights alone, from
//   the checkpoint and from its folder of weights, and saves them in OUT/checkpoint and OUT/weights.
#include <accelerate/accelerate.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t inputs, int64_t outputs) : fc(register_module("fc", torch::nn::Linear(inputs, outputs))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(fc(x)); }
  torch::nn::Linear fc;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return head(second(first(x)) * scale + shift); }
  torch::nn::Linear head = register_module("head", torch::nn::Linear(3, 1));
  Block first = register_module("first", Block(5, 7));
  Block second = register_module("second", Block(7, 3));
  torch::Tensor scale = register_buffer("scale", torch::zeros({}));
  torch::Tensor shift = register_buffer("shift", torch::zeros({3}));
};
TORCH_MODULE(Net);

c10::ScalarType dtype_of(const std::string& name) {
  if (name == "float64") return torch::kDouble;
  if (name == "float32") return torch::kFloat;
  if (name == "bfloat16") return torch::kBFloat16;
  throw std::runtime_error("no dtype " + name);
}

// This rank's part of twelve rows, with Python's values.
torch::Tensor rows(const accelerate::Accelerator& accelerator, int64_t step, int64_t columns) {
  const int64_t count = 12 / accelerator.num_processes(), first = accelerator.process_index() * count;
  const auto row = torch::arange(first, first + count).unsqueeze(1), column = torch::arange(columns).unsqueeze(0);
  return (row * 31 + column * 17 + step * 7).remainder(13).to(torch::kDouble) / 16 - 0.375;
}

// Options that differ from the saved ones, which replace them.
std::vector<torch::optim::OptimizerParamGroup> groups_of(const Net& net) {
  std::vector<torch::Tensor> weights, biases;
  for (const auto& parameter : net->named_parameters()) {
    (parameter.key().ends_with(".weight") ? weights : biases).push_back(parameter.value());
  }
  return {torch::optim::OptimizerParamGroup(weights), torch::optim::OptimizerParamGroup(biases)};
}

fs::path folder_of_weights(const fs::path& checkpoint) {
  const fs::path sharded = checkpoint / "pytorch_model_fsdp_0";
  return fs::exists(sharded) ? sharded : checkpoint / "pytorch_model_fsdp.bin";
}

void run(const std::string& dtype_name, const std::string& strategy, const fs::path& from, const fs::path& out) {
  accelerate::AcceleratorOptions options{.cpu = true, .step_scheduler_with_optimizer = false};
  if (strategy == "full_shard") {
    options.sharding = accelerate::ShardingStrategy::full_shard;
    options.fsdp_plugin.state_dict_type = accelerate::StateDictType::full_state_dict;  // files that Python reads
    options.fsdp_plugin.min_num_params = 8;
  }
  accelerate::Accelerator accelerator(options);
  accelerator.set_seed(7);
  const auto dtype = dtype_of(dtype_name);
  Net net;
  net->to(dtype);
  torch::optim::AdamW adamw(groups_of(net), torch::optim::AdamWOptions(0.5).weight_decay(0.125));
  accelerate::optim::StepLR step_lr(adamw, 2, 0.5);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adamw, step_lr);
  const auto loaded = accelerator.load_state(from);
  const auto draws = torch::rand({3}, torch::kDouble);
  std::printf("step %ld\ndraws %ld %.17g %.17g %.17g\n", loaded.step, accelerator.process_index(),
              draws[0].item<double>(), draws[1].item<double>(), draws[2].item<double>());
  accelerator.save_state(out / "loaded");
  for (int64_t step = 3; step < 6; ++step) {
    optimizer.zero_grad();
    const auto loss =
        torch::mse_loss(model(rows(accelerator, step, 5).to(dtype)), rows(accelerator, step + 1, 1).to(dtype));
    accelerator.backward(loss);
    optimizer.step();
    scheduler.step();
  }
  accelerator.save_state(out / "after");
  accelerator.load_model(model, from);
  accelerator.save_model(model, out / "checkpoint");
  accelerator.load_model(model, folder_of_weights(from));
  accelerator.save_model(model, out / "weights");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw std::runtime_error("fsdp_probe DTYPE STRATEGY FOLDER OUT");
    run(argv[1], argv[2], argv[3], argv[4]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
