// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/plan.hpp"

#include <fmt/ranges.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <typeinfo>
#include <unordered_map>

#include "accelerate/base/error.hpp"
#include "accelerate/nn/linear.hpp"
#include "accelerate/nn/module_slots.hpp"
#include "accelerate/tensor_parallel/attention.hpp"
#include "accelerate/tensor_parallel/conv.hpp"
#include "accelerate/tensor_parallel/embedding.hpp"
#include "accelerate/tensor_parallel/linear.hpp"

namespace accelerate::nn {
namespace {

using torch::nn::Module;

template <typename... Args>
[[noreturn]] void refuse_plan(const comm::Group& group, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::usage, group.place(), "tensor_parallel", format, std::forward<Args>(args)...);
}

std::string_view style_name(ParallelStyle style) {
  if (style == ParallelStyle::colwise) return "colwise";
  return style == ParallelStyle::rowwise ? "rowwise" : "vocab";
}

/// Compares part by part; "*" matches any part.
bool matches(std::string_view pattern, std::string_view name) {
  while (true) {
    const size_t pattern_end = pattern.find('.'), name_end = name.find('.');
    const auto part = pattern.substr(0, pattern_end);
    if (part != "*" && part != name.substr(0, name_end)) return false;
    if (pattern_end == std::string_view::npos || name_end == std::string_view::npos) return pattern_end == name_end;
    pattern.remove_prefix(pattern_end + 1);
    name.remove_prefix(name_end + 1);
  }
}

/// A layer of the model and its place.
struct PlannedLayer {
  std::string name;
  Module* holder = nullptr;
  std::string key;  ///< name within the holder
  std::shared_ptr<Module> layer;
  ParallelStyle style = ParallelStyle::colwise;
};

/// Finds the layers of a plan, and counts the matches of each of its names.
class PlanSearch {
 public:
  PlanSearch(const ParallelPlan& plan, const comm::Group& group) : plan_(plan), group_(group), counts_(plan.size()) {}

  std::vector<PlannedLayer> find(Module& module) {
    visit(module, "");
    for (size_t i = 0; i < plan_.size(); ++i) {
      if (counts_[i] == 0) refuse_plan(group_, "the plan has '{}', which is not a layer of the model", plan_[i].first);
    }
    return std::move(found_);
  }

 private:
  void visit(Module& holder, const std::string& prefix) {
    for (const auto& child : holder.named_children()) {
      const std::string name = prefix + child.key();
      const auto style = style_of(name);
      if (style) found_.push_back({name, &holder, child.key(), child.value(), *style});
      visit(*child.value(), name + ".");
    }
  }

  std::optional<ParallelStyle> style_of(const std::string& name) {
    std::optional<size_t> row;
    for (size_t i = 0; i < plan_.size(); ++i) {
      if (!matches(plan_[i].first, name)) continue;
      if (row) refuse_plan(group_, "{} matches '{}' and '{}' of the plan", name, plan_[*row].first, plan_[i].first);
      row = i;
      ++counts_[i];
    }
    return row ? std::optional(plan_[*row].second) : std::nullopt;
  }

  const ParallelPlan& plan_;
  const comm::Group& group_;
  std::vector<int64_t> counts_;
  std::vector<PlannedLayer> found_;
};

/// Refuses plans that split a parameter that is also registered elsewhere: the two would become separate parameters.
class TieCheck {
 public:
  TieCheck(const std::vector<PlannedLayer>& layers, const comm::Group& group) : group_(group) {
    for (const PlannedLayer& one : layers) {
      places_.emplace(one.holder, one.key);
      for (const auto& parameter : one.layer->named_parameters()) {
        const std::string name = one.name + "." + parameter.key();
        const auto& first = split_.try_emplace(parameter.value().unsafeGetTensorImpl(), &one, name).first->second;
        if (first.layer->layer != one.layer) refuse_tie(first.name, name);
        if (first.layer->style != one.style) {
          refuse_plan(group, "{} and {} are the same layer, which the plan splits {} and {}", first.layer->name,
                      one.name, style_name(first.layer->style), style_name(one.style));
        }
      }
    }
  }

  void visit(const Module& holder, const std::string& prefix) const {
    for (const auto& parameter : holder.named_parameters(/*recurse=*/false)) {
      const auto split = split_.find(parameter.value().unsafeGetTensorImpl());
      if (split != split_.end()) refuse_tie(split->second.name, prefix + parameter.key());
    }
    for (const auto& child : holder.named_children()) {
      if (!places_.contains({&holder, child.key()})) visit(*child.value(), prefix + child.key() + ".");
    }
  }

 private:
  struct SplitParameter {
    SplitParameter(const PlannedLayer* the_layer, std::string the_name) : layer(the_layer), name(std::move(the_name)) {}
    const PlannedLayer* layer;
    std::string name;
  };

