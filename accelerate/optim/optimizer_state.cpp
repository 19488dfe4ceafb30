// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/optimizer_state.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/StringUtil.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cmath>
#include <memory>
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

std::optional<double> as_number(const OptionValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  return std::nullopt;
}

// Each takes a value where it is of the right type.
bool assign(double& option, const OptionValue& value) {
  const auto number = as_number(value);
  if (number) option = *number;
  return number.has_value();
}
bool assign(bool& option, const OptionValue& value) {
  const auto* flag = std::get_if<bool>(&value);
  if (flag != nullptr) option = *flag;
  return flag != nullptr;
}
bool assign(std::tuple<double, double>& option, const OptionValue& value) {
  const auto* pair = std::get_if<std::pair<double, double>>(&value);
  if (pair != nullptr) option = *pair;
  return pair != nullptr;
}

std::string shown(const OptionValue& value) {
  struct Show {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool flag) const { return flag ? "True" : "False"; }
    std::string operator()(const std::pair<double, double>& pair) const {
      return fmt::format("({}, {})", pair.first, pair.second);
    }
    std::string operator()(int64_t number) const { return fmt::to_string(number); }
    std::string operator()(double number) const { return fmt::to_string(number); }
  };
  return std::visit(Show{}, value);
}

std::string shape(const at::Tensor& tensor) { return fmt::format("[{}]", c10::Join(", ", tensor.sizes())); }

void number_parameters(const torch::optim::Optimizer& optimizer, OptimizerState& saved) {
  int64_t next = 0;
  for (const auto& group : optimizer.param_groups()) {
    auto& numbers = saved.groups.emplace_back().parameters;
    for (size_t i = 0; i < group.params().size(); ++i) numbers.push_back(next++);
  }
}

// Saving ------------------------------------------------------------------------------------------------------------

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

