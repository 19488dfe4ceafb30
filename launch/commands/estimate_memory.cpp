// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/estimate_memory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "accelerate/base/error.hpp"
#include "accelerate/base/terminal_text.hpp"
#include "launch/commands/text.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEstimateProgram = "accelerate_estimate_memory";
constexpr uint64_t kMaxBytes = uint64_t{1} << 56;

bool counts_as_parameter(const std::string& dtype) {
  return dtype.starts_with("F") || dtype.starts_with("BF") || dtype.starts_with("C");
}

std::pair<std::string, std::string> layer_and_tensor(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? std::pair(name, name) : std::pair(name.substr(0, dot), name.substr(dot + 1));
}

struct OptimizerState {
  std::string_view name;
  uint64_t floats;  // per parameter, in float32
};
constexpr std::array<OptimizerState, 3> kOptimizerStates{{{"adam", 2}, {"momentum", 1}, {"sgd", 0}}};

fs::path found_in(const fs::path& folder) {
  constexpr std::array<const char*, 4> names{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                             "pytorch_model.bin.index.json"};
  for (const char* name : names) {
    if (fs::exists(folder / name)) return folder / name;
  }
  base::fail(ErrorKind::io, {}, kEstimateProgram, "{} holds none of {}; name the file", folder.string(),
             fmt::join(names, ", "));
}

std::vector<Weight> weights_of(const fs::path& path) {
  if (path.extension() != ".json") return read_weight_file(path, kEstimateProgram).weights;
  std::vector<Weight> all;
  for (const WeightFile& shard : read_sharded(path, kEstimateProgram)) {
    all.insert(all.end(), shard.weights.begin(), shard.weights.end());
  }
  return all;
}

// Bytes per parameter for one kind of training: weight, gradient and optimizer state.
struct TrainingRow {
  std::string name;
  double weight;
  uint64_t gradient, optimizer;
  bool trains = true;
};

std::vector<std::string> cells_of(const TrainingRow& row, const ModelSize& size) {
  const auto scaled = [](double bytes, uint64_t numbers) {
    return static_cast<uint64_t>(bytes * static_cast<double>(numbers));
  };
  const uint64_t weights = scaled(row.weight, size.numbers);
  std::vector<std::string> cells{row.name, readable_bytes(scaled(row.weight, size.largest.numbers)),
                                 readable_bytes(weights)};
  if (!row.trains) {
    cells.insert(cells.end(), 3, "-");
    return cells;
  }
  const uint64_t gradients = row.gradient * size.numbers;
  const uint64_t optimizer = row.optimizer * size.numbers;
  for (const uint64_t bytes : {gradients, optimizer, weights + gradients + optimizer}) {
    cells.push_back(readable_bytes(bytes));
  }
  return cells;
}

std::string report(const std::string& name, const ModelSize& size, const OptimizerState& optimizer) {
  std::string text = fmt::format("{}: {}, {}, {}\n", name, counted(size.tensors, "tensor"),
                                 counted(size.parameters, "parameter"), readable_bytes(size.bytes));
  if (size.shared > 0) text += fmt::format("{} of them in memory of another, counted once\n", with_commas(size.shared));
  std::vector<std::vector<std::string>> dtypes{{"dtype", "tensors", "elements", "memory"}};
  for (const DtypeSize& row : size.dtypes) {
    dtypes.push_back({row.dtype, with_commas(row.tensors), with_commas(row.elements), readable_bytes(row.bytes)});
  }
  text += "\n" + table_of(dtypes);
  text += fmt::format("\nlargest layer: {} ({}), {}\n\n", base::escape_for_terminal(size.largest.name),
                      base::escape_for_terminal(fmt::format("{}", fmt::join(size.largest.tensors, ", "))),
                      counted(size.largest.parameters, "parameter"));
  const uint64_t states = 4 * optimizer.floats;
  const std::vector<TrainingRow> rows{{"float32, or mixed bf16 or fp16", 4, 4, states},
                                      {"bfloat16, masters in float32", 2, 2, states + 4},
                                      {"int8", 1, 0, 0, false},
                                      {"int4", 0.5, 0, 0, false}};
  std::vector<std::vector<std::string>> training{
      {"", "largest layer", "weights", "gradients", std::string(optimizer.name), "training"}};
  for (const TrainingRow& row : rows) training.push_back(cells_of(row, size));
  return text + table_of(training) + "Activations and the memory of the system and its libraries are not included.\n";
}

}  // namespace

