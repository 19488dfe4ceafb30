// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/pipeline_optimizer_state.hpp"

#include <c10/util/Type.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "accelerate/comm/error_context.hpp"
#include "accelerate/optim/optimizer_state.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/pipeline/model_layout.hpp"
#include "accelerate/prepared/checkpoint_content.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/pipeline_model.hpp"
#include "accelerate/prepared/stage_names.hpp"
#include "accelerate/prepared/tensor_parts.hpp"

namespace accelerate::prepared {
namespace {

/// Type and groups of an optimizer, with the options of each group.
std::string describe_groups(const AcceleratorState& shared, const OptimizerCore& optimizer) {
  torch::optim::Optimizer& stock = optimizer.optimizer();
  std::string text = optimizer.name() + " " + c10::demangle(typeid(stock).name());
  const auto state = optim::optimizer_state(stock, shared.place);
  for (const auto& group : state.groups) {
    text += ", group of";
    for (const auto& [name, value] : group.options) text += fmt::format(" {}={}", name, optim::text_of(value));
  }
  return text + "; ";
}

void check_order_of_parameters(AcceleratorState& shared, std::string_view operation) {
  std::unordered_map<const void*, std::pair<std::pair<int64_t, int64_t>, std::string>> places;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) {
      const std::pair place(model.index(), model.options().pipeline->positions.at(name));
      places.emplace(parameter.unsafeGetTensorImpl(), std::pair(place, name_in(model, name)));
    }
  }
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    for (const auto& group : optimizer.optimizer().param_groups()) {
      for (size_t i = 1; i < group.params().size(); ++i) {
        const auto& [before, name_before] = places.at(group.params()[i - 1].unsafeGetTensorImpl());
        const auto& [place, name] = places.at(group.params()[i].unsafeGetTensorImpl());
        if (before <= place) continue;
        refuse_stage(shared, operation,
                     "{} lists {} after {}, which is another order than that of the model, from which the numbers of "
                     "parameters in a checkpoint follow; list parameters in the order of parameters() of the Pipeline",
                     optimizer.name(), name, name_before);
      }
    }
  }
}

void add_optimizer_parts(AcceleratorState& shared, const OptimizerCore& optimizer, const OptimizerParameterNames& whole,
                         const std::unordered_map<const void*, std::string>& names,
                         checkpoint::CheckpointContent& content) {
  state::OptimizerState& state = content.optimizers[static_cast<size_t>(optimizer.index())];
  std::unordered_map<std::string, int64_t> numbers;
  for (const auto& group : whole) {
    for (const auto& name : group) numbers.emplace(name, static_cast<int64_t>(numbers.size()));
  }
  const auto parameters = optim::parameters_of(optimizer.optimizer());
  const auto tensors = std::exchange(state.tensors, {});
  const auto models = shared.registry.list<ModelCore>();
  // Parts of sharded state have the numbers of this rank's parameters.
  std::erase_if(content.parts, [&](checkpoint::TensorPart& part) {
    if (part.kind != "optimizer" || part.index != optimizer.index()) return false;
    const size_t dot = part.name.find('.');
    const at::Tensor& parameter = parameters.at(std::stoul(part.name.substr(0, dot)));
    part.name = fmt::format("{}{}", numbers.at(names.at(parameter.unsafeGetTensorImpl())), part.name.substr(dot));
    return is_tied_copy(models, parameter);
  });
  for (const auto& [own, named] : tensors) {
    const at::Tensor& parameter = parameters.at(static_cast<size_t>(own));
    if (!is_stage_writer(shared) || is_tied_copy(models, parameter)) continue;  // the first of its stages saves it
    const int64_t number = numbers.at(names.at(parameter.unsafeGetTensorImpl()));
    for (const auto& [name, tensor] : named) {
      content.parts.push_back(whole_part("optimizer", optimizer.index(), fmt::format("{}.{}", number, name), tensor));
    }
  }
  int64_t first = 0;
  for (size_t g = 0; g < state.groups.size(); ++g) {
    state.groups[g].parameters.resize(whole[g].size());
    std::iota(state.groups[g].parameters.begin(), state.groups[g].parameters.end(), first);
    first += static_cast<int64_t>(whole[g].size());
  }
}

}  // namespace

