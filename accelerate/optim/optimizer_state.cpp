// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/optimizer_state.hpp"

#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <sstream>
#include <typeinfo>

#include "accelerate/base/log.hpp"
#include "accelerate/optim/optimizer_fields.hpp"

namespace accelerate::optim {
namespace {

using state::OptimizerGroup;
using state::OptimizerState;
using state::OptionValue;

OptionValue option_value(double value) { return value; }
OptionValue option_value(bool value) { return value; }
OptionValue option_value(const std::tuple<double, double>& value) {
  return std::pair(std::get<0>(value), std::get<1>(value));
}

void number_parameters(const torch::optim::Optimizer& optimizer, OptimizerState& saved) {
  int64_t next = 0;
  for (const auto& group : optimizer.param_groups()) {
    auto& numbers = saved.groups.emplace_back().parameters;
    for (size_t i = 0; i < group.params().size(); ++i) numbers.push_back(next++);
  }
}

template <typename Fields>
void save_options(torch::optim::OptimizerParamGroup& group, OptimizerGroup& saved) {
  auto& options = static_cast<typename Fields::Options&>(group.options());
  Fields::options(options,
                  [&](const char* name, const auto& value) { saved.options.emplace_back(name, option_value(value)); });
  for (const auto& [name, value] : Fields::fixed()) saved.options.emplace_back(name, value);
}

struct SaveTensors {
  std::vector<std::pair<std::string, at::Tensor>>& tensors;
  void operator()(const char* name, const at::Tensor& tensor) const {
    if (tensor.defined()) tensors.emplace_back(name, tensor);
  }
  void operator()(const char* name, int64_t steps) const {
    tensors.emplace_back(name, at::scalar_tensor(static_cast<double>(steps), at::kFloat));
  }
};

template <typename Fields>
void save_stock(torch::optim::Optimizer& optimizer, OptimizerState& saved) {
  int64_t number = 0;
  for (size_t g = 0; g < saved.groups.size(); ++g) {
    auto& group = optimizer.param_groups()[g];
    save_options<Fields>(group, saved.groups[g]);
    for (const auto& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        Fields::state(static_cast<typename Fields::State&>(*found->second), SaveTensors{saved.tensors[number]});
      }
      ++number;
    }
  }
}

void save_by_itself(const torch::optim::Optimizer& optimizer, OptimizerState& saved, const RankContext& place) {
  std::stringstream bytes;
  {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    archive.save_to(bytes);
  }
  torch::serialize::InputArchive written;
  written.load_from(bytes);
  if (!written.keys().empty()) {
    saved.own = bytes.str();
    return;
  }
  if (!optimizer.state().empty()) {
    base::fail(ErrorKind::usage, place, "save_state",
               "an optimizer of type {} has a state for {} parameters, and its save() writes nothing; override save() "
               "and load() of torch::optim::Optimizer in it",
               c10::demangle(typeid(optimizer).name()), optimizer.state().size());
  }
  base::log_once(
      base::LogLevel::warning, place,
      "save_state: an optimizer of type {} does not override save(): of its options the learning rates alone "
      "are saved",
      c10::demangle(typeid(optimizer).name()));
  for (size_t g = 0; g < saved.groups.size(); ++g) {
    const auto& group = optimizer.param_groups()[g];
    if (group.has_options()) saved.groups[g].options.emplace_back("lr", group.options().get_lr());
  }
}

}  // namespace

OptimizerState optimizer_state(torch::optim::Optimizer& optimizer, const RankContext& place) {
  OptimizerState saved;
  number_parameters(optimizer, saved);
  const bool stock = visit_stock(optimizer, [&]<typename Fields>(Fields) { save_stock<Fields>(optimizer, saved); });
  if (!stock) save_by_itself(optimizer, saved, place);
  return saved;
}

}  // namespace accelerate::optim