ModelSize size_of(const std::vector<Weight>& weights) {
  ModelSize size{.tensors = weights.size()};
  std::set<std::string_view> counted_memory;
  std::map<std::string, DtypeSize> dtypes;
  std::map<std::string, LayerSize> layers;
  for (const Weight& weight : weights) {
    if (!counted_memory.insert(weight.memory).second) {
      ++size.shared;
      continue;
    }
    // The limit leaves room for some 20 bytes per element in training, without overflow of 64 bits.
    if (weight.bytes > kMaxBytes - size.bytes) {
      base::fail(ErrorKind::data, {}, kEstimateProgram,
                 "{} of shape {} has {}, with the tensors before it more than {}",
                 base::quote_for_terminal(weight.name), text_of_shape(weight.shape),
                 counted(weight.elements, "element"), readable_bytes(kMaxBytes));
    }
    DtypeSize& row = dtypes[weight.dtype];
    ++row.tensors;
    row.elements += weight.elements;
    row.bytes += weight.bytes;
    size.bytes += weight.bytes;
    if (!counts_as_parameter(weight.dtype)) continue;
    const uint64_t numbers = weight.elements * (weight.dtype.starts_with("C") ? 2 : 1);
    size.parameters += weight.elements;
    size.numbers += numbers;
    const auto [layer, tensor] = layer_and_tensor(weight.name);
    layers[layer].tensors.push_back(tensor);
    layers[layer].parameters += weight.elements;
    layers[layer].numbers += numbers;
  }
  for (auto& [name, row] : dtypes) {
    row.dtype = name;
    size.dtypes.push_back(row);
  }
  std::stable_sort(size.dtypes.begin(), size.dtypes.end(),
                   [](const DtypeSize& a, const DtypeSize& b) { return a.bytes > b.bytes; });
  for (auto& [name, layer] : layers) {
    layer.name = name;
    std::sort(layer.tensors.begin(), layer.tensors.end());
    if (layer.numbers > size.largest.numbers) size.largest = layer;
  }
  return size;
}

CommandResult estimate_memory(const Arguments& arguments) {
  CommandLine line(
      std::string(kEstimateProgram),
      "Estimates the memory of a model: its weights, and with gradients and optimizer. Reads only the header "
      "of FILE.\n",
      {"accelerate_estimate_memory model.safetensors",
       "accelerate_estimate_memory --optimizer momentum checkpoints/checkpoint_7"});
  std::string file;
  std::string optimizer = "adam";
  line.app()
      .add_option("FILE", file,
                  "A .safetensors file, a file of torch.save (pytorch_model.bin), the index of a sharded model "
                  "(model.safetensors.index.json), or a folder with one of them")
      ->required();
  line.app()
      .add_option("--optimizer", optimizer,
                  "adam (also AdamW: two numbers per parameter), momentum (SGD with momentum: one) or sgd (none) "
                  "(default adam)")
      ->type_name("NAME");
  if (auto answer = line.parse(arguments)) return *answer;
  const auto* const state = std::find_if(kOptimizerStates.begin(), kOptimizerStates.end(),
                                         [&](const OptimizerState& row) { return row.name == optimizer; });
  if (state == kOptimizerStates.end()) {
    base::fail(ErrorKind::usage, {}, kEstimateProgram, "--optimizer is '{}', must be adam, momentum or sgd", optimizer);
  }
  const fs::path path = fs::is_directory(file) ? found_in(file) : fs::path(file);
  const ModelSize size = size_of(weights_of(path));
  if (size.parameters == 0) {
    base::fail(ErrorKind::data, {}, kEstimateProgram, "{} holds no tensor of floating numbers", path.string());
  }
  return {report(path.string(), size, *state)};
}

}  // namespace accelerate::launch
