// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>
#include <torch/serialize/input-archive.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <sstream>
#include <tuple>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "accelerate/device/copy_all.hpp"
#include "accelerate/optim/optimizer_fields.hpp"
#include "accelerate/optim/optimizer_state.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/optim/spare_tensors.hpp"

namespace accelerate::optim {
namespace {

using state::OptimizerState;
using state::OptionValue;

std::optional<double> as_number(const OptionValue& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  return std::nullopt;
}

// Each overload assigns a value of the right type. Returns false for another type.
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

std::string shape(const at::Tensor& tensor) { return fmt::format("[{}]", c10::Join(", ", tensor.sizes())); }

class Loader {
 public:
  Loader(torch::optim::Optimizer& optimizer, const OptimizerState& saved, const StateDtype& dtype,
         const RankContext& place, const RangeOfParameter& range_of_parameter = {},
         const state::ReadElements& read = {})
      : optimizer_(optimizer),
        saved_(saved),
        dtype_(dtype),
        place_(place),
        range_of_parameter_(range_of_parameter),
        read_(read),
        parameters_(parameters_of(optimizer)) {
    check_groups();
  }

  /// \throws if the saved state does not belong to this optimizer; changes nothing.
  template <typename Fields>
  void check() {
    if (!saved_.own.empty()) {
      fail("the saved state was written by an optimizer of another type than {}", Fields::name);
    }
    looking_ = true;
    each_state([&](int64_t number, const at::Tensor& parameter, const auto& tensors) {
      std::ignore = new_state<Fields>(number, parameter, tensors);
    });
    looking_ = false;
    for (size_t g = 0; g < saved_.groups.size(); ++g) std::ignore = new_options<Fields>(g);
  }

  template <typename Fields>
  void load() {
    check<Fields>();
    for (size_t g = 0; g < saved_.groups.size(); ++g) {
      optimizer_.param_groups()[g].set_options(new_options<Fields>(g));
    }
    auto previous = take_states();
    each_state([&](int64_t number, const at::Tensor& parameter, const auto& tensors) {
      const auto range = range_for(parameter);
      if (range && range->begin == range->end) return;
      void* const key = parameter.unsafeGetTensorImpl();
      auto state = std::exchange(previous[key], nullptr);
      // The new state of a range is allocated, so the previous one is freed first.
      if (range) state.reset();
      spare_ = spare_tensors_of<Fields>(std::move(state));
      optimizer_.state()[key] = new_state<Fields>(number, parameter, tensors);
      spare_.clear();
    });
    device::copy_all(std::exchange(copies_, {}));
  }

  void check_by_itself() const {
    if (!saved_.own.empty() || saved_.tensors.empty()) return;
    fail("the saved state is of a stock optimizer, this one is a {}", c10::demangle(typeid(optimizer_).name()));
  }
  void load_by_itself() {
    check_by_itself();
    if (saved_.own.empty()) return load_rates();
    std::istringstream bytes(saved_.own);
    torch::serialize::InputArchive archive;
    archive.load_from(bytes);
    auto& states = optimizer_.state();
    states.clear();  // load() only adds: a state absent when saved would otherwise remain
    try {
      optimizer_.load(archive);
    } catch (const c10::Error& error) {
      fail("the saved state is not one that a {} can load: {}", c10::demangle(typeid(optimizer_).name()),
           error.what_without_backtrace());
    }
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

  template <typename Each>
  void each_state(const Each& each) const {
    for (const auto& [number, tensors] : saved_.tensors) {
      if (tensors.empty()) continue;
      if (number < 0 || number >= static_cast<int64_t>(parameters_.size())) {
        fail("there is a state of parameter {}, the optimizer has {} parameters", number, parameters_.size());
      }
      each(number, parameters_[static_cast<size_t>(number)], tensors);
    }
  }

  /// Removes all states. Returns those of parameters that get a new one; the memory of the others is free before
  /// anything is allocated, because the device may not have memory for both.
  std::unordered_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>> take_states() {
    std::unordered_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>> kept;
    auto& states = optimizer_.state();
    each_state([&](int64_t, const at::Tensor& parameter, const auto&) {
      const auto found = states.find(parameter.unsafeGetTensorImpl());
      if (found != states.end()) kept.emplace(found->first, std::move(found->second));
    });
    states.clear();
    return kept;
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
          fail("option {} of group {} is {}, which {} does not take", name, g, text_of(value), Fields::name);
      });
      if (known) continue;
      for (const auto& [own, only] : fixed) {
        if (name == own && std::holds_alternative<bool>(only) && value != only) {
          fail("option {} of group {} is {}, LibTorch's {} knows only {}", name, g, text_of(value), Fields::name,
               text_of(only));
        }
      }
    }
    check_complete<Fields>(*options, g);
    return options;
  }