void save_by_itself(const torch::optim::Optimizer& optimizer, OptimizerState& saved, const Place& place) {
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

// Loading -----------------------------------------------------------------------------------------------------------

class Loader {
 public:
  Loader(torch::optim::Optimizer& optimizer, const OptimizerState& saved, const StateDtype& dtype, const Place& place)
      : optimizer_(optimizer), saved_(saved), dtype_(dtype), place_(place) {
    check_groups();
    for (auto& group : optimizer.param_groups()) {
      parameters_.insert(parameters_.end(), group.params().begin(), group.params().end());
    }
  }

  template <typename Fields>
  void load(bool apply) {
    if (!saved_.own.empty()) {
      fail("the saved state was written by an optimizer of another type than {}", Fields::name);
    }
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
    for (size_t g = 0; g < saved_.groups.size(); ++g) options.push_back(new_options<Fields>(g));
    std::vector<std::pair<void*, std::unique_ptr<typename Fields::State>>> states;
    for (const auto& [number, tensors] : saved_.tensors) {
      if (tensors.empty()) continue;
      if (number < 0 || number >= static_cast<int64_t>(parameters_.size())) {
        fail("there is a state of parameter {}, the optimizer has {} parameters", number, parameters_.size());
      }
      const at::Tensor& parameter = parameters_[static_cast<size_t>(number)];
      states.emplace_back(parameter.unsafeGetTensorImpl(), new_state<Fields>(number, parameter, tensors));
    }
    if (!apply) return;
    for (size_t g = 0; g < options.size(); ++g) optimizer_.param_groups()[g].set_options(std::move(options[g]));
    optimizer_.state().clear();
    for (auto& [key, state] : states) optimizer_.state()[key] = std::move(state);
  }

  void load_by_itself(bool apply) {
    if (saved_.own.empty()) {
      if (!saved_.tensors.empty()) {
        fail("the saved state is of a stock optimizer, this one is a {}", c10::demangle(typeid(optimizer_).name()));
      }
      if (apply) load_rates();
      return;
    }
    if (!apply) return;
    std::istringstream bytes(saved_.own);
    torch::serialize::InputArchive archive;
    archive.load_from(bytes);
    optimizer_.load(archive);
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    base::fail(ErrorKind::data, place_, "load_state", format, std::forward<Args>(args)...);
  }

  void check_groups() const {
    const auto& groups = optimizer_.param_groups();
    if (saved_.groups.size() != groups.size()) {
      fail("the saved optimizer has {} parameter groups, this one has {}", saved_.groups.size(), groups.size());
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      if (saved_.groups[g].parameters.size() != groups[g].params().size()) {
        fail("parameter group {} of the saved optimizer has {} parameters, this one has {}", g,
             saved_.groups[g].parameters.size(), groups[g].params().size());
      }
    }
  }

  template <typename Fields>
  std::unique_ptr<torch::optim::OptimizerOptions> new_options(size_t g) const {
    auto options = optimizer_.param_groups()[g].options().clone();
    const auto fixed = Fields::fixed();
    for (const auto& [name, value] : saved_.groups[g].options) {
      bool known = false;
      Fields::options(static_cast<typename Fields::Options&>(*options), [&](const char* own, auto& option) {
        if (name != own) return;
        known = true;
        if (!assign(option, value))
          fail("option {} of group {} is {}, which {} does not take", name, g, shown(value), Fields::name);
      });
      if (known) continue;
      for (const auto& [own, only] : fixed) {
        if (name == own && std::holds_alternative<bool>(only) && value != only) {
          fail("option {} of group {} is {}, LibTorch's {} knows only {}", name, g, shown(value), Fields::name,
               shown(only));
        }
      }
    }
    return options;
  }

  template <typename Fields>
  std::unique_ptr<typename Fields::State> new_state(
      int64_t number, const at::Tensor& parameter,
      const std::vector<std::pair<std::string, at::Tensor>>& tensors) const {
    auto state = std::make_unique<typename Fields::State>();
    for (const auto& [name, tensor] : tensors) {
      bool known = false;
      std::string all;
      Fields::state(*state, [&](const char* own, auto& field) {
        all += (all.empty() ? "" : ", ") + std::string(own);
        if (name != own) return;
        known = true;
        take(number, own, parameter, tensor, field);
      });
      if (!known) fail("the state of parameter {} has '{}', {} keeps {}", number, name, Fields::name, all);
    }
    return state;
  }

  void take(int64_t number, const char* name, const at::Tensor& parameter, const at::Tensor& saved,
            at::Tensor& field) const {
    if (saved.sizes() != parameter.sizes()) {
      fail("'{}' of parameter {} is {}, the parameter is {}", name, number, shape(saved), shape(parameter));
    }
    if (!dtype_) return;  // a look only
    // Laid out as the parameter is: kernels walk both alike.
    field = at::empty_like(parameter.detach(), parameter.options().dtype(dtype_(parameter)).requires_grad(false));
    field.copy_(saved);
  }
  void take(int64_t number, const char* name, const at::Tensor&, const at::Tensor& saved, int64_t& field) const {
    if (saved.numel() != 1) fail("'{}' of parameter {} is {}, expected one number", name, number, shape(saved));
    const double steps = saved.item<double>();
    if (!(steps >= 0 && steps <= 9e15 && steps == std::floor(steps))) {
      fail("'{}' of parameter {} is {}, expected a count", name, number, steps);
    }
    field = static_cast<int64_t>(steps);
  }

  void load_rates() const {
    for (size_t g = 0; g < saved_.groups.size(); ++g) {
      auto& group = optimizer_.param_groups()[g];
      for (const auto& [name, value] : saved_.groups[g].options) {
        const auto rate = as_number(value);
        if (name == "lr" && rate && group.has_options()) group.options().set_lr(*rate);
      }
    }
  }

  torch::optim::Optimizer& optimizer_;
  const OptimizerState& saved_;
  StateDtype dtype_;
  const Place& place_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace

OptimizerState state_of(torch::optim::Optimizer& optimizer, const Place& place) {
  OptimizerState saved;
  number_parameters(optimizer, saved);
  const bool stock = visit_stock(optimizer, [&]<typename Fields>(Fields) { save_stock<Fields>(optimizer, saved); });
  if (!stock) save_by_itself(optimizer, saved, place);
  return saved;
}

void load_state(torch::optim::Optimizer& optimizer, const OptimizerState& state, const StateDtype& dtype,
                const Place& place) {
  Loader loader(optimizer, state, dtype, place);
  const bool stock = visit_stock(optimizer, [&]<typename Fields>(Fields) { loader.template load<Fields>(true); });
  if (!stock) loader.load_by_itself(true);
}

void check_state(torch::optim::Optimizer& optimizer, const OptimizerState& state, const Place& place) {
  Loader loader(optimizer, state, {}, place);
  const bool stock = visit_stock(optimizer, [&]<typename Fields>(Fields) { loader.template load<Fields>(false); });
  if (!stock) loader.load_by_itself(false);
}

}  // namespace accelerate::optim