  [[noreturn]] void refuse_tie(const std::string& name, const std::string& other) const {
    refuse_plan(
        group_,
        "parameter {} is also registered as {}, and the plan would untie them; leave its layer out of the plan, "
        "or declare a parallel layer and use its weight in both places",
        name, other);
  }

  const comm::Group& group_;
  std::set<std::pair<const Module*, std::string>> places_;  // holder and key of each layer of the plan
  std::unordered_map<const void*, SplitParameter> split_;
};

/// Makes the parallel layers of a plan. A layer in several places is replaced by one layer.
class Replacements {
 public:
  explicit Replacements(const comm::Group& group) : group_(group) {}

  void add(const PlannedLayer& one) {
    const bool column = one.style == ParallelStyle::colwise, row = one.style == ParallelStyle::rowwise;
    if (const auto* linear = one.layer->as<torch::nn::LinearImpl>()) {
      if (column) return add_as<ColumnParallelLinearImpl>(one, *linear);
      if (row) return add_as<RowParallelLinearImpl>(one, *linear);
    }
    if (const auto* conv = one.layer->as<torch::nn::Conv2dImpl>()) {
      if (column) return add_as<ColumnParallelConv2dImpl>(one, *conv);
      if (row) return add_as<RowParallelConv2dImpl>(one, *conv);
    }
    const auto* attention = one.layer->as<torch::nn::MultiheadAttentionImpl>();
    if (attention != nullptr && column) return add_as<ParallelMultiheadAttentionImpl>(one, *attention);
    const auto* embedding = one.layer->as<torch::nn::EmbeddingImpl>();
    if (embedding != nullptr && one.style == ParallelStyle::vocab) {
      return add_as<VocabParallelEmbeddingImpl>(one, *embedding);
    }
    refuse_plan(
        group_,
        "{} is {}, which cannot be split {}; colwise needs Linear, Conv2d or MultiheadAttention, rowwise Linear "
        "or Conv2d, vocab Embedding",
        one.name, one.layer->name(), style_name(one.style));
  }

  /// \throws Error (usage), without changes, with all layers that cannot be replaced.
  void run() const {
    if (!members_.empty()) {
      refuse_plan(
          group_,
          "these layers of the plan are members of classes, which call the layers that they hold: {}; declare them "
          "as parallel layers, or put them in a Sequential",
          fmt::join(members_, ", "));
    }
    if (!derived_.empty()) {
      refuse_plan(
          group_,
          "these layers of the plan are of user-defined classes, and parallel layers would lack their forward and "
          "parameters: {}; derive the class from a parallel layer and declare it",
          fmt::join(derived_, ", "));
    }
    for (const auto& replace : replacements_) replace();
  }

 private:
  template <typename Parallel, typename Stock>
  void add_as(const PlannedLayer& one, const Stock& stock) {
    auto slot = slot_of<Parallel>(*one.holder, one.key, one.layer);
    if (!slot) {
      members_.push_back(fmt::format("{} of {}", one.name, one.holder->name()));
      return;
    }
    const auto& type = typeid(*one.layer);
    if (type != typeid(Stock) && type != typeid(LinearImpl)) {
      derived_.push_back(fmt::format("{} is {}", one.name, one.layer->name()));
      return;
    }
    auto& made = made_[one.layer.get()];
    if (!made) made = std::make_shared<Parallel>(stock, group_);
    replacements_.push_back(
        [slot = std::move(slot), layer = std::static_pointer_cast<Parallel>(made)] { slot(layer); });
  }

  const comm::Group& group_;
  std::vector<std::string> members_, derived_;  // texts about layers that cannot be replaced
  std::unordered_map<const Module*, std::shared_ptr<void>> made_;
  std::vector<std::function<void()>> replacements_;
};

/// A different plan on one rank would block the others in the first forward.
void compare_plans(const std::vector<PlannedLayer>& layers, const comm::Group& group) {
  std::string text;
  for (const auto& one : layers)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", one.name, style_name(one.style));
  const auto all = group.all_gather_bytes(text);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    refuse_plan(group, "the plans differ: rank 0 of the group splits [{}], rank {} [{}]", all[0], rank, all[rank]);
  }
}

}  // namespace

std::vector<std::string> tensor_parallel(Module& module, const ParallelPlan& plan, const comm::Group& group) {
  const auto layers = PlanSearch(plan, group).find(module);
  compare_plans(layers, group);
  TieCheck(layers, group).visit(module, "");
  Replacements replacements(group);
  std::vector<std::string> names;
  for (const PlannedLayer& one : layers) {
    replacements.add(one);
    names.push_back(one.name);
  }
  replacements.run();
  return names;
}

}  // namespace accelerate::nn