  // Without this check, options that the file of another optimizer lacks would keep arbitrary values.
  template <typename Fields>
  void check_complete(torch::optim::OptimizerOptions& options, size_t g) const {
    const auto& saved = saved_.groups[g].options;
    Fields::options(static_cast<typename Fields::Options&>(options), [&](const char* own, auto&) {
      if (std::any_of(saved.begin(), saved.end(), [&](const auto& option) { return option.first == own; })) return;
      fail("group {} of the saved optimizer has no option {}, which {} has; it is of another type", g, own,
           Fields::name);
    });
  }

  template <typename Fields>
  std::unique_ptr<typename Fields::State> new_state(int64_t number, const at::Tensor& parameter,
                                                    const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
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

  void take(int64_t number, const char* name, const at::Tensor& parameter, const at::Tensor& saved, at::Tensor& field) {
    if (saved.sizes() != parameter.sizes()) {
      fail("'{}' of parameter {} is {}, the parameter is {}", name, number, shape(saved), shape(parameter));
    }
    if (looking_) return;
    if (const auto range = range_for(parameter)) {
      const auto options = parameter.options().dtype(dtype_(parameter)).requires_grad(false);
      field = at::empty({range->end - range->begin}, options.device(range->device.value_or(parameter.device())));
      append_copies(copies_, field, saved, parameter, *range, read_);
      return;
    }
    // Uses the layout of the parameter, because kernels iterate over both in memory order. The memory of the previous
    // state is used again, because new pages from the system are slow.
    const auto options = parameter.options().dtype(dtype_(parameter)).requires_grad(false);
    if (parameter.is_non_overlapping_and_dense()) {
      field = take_spare(spare_, name, parameter.sizes(), parameter.strides(), options);
    }
    if (!field.defined()) field = at::empty_like(parameter.detach(), options);
    if (saved.is_meta() && field.is_contiguous()) {
      append_copies(copies_, field, saved, parameter, {0, parameter.numel()}, read_);
    } else {
      copies_.push_back({field, state::whole_of(saved, read_)});
    }
  }
  void take(int64_t number, const char* name, const at::Tensor&, const at::Tensor& saved, int64_t& field) const {
    if (saved.numel() != 1) fail("'{}' of parameter {} is {}, expected one number", name, number, shape(saved));
    if (saved.is_complex()) fail("'{}' of parameter {} is a complex number, expected a count", name, number);
    const double steps = saved.item<double>();
    if (!(steps >= 0 && steps <= 9e15 && steps == std::floor(steps))) {
      fail("'{}' of parameter {} is {}, expected a count", name, number, steps);
    }
    field = static_cast<int64_t>(steps);
  }

  [[nodiscard]] std::optional<StateRange> range_for(const at::Tensor& parameter) const {
    return range_of_parameter_ ? range_of_parameter_(parameter) : std::nullopt;
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
  const RankContext& place_;
  RangeOfParameter range_of_parameter_;
  state::ReadElements read_;
  std::vector<at::Tensor> parameters_;
  std::vector<device::CopyPair> copies_;
  SpareTensors spare_;    ///< from the previous state of the current parameter
  bool looking_ = false;  // true during check(): tensors are compared, not copied
};

}  // namespace

void load_state(torch::optim::Optimizer& optimizer, const OptimizerState& state, const StateDtype& dtype,
                const RankContext& place, const RangeOfParameter& range_of_parameter, const state::ReadElements& read) {
  Loader loader(optimizer, state, dtype, place, range_of_parameter, read);
  const bool stock = visit_stock(optimizer, [&]<typename Fields>(Fields) { loader.template load<Fields>(); });
  if (!stock) loader.load_by_itself();
}

void check_optimizer_state(torch::optim::Optimizer& optimizer, const OptimizerState& state, const RankContext& place) {
  Loader loader(optimizer, state, {}, place);
  const bool stock = visit_stock(optimizer, [&]<typename Fields>(Fields) { loader.template check<Fields>(); });
  if (!stock) loader.check_by_itself();
}

std::string text_of(const OptionValue& value) {
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

}  // namespace accelerate::optim
