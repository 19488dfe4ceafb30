// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/pipeline_state.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>

#include "accelerate/archive/checksum.hpp"
#include "accelerate/checkpoint/tensors.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/pipeline/model_layout.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/stage_names.hpp"
#include "accelerate/prepared/tensor_parts.hpp"

namespace accelerate::prepared {
namespace {

using checkpoint::NamedTensors;

/// Returns one line per tensor with name, dtype and sizes.
std::string describe_stage(const NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    text += fmt::format("{}\t{} {}\n", name, static_cast<int>(tensor.scalar_type()), fmt::join(tensor.sizes(), " "));
  }
  return text;
}

std::vector<std::pair<std::string, at::Tensor>> described_tensors(const std::string& text, at::Device device) {
  NamedTensors tensors;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto tab = line.rfind('\t');
    std::istringstream numbers(line.substr(tab + 1));
    int dtype = 0;
    numbers >> dtype;
    std::vector<int64_t> sizes;
    for (int64_t size = 0; numbers >> size;) sizes.push_back(size);
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)).device(device);
    tensors.emplace_back(line.substr(0, tab), at::empty(sizes, options));
  }
  return tensors;
}

/// Sends the missing tensors to rank 0. `tensors` becomes the union on rank 0 and is unchanged on other ranks.
void join_on_first_stage(const AcceleratorState& shared, NamedTensors& tensors, std::string_view operation) {
  const comm::Group& group = shared.mesh.pipeline;
  const at::NoGradGuard no_grad;
  comm::with_operation_context(operation, "the tensors of the stages are not joined", shared.place, [&] {
    const auto described = group.all_gather_bytes(describe_stage(tensors));
    std::unordered_set<std::string> known;
    for (size_t rank = 0; rank < described.size(); ++rank) {
      size_t index = 0;
      for (auto& [name, transfer] : described_tensors(described[rank], shared.device)) {
        const size_t own = index++;
        if (!known.insert(name).second || rank == 0) continue;
        if (group.rank() == static_cast<int64_t>(rank)) {
          group.send(tensors[own].second.detach().to(shared.device).contiguous(), 0);
        } else if (group.rank() == 0) {
          group.recv(transfer, static_cast<int64_t>(rank));
          tensors.emplace_back(name, transfer.cpu());
        }
      }
    }
  });
}

/// Content of registered objects that must be equal on all stages: all but the tensors of their own layers.
std::string describe_customs(AcceleratorState& shared, const std::vector<checkpoint::CustomState>& customs) {
  std::string text;
  for (const auto& custom : customs) {
    if (const auto* bytes = std::get_if<std::string>(&custom)) {
      text += fmt::format("{} bytes with checksum {}; ", bytes->size(), archive::checksum_of(*bytes));
      continue;
    }
    text += "tensors";
    for (const auto& [name, tensor] : std::get<NamedTensors>(custom)) {
      if (belongs_to_a_stage(shared, name)) continue;
      const at::Tensor written = checkpoint::as_written(tensor, name, "save_state");
      text += fmt::format(" {} with checksum {}", name, archive::checksum_of(checkpoint::tensor_bytes(written)));
    }
    text += "; ";
  }
  return text;
}

}  // namespace

void check_stage_model(AcceleratorState& shared, const ModelCore& model, std::string_view operation,
                       bool save_on_each_node) {
  if (!has_pipeline_stages(shared)) return;
  const int64_t stages = shared.mesh.pipeline.size();
  if (save_on_each_node) {
    refuse_stage(
        shared, operation,
        "with pp_size {} project.save_on_each_node is not supported, because no machine would have all stages; set "
        "it to false",
        stages);
  }
  if (model.options().pipeline != nullptr) return;
  for (const ModelCore& other : shared.registry.of<ModelCore>()) {
    if (other.options().pipeline == nullptr) continue;
    refuse_stage(
        shared, operation,
        "with pp_size {} {} is an nn::Pipeline and {} is not, and prepare() does not keep models equal on all "
        "stages; make {} a layer of the Pipeline, or leave it out of prepare() and register an object with its "
        "state_dict() by register_for_checkpointing(), which compares it on all stages",
        stages, other.name(), model.name(), model.name());
  }
  refuse_stage(
      shared, operation,
      "with pp_size {} every rank of a pipeline has other layers, but {} is not an nn::Pipeline, so the files would "
      "contain only the layers of one rank; make it an nn::Pipeline, or save its modules on each rank",
      stages, model.name());
}

void check_stages(AcceleratorState& shared, std::string_view operation, bool save_on_each_node) {
  if (!has_pipeline_stages(shared)) return;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    check_stage_model(shared, model, operation, save_on_each_node);
  }
  check_optimizers_of_stages(shared, operation);
}

void check_stage_content(const AcceleratorState& shared, const checkpoint::CheckpointContent& content) {
  if (!has_pipeline_stages(shared)) return;
  for (size_t i = 0; i < content.optimizers.size(); ++i) {
    if (content.optimizers[i].own.empty()) continue;
    refuse_stage(shared, "save_state",
                 "optimizer {} saves its state by itself, and has only the parameters of one Pipeline stage; use SGD, "
                 "Adam, AdamW, Adagrad or RMSprop of torch::optim",
                 i);
  }
}

void convert_to_stage_parts(AcceleratorState& shared, const std::vector<OptimizerParameterNames>& optimizers,
                            checkpoint::CheckpointContent& content) {
  if (!has_pipeline_stages(shared)) return;
  const bool saves = is_stage_writer(shared);
  for (size_t i = 0; i < content.models.size(); ++i) {
    for (const auto& [name, tensor] : std::exchange(content.models[i], {})) {
      if (!saves) break;
      content.parts.push_back(whole_part("model", static_cast<int64_t>(i), name, tensor));
    }
    content.in_parts[i] = true;
  }
  for (const auto& [name, master] : std::exchange(content.masters, {})) {
    if (saves) content.parts.push_back(whole_part("master_weights", 0, name, master));
  }
  move_optimizers_to_parts(shared, optimizers, content);
  if (!saves) return;
  check_equal_on_stages(shared, "save_state", "the registered objects", describe_customs(shared, content.customs));
  for (auto& custom : content.customs) {
    if (auto* tensors = std::get_if<NamedTensors>(&custom)) join_on_first_stage(shared, *tensors, "save_state");
  }
}

void keep_own_stage(AcceleratorState& shared, const NamedTensors& own, NamedTensors& saved) {
  if (!has_pipeline_stages(shared)) return;
  std::unordered_set<std::string_view> names;
  for (const auto& [name, tensor] : own) names.insert(name);
  std::erase_if(
      saved, [&](const auto& one) { return !names.contains(one.first) && belongs_to_other_stage(shared, one.first); });
}

void gather_stages(const ModelCore& model, NamedTensors& weights) {
  const AcceleratorState& shared = model.shared();
  const auto& layout = model.options().pipeline;
  if (!has_pipeline_stages(shared) || layout == nullptr) return;
  if (is_stage_writer(shared)) join_on_first_stage(shared, weights, "save_model");
  if (shared.mesh.world.rank() != 0) return weights.clear();
  std::ranges::sort(weights, {}, [&](const auto& named) { return layout->positions.at(named.first); });
}

}  // namespace accelerate::prepared
