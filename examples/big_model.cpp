// SPDX-License-Identifier: Apache-2.0
// big_model: inference with a model that is larger than the memory for its weights. A part of the blocks stays on the
// CPU, the others are read from the file of the weights while the model runs (load_checkpoint_and_dispatch).
#include <accelerate/accelerate.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "command_line.hpp"

namespace {

namespace fs = std::filesystem;

constexpr int64_t kWidth = 1024;

struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(2 * kWidth, kWidth));
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(int64_t count) {
    for (int64_t i = 0; i < count; ++i) blocks->push_back(Block());
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return x;
  }
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
};
TORCH_MODULE(Model);

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Largest memory of this process since restart_peak(), in bytes.
int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") status >> kib;
  }
  return kib * 1024;
}
void restart_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

void read_once(const fs::path& path) {
  std::vector<char> part(size_t{1} << 22);
  std::ifstream file(path, std::ios::binary);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size()))) {
  }
}

/// Writes random weights as another program would. Returns the model's output.
torch::Tensor write_weights(const fs::path& folder, int64_t count, const torch::Tensor& input) {
  accelerate::Accelerator accelerator({.cpu = true});
  accelerator.set_seed(42);
  const auto model = accelerator.prepare(Model(count));
  accelerator.save_model(model, folder);
  return model(input);
}

void run(const std::string& folder, int64_t count, const std::string& memory) {
  const torch::NoGradGuard no_grad;
  const auto input = torch::linspace(-1, 1, 16 * kWidth).view({16, kWidth});
  const auto expected = write_weights(folder, count, input);
  const fs::path weights = fs::path(folder) / "model.safetensors";
  const double read = seconds_of([&] { read_once(weights); });

  restart_peak();
  const int64_t before = peak_memory();
  auto model = accelerate::init_empty_weights([&] { return Model(count); });
  const auto map =
      accelerate::load_checkpoint_and_dispatch(*model, folder, accelerate::DeviceMapStrategy::sequential,
                                               {.max_memory = {{"cpu", memory}}, .no_split_module_classes = {"Block"}});
  const auto on_disk = std::ranges::count_if(map, [](const auto& entry) { return entry.second == "disk"; });

  torch::Tensor output;
  model(input);
  const double forward = seconds_of([&] { output = model(input); });
  fmt::print("{} of {} blocks are on the disk\n", on_disk, count);
  fmt::print("a forward takes {:.3f} s, reading the file once {:.3f} s\n", forward, read);
  fmt::print("the weights have {} MiB, the process grew by {} MiB, the output differs by {}\n",
             fs::file_size(weights) >> 20, (peak_memory() - before) >> 20,
             (output - expected).abs().max().item<float>());
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = "big_model", memory = "60MB";
  int64_t blocks = 12;
  CLI::App app("Runs a model with weights that do not fit into the memory for them");
  app.add_option("FOLDER", folder, "Folder of the weights, which are replaced")->capture_default_str();
  app.add_option("--memory", memory, "Memory for weights that stay on the CPU")->capture_default_str();
  app.add_option("--blocks", blocks, "Number of blocks of 16 MiB")->check(CLI::Range(1, 10000))->capture_default_str();
  return command_line::run(app, argc, argv, [&] { run(folder, blocks, memory); });
}
