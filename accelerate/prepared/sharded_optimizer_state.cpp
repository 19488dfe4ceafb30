// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/sharded_optimizer_state.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <exception>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "accelerate/base/exception_text.hpp"
#include "accelerate/optim/optimizer_state.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"
#include "accelerate/tensor_parallel/split_record.hpp"

namespace accelerate::prepared {
namespace {

constexpr std::string_view kSaveState = "save_state";

using NamedStates = std::vector<std::pair<std::string, at::Tensor>>;

// Fields of a parameter's state on any rank. A count has a value; a tensor is gathered.
struct StateField {
  std::string name;
  std::optional<double> count;
};

// One line per field: number of the parameter, name, "tensor" or the count.
std::string describe_fields(const state::OptimizerState& state) {
  std::string text;
  for (const auto& [number, tensors] : state.tensors) {
    for (const auto& [name, tensor] : tensors) {
      text += tensor.dim() == 0 ? fmt::format("{} {} {}\n", number, name, tensor.item<double>())
                                : fmt::format("{} {} tensor\n", number, name);
    }
  }
  return text;
}

std::map<int64_t, std::vector<StateField>> fields_of_all_ranks(const std::vector<std::string>& described) {
  std::map<int64_t, std::vector<StateField>> fields;
  for (const std::string& text : described) {
    std::istringstream lines(text);
    int64_t number = 0;
    for (std::string name, value; lines >> number >> name >> value;) {
      auto& known = fields[number];
      if (std::ranges::any_of(known, [&](const StateField& field) { return field.name == name; })) continue;
      known.push_back({name, value == "tensor" ? std::nullopt : std::optional(std::stod(value))});
    }
  }
  return fields;
}

at::Tensor find(const state::OptimizerState& state, int64_t number, const std::string& name) {
  const auto found = state.tensors.find(number);
  if (found == state.tensors.end()) return {};
  for (const auto& [own, tensor] : found->second) {
    if (own == name) return tensor;
  }
  return {};
}

state::OptimizerState gather_state(AcceleratorState& shared, OptimizerCore& optimizer,
                                   const state::OptimizerState& own) {
  const comm::Group& group = shared.group;
  const auto dtype_of_state = [&](const at::Tensor& parameter) {
    return sharding_of_master(shared, parameter) != nullptr ? at::kFloat : parameter.scalar_type();
  };
  const auto fields = fields_of_all_ranks(group.all_gather_bytes(describe_fields(own)));
  state::OptimizerState whole{.groups = own.groups};
  for (const auto& [number, list] : fields) {
    const at::Tensor& parameter = optimizer.parameters()[static_cast<size_t>(number)];
    NamedStates tensors;
    for (const StateField& field : list) {
      if (field.count) {
        tensors.emplace_back(field.name, at::scalar_tensor(*field.count, at::kFloat));
      } else if (const auto* sharded = optimizer.sharding_of(parameter)) {
        at::Tensor part = find(own, number, field.name);
        if (!part.defined()) part = at::empty({0}, parameter.options().dtype(dtype_of_state(parameter)));
        tensors.emplace_back(field.name, sharded->gather_to_rank_0(parameter.unsafeGetTensorImpl(), part, kSaveState));
      } else {
        tensors.emplace_back(field.name, find(own, number, field.name));  // of no model: every rank has the whole state
      }
    }
    if (group.rank() == 0) whole.tensors[number] = std::move(tensors);
  }
  return whole;
}

// Gathers a parameter. If it is a part of a tensor parallel layer, the result is one, too.
at::Tensor gather_value(sharding::FullyShardedParameters& model, const at::Tensor& parameter, const at::Tensor& part,
                        std::string_view operation) {
  at::Tensor value = model.gather_to_rank_0(parameter.unsafeGetTensorImpl(), part, operation);
  const auto recorded = nn::recorded_part(parameter);
  if (value.defined() && recorded) nn::record_part(value, *recorded);
  return value;
}

}  // namespace

void check_sharded_models_are_stepped(AcceleratorState& shared) {
  for (const sharding::FullyShardedParameters* model : fully_sharded_models(shared)) {
    const auto& keys = model->keys();
    const auto steps = [&](const OptimizerCore& optimizer) { return optimizer.has_any_of(keys); };
    if (!model->has_gradient(keys) || std::ranges::any_of(shared.registry.of<OptimizerCore>(), steps)) continue;
    base::fail(ErrorKind::usage, shared.place, "backward",
               "with sharding {} the gradients of parameter {} and {} more are kept for prepared optimizers, and no "
               "prepared optimizer has these parameters; give the optimizer to prepare()",
               sharding::strategy_name(shared.sharding), model->parameters().front().name, keys.size() - 1);
  }
}

WholeWeights gather_weights(const std::vector<sharding::FullyShardedParameters*>& models,
                            const std::unordered_set<const void*>& except) {
  WholeWeights whole;
  for (sharding::FullyShardedParameters* model : models) {
    std::unordered_map<const void*, const state::ParameterShard*> parts;
    const auto shards = model->shards(model->keys());
    for (const state::ParameterShard& shard : shards) parts.emplace(shard.key, &shard);
    const auto gather = [&](const at::Tensor& parameter, const at::Tensor& like,
                            at::Tensor state::ParameterShard::*tensor) {
      const auto part = parts.find(parameter.unsafeGetTensorImpl());
      const at::Tensor mine = part == parts.end() ? at::empty({0}, like.options()) : part->second->*tensor;
      at::Tensor value = gather_value(*model, parameter, mine, kSaveState);
      return value.defined() ? std::move(value) : at::empty({0});
    };
    for (const state::ParameterShard& shard : model->parameters()) {
      if (except.contains(shard.key)) continue;
      const at::Tensor& parameter = shard.value;
      const at::Tensor like = at::empty({0}, parameter.options().requires_grad(false));
      if (model->shards_parameters()) {
        whole.values.emplace(shard.key, gather(parameter, like, &state::ParameterShard::value));
      }
      if (model->has_master(shard.key)) {
        whole.masters.emplace(shard.key, gather(parameter, like.to(at::kFloat), &state::ParameterShard::master));
      }
    }
  }
  return whole;
}

StreamedWeights::StreamedWeights(const std::vector<sharding::FullyShardedParameters*>& models) {
  for (sharding::FullyShardedParameters* model : models) {
    if (!model->shards_parameters()) continue;
    for (const state::ParameterShard& parameter : model->parameters()) {
      const at::Tensor& value = parameter.value;
      const auto options = value.options().requires_grad(false);
      const at::Tensor placeholder = at::empty(value.sizes(), options.device(c10::kMeta));
      parameters_.emplace(placeholder.unsafeGetTensorImpl(), parameter.key);
      sources_.emplace(parameter.key, Source{model, value, placeholder, at::empty({0}, options)});
    }
    for (const state::ParameterShard& shard : model->shards(model->keys())) sources_.at(shard.key).part = shard.value;
  }
}

void StreamedWeights::replace(checkpoint::NamedTensors& weights) {
  for (auto& [name, tensor] : weights) {
    const auto found = sources_.find(tensor.unsafeGetTensorImpl());
    if (found != sources_.end()) tensor = found->second.placeholder;
  }
}

std::exception_ptr StreamedWeights::run(const std::vector<at::Tensor>& order, const Write& write,
                                        std::string_view operation) {
  auto next = order.begin();
  const auto gather = [&] {
    const Source& source = sources_.at(parameters_.at((next++)->unsafeGetTensorImpl()));
    return gather_value(*source.model, source.parameter, source.part, operation);
  };
  std::exception_ptr failed_write, failed_gather;
  if (write) {
    failed_write = base::capture_exception([&] {
      write([&](const at::Tensor& placeholder) {
        TORCH_INTERNAL_ASSERT(next != order.end() && next->is_same(placeholder),
                              "tensors are written in another order");
        at::Tensor values;
        failed_gather = base::capture_exception([&] { values = gather(); });
        if (failed_gather) std::rethrow_exception(failed_gather);
        return values;
      });
    });
    if (failed_gather) std::rethrow_exception(failed_gather);
  }
  while (next != order.end()) std::ignore = gather();
  return failed_write;
}

bool gather_on_rank_0(const ModelCore& model, checkpoint::NamedTensors& weights, std::string_view operation) {
  StreamedWeights streamed(model.sharded_in_forward());
  streamed.replace(weights);
  std::vector<at::Tensor> order;
  for (const auto& [name, tensor] : weights) {
    const auto is_same = [&, &one = tensor](const at::Tensor& other) { return one.is_same(other); };
    if (tensor.is_meta() && std::ranges::none_of(order, is_same)) order.push_back(tensor);
  }
  if (order.empty()) return true;
  std::unordered_map<const void*, at::Tensor> values;
  StreamedWeights::Write collect;
  if (model.shared().group.rank() == 0) {
    collect = [&](const checkpoint::ProvideValues& provide) {
      for (const at::Tensor& placeholder : order)
        values.emplace(placeholder.unsafeGetTensorImpl(), provide(placeholder));
    };
  }
  if (const auto failure = streamed.run(order, collect, operation)) std::rethrow_exception(failure);
  for (auto& [name, tensor] : weights) {
    if (tensor.is_meta() && collect) tensor = values.at(tensor.unsafeGetTensorImpl());
  }
  if (!collect) weights.clear();
  return static_cast<bool>(collect);
}

void replace_sharded(checkpoint::NamedTensors& weights, const WholeWeights& whole) {
  for (auto& [name, tensor] : weights) {
    const auto found = whole.values.find(tensor.unsafeGetTensorImpl());
    if (found != whole.values.end()) tensor = found->second;
  }
}

OptimizerStates sharded_states(AcceleratorState& shared) {
  OptimizerStates states;
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    optimizer.discard_skipped_steps();
    const bool is_sharded = optimizer.keep_state_ranges();
    states.push_back(is_sharded ? std::optional(optim::optimizer_state(optimizer.optimizer(), shared.place))
                                : std::nullopt);
  }
  return states;
}

OptimizerStates gather_states(AcceleratorState& shared, const OptimizerStates& own) {
  OptimizerStates whole(own.size());
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    const auto index = static_cast<size_t>(optimizer.index());
    if (own[index]) whole[index] = gather_state(shared, optimizer, *own[index]);
  }
  return whole;
}

}  // namespace accelerate::prepared