void check_optimizers_of_stages(AcceleratorState& shared, std::string_view operation) {
  const auto names = qualified_parameter_names(shared);
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    for (const at::Tensor& parameter : optim::parameters_of(optimizer.optimizer())) {
      if (names.contains(parameter.unsafeGetTensorImpl())) continue;
      refuse_stage(
          shared, operation,
          "with pp_size {} a parameter of shape [{}] of {} belongs to no prepared Pipeline; prepare its Pipeline, or "
          "give it to an optimizer that is not prepared",
          shared.mesh.pipeline.size(), fmt::join(parameter.sizes(), ", "), optimizer.name());
    }
  }
  check_order_of_parameters(shared, operation);
}

std::vector<OptimizerParameterNames> optimizer_parameter_names(AcceleratorState& shared, std::string_view operation) {
  const auto optimizers = shared.registry.list<OptimizerCore>();
  std::vector<OptimizerParameterNames> all(optimizers.size());
  if (!has_pipeline_stages(shared)) return all;
  const auto names = qualified_parameter_names(shared);
  std::string kinds, own;
  for (const auto& optimizer : optimizers) {
    const auto& groups = optimizer->optimizer().param_groups();
    all[static_cast<size_t>(optimizer->index())].resize(groups.size());
    kinds += describe_groups(shared, *optimizer);
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const at::Tensor& parameter : groups[g].params()) {
        own += fmt::format("{} {} {}\n", optimizer->index(), g, names.at(parameter.unsafeGetTensorImpl()));
      }
    }
  }
  check_equal_on_stages(shared, operation, "the optimizers", kinds);
  const auto described =
      comm::with_operation_context(operation, "the parameters of the stages are not compared", shared.place,
                                   [&] { return shared.mesh.pipeline.all_gather_bytes(own); });
  for (const std::string& text : described) {
    std::istringstream lines(text);
    size_t index = 0, group = 0;
    for (std::string name; lines >> index >> group && std::getline(lines >> std::ws, name);) {
      auto& of_group = all.at(index).at(group);
      if (std::ranges::find(of_group, name) == of_group.end()) of_group.push_back(name);
    }
  }
  const auto positions = positions_of_names(shared);
  for (OptimizerParameterNames& whole : all) {
    for (auto& group : whole) {
      std::ranges::sort(group, {}, [&](const std::string& name) { return positions.at(name); });
    }
  }
  return all;
}

void move_optimizers_to_parts(AcceleratorState& shared, const std::vector<OptimizerParameterNames>& optimizers,
                              checkpoint::CheckpointContent& content) {
  const auto names = qualified_parameter_names(shared);
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    add_optimizer_parts(shared, optimizer, optimizers[static_cast<size_t>(optimizer.index())], names, content);
  }
}

void keep_own_stage(AcceleratorState& shared, const OptimizerCore& optimizer, const OptimizerParameterNames& whole,
                    state::OptimizerState& saved) {
  if (!has_pipeline_stages(shared) || !saved.own.empty()) return;
  const auto names = qualified_parameter_names(shared);
  std::unordered_map<std::string, int64_t> own;  // position, counted over all groups
  int64_t position = 0;
  for (const at::Tensor& parameter : optim::parameters_of(optimizer.optimizer())) {
    own.emplace(names.at(parameter.unsafeGetTensorImpl()), position++);
  }
  if (!saved.parameter_names.empty()) {  // number_by_name() numbers them
    for (auto& group : saved.groups) {
      std::erase_if(group.parameters, [&](int64_t number) {
        std::string& name = saved.parameter_names.at(static_cast<size_t>(number));
        name = name_here(shared, name);
        const bool is_other = belongs_to_other_stage(shared, name);
        if (is_other) saved.tensors.erase(number);
        return is_other;
      });
    }
    return;
  }
  if (saved.groups.size() != whole.size()) return;  // check_optimizer_state() reports it
  decltype(saved.tensors) tensors;
  for (size_t g = 0; g < whole.size(); ++g) {
    auto& numbers = saved.groups[g].parameters;
    if (numbers.size() != whole[g].size()) {
      base::fail(ErrorKind::data, shared.place, "load_state",
                 "the saved {} has {} parameters in group {}, but the stages together have {}", optimizer.name(),
                 numbers.size(), g, whole[g].size());
    }
    std::vector<int64_t> kept;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto here = own.find(whole[g][i]);
      if (here == own.end()) continue;
      kept.push_back(here->second);
      const auto found = saved.tensors.find(numbers[i]);
      if (found != saved.tensors.end()) tensors.emplace(here->second, std::move(found->second));
    }
    std::ranges::sort(kept);
    numbers = std::move(kept);
  }
  saved.tensors = std::move(tensors);
}

}  // namespace accelerate::prepared
