// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/plugin.hpp"

#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "accelerate/env/fsdp_settings.hpp"

namespace accelerate::sharding {
namespace {

using enum ShardingStrategy;

std::optional<ShardingStrategy> strategy_of(const std::optional<std::string>& name) {
  static constexpr std::array<std::pair<std::string_view, ShardingStrategy>, 6> kNames{
      {{"NO_SHARD", no_shard},
       {"SHARD_OPTIM_OP", shard_optim_op},
       {"SHARD_GRAD_OP", shard_grad_op},
       {"FULL_SHARD", full_shard},
       {"HYBRID_SHARD", hybrid_shard},
       {"HYBRID_SHARD_ZERO2", hybrid_shard_zero2}}};
  for (const auto& [each, strategy] : kNames) {
    if (each == name) return strategy;
  }
  return std::nullopt;
}

template <typename T>
std::optional<T> first_of(const std::optional<T>& given, const std::optional<T>& from_environment) {
  return given ? given : from_environment;
}

std::optional<StateDictType> state_dict_type_of(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  return *name == "FULL_STATE_DICT" ? StateDictType::full_state_dict : StateDictType::sharded_state_dict;
}

std::optional<BackwardPrefetch> backward_prefetch_of(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "NO_PREFETCH") return BackwardPrefetch::no_prefetch;
  return *name == "BACKWARD_POST" ? BackwardPrefetch::backward_post : BackwardPrefetch::backward_pre;
}

bool prefetches_in_backward(const FullyShardedDataParallelPlugin& plugin, const env::FsdpSettings& outside,
                            bool in_forward) {
  const auto value = first_of(plugin.backward_prefetch, backward_prefetch_of(outside.backward_prefetch));
  return value ? *value != BackwardPrefetch::no_prefetch : in_forward;
}

// Options of other libraries that have one possible value here.
void check_fixed(const FullyShardedDataParallelPlugin& plugin, const env::FsdpSettings& outside,
                 const RankContext& place) {
  struct Fixed {
    std::string_view name;
    std::optional<bool> given;
    bool allowed;
    std::string_view reason;
  };
  for (const Fixed& fixed : {
           Fixed{"use_orig_params", first_of(plugin.use_orig_params, outside.use_orig_params), true,
                 "parameters always keep their identity"},
           Fixed{"limit_all_gathers", first_of(plugin.limit_all_gathers, outside.limit_all_gathers), true,
                 "at most two units are gathered at a time"},
           Fixed{"sync_module_states", first_of(plugin.sync_module_states, outside.sync_module_states), true,
                 "prepare() always makes the parameters of all ranks equal to rank 0's"},
           Fixed{"cpu_ram_efficient_loading",
                 first_of(plugin.cpu_ram_efficient_loading, outside.cpu_ram_efficient_loading), true,
                 "each rank always reads only its part of a checkpoint"},
           Fixed{"activation_checkpointing",
                 first_of(plugin.activation_checkpointing, outside.activation_checkpointing), false,
                 "the model selects the recomputed parts; call nn::checkpoint() in its forward"},
       }) {
    if (!fixed.given || *fixed.given == fixed.allowed) continue;
    base::fail(ErrorKind::usage, place, "sharding", "{} is {}, must be {}, because {}", fixed.name, *fixed.given,
               fixed.allowed, fixed.reason);
  }
}

void check_not_supported(const FullyShardedDataParallelPlugin& plugin, const RankContext& place) {
  for (const auto& [name, list] : {std::pair("ignored_modules", &plugin.ignored_modules),
                                   std::pair("ignored_parameters", &plugin.ignored_parameters)}) {
    if (list->empty()) continue;
    base::fail(ErrorKind::usage, place, "sharding",
               "{} has '{}', and all parameters of a prepared model are sharded; keep what every rank needs whole "
               "outside of the prepared module: frozen parameters as buffers or in a module that is not prepared, "
               "others in a module that a second Accelerator without sharding prepares",
               name, list->front());
  }
  if (plugin.mixed_precision_policy) {
    base::fail(ErrorKind::usage, place, "sharding",
               "mixed_precision_policy is '{}', and sharding has no precision of its own; set "
               "AcceleratorOptions::mixed_precision for autocast, or precision_policy to pure_bf16() for bfloat16 "
               "parameters with "
               "float32 masters, of which gradients are reduced in float32",
               *plugin.mixed_precision_policy);
  }
}

bool has_unit_members(const FullyShardedDataParallelPlugin& plugin) {
  return !plugin.shard_units.empty() || !plugin.transformer_cls_names_to_wrap.empty() || plugin.min_num_params;
}

AutoWrapPolicy policy_of(const FullyShardedDataParallelPlugin& plugin, const env::FsdpSettings& outside) {
  if (plugin.auto_wrap_policy) return *plugin.auto_wrap_policy;
  if (outside.auto_wrap_policy == "SIZE_BASED_WRAP") return AutoWrapPolicy::size_based_wrap;
  if (outside.auto_wrap_policy == "NO_WRAP" && !has_unit_members(plugin)) return AutoWrapPolicy::no_wrap;
  return AutoWrapPolicy::transformer_based_wrap;
}

void check_policy(const FullyShardedDataParallelPlugin& plugin, const RankContext& place) {
  if (plugin.auto_wrap_policy == AutoWrapPolicy::no_wrap && has_unit_members(plugin)) {
    base::fail(ErrorKind::usage, place, "sharding",
               "auto_wrap_policy is no_wrap, by which the model is one unit, and shard_units, "
               "transformer_cls_names_to_wrap or min_num_params is set; leave them or the policy unset");
  }
  if (plugin.auto_wrap_policy == AutoWrapPolicy::size_based_wrap && !plugin.transformer_cls_names_to_wrap.empty()) {
    base::fail(ErrorKind::usage, place, "sharding",
               "auto_wrap_policy is size_based_wrap, and transformer_cls_names_to_wrap has '{}'; leave one of them "
               "unset",
               plugin.transformer_cls_names_to_wrap.front());
  }
}

units::UnitOptions unit_options_of(const FullyShardedDataParallelPlugin& plugin, const env::FsdpSettings& outside,
                                   const RankContext& place) {
  check_policy(plugin, place);
  const auto least = first_of(plugin.min_num_params, outside.min_num_params);
  if (least && *least < 1) {
    base::fail(ErrorKind::usage, place, "sharding", "min_num_params is {}, must be at least 1", *least);
  }
  units::UnitOptions options;
  const AutoWrapPolicy policy = policy_of(plugin, outside);
  if (policy == AutoWrapPolicy::no_wrap) {
    options.min_num_params = std::numeric_limits<int64_t>::max();  // everything is packed into one unit
    return options;
  }
  options.units = plugin.shard_units;
  options.min_num_params = least.value_or(0);
  options.classes = plugin.transformer_cls_names_to_wrap;
  if (options.classes.empty() && policy == AutoWrapPolicy::transformer_based_wrap &&
      outside.transformer_layer_cls_to_wrap) {
    options.classes = *outside.transformer_layer_cls_to_wrap;
  }
  return options;
}

void check_offload(const FullShardOptions& options, ShardingStrategy strategy, const RankContext& place) {
  if (!options.cpu_offload || shards_parameters(strategy)) return;
  base::fail(ErrorKind::usage, place, "sharding",
             "cpu_offload is true, and with {} every rank keeps whole parameters on its device; use full_shard or "
             "hybrid_shard, or set cpu_offload to false",
             strategy_name(strategy));
}

void check_shard_size(const std::optional<int64_t>& size, ShardingStrategy strategy, const RankContext& place) {
  if (!size) return;
  if (*size < 1) base::fail(ErrorKind::usage, place, "sharding", "dp_shard_size is {}, must be at least 1", *size);
  if (is_hybrid(strategy)) return;
  base::fail(ErrorKind::usage, place, "sharding",
             "dp_shard_size is {}, and {} divides over all ranks; use hybrid_shard, or leave dp_shard_size unset",
             *size, strategy_name(strategy));
}

}  // namespace

ShardingSettings resolve_sharding_settings(const std::optional<ShardingStrategy>& sharding,
                                           const FullyShardedDataParallelPlugin& plugin,
                                           const env::Variables& variables, const RankContext& place,
                                           const env::Config& config) {
  const env::FsdpSettings outside = env::weigh_fsdp({}, variables, config, "").settings;
  if (sharding && plugin.sharding_strategy && *sharding != *plugin.sharding_strategy) {
    base::fail(ErrorKind::usage, place, "sharding",
               "sharding is {} and fsdp_plugin.sharding_strategy is {}; set one of them, or both to the same value",
               strategy_name(*sharding), strategy_name(*plugin.sharding_strategy));
  }
  ShardingSettings settings;
  if (sharding) {
    settings.strategy = *sharding;
  } else if (plugin.sharding_strategy) {
    settings.strategy = *plugin.sharding_strategy;
  } else if (outside.use_fsdp.value_or(false)) {
    settings.strategy = strategy_of(outside.sharding_strategy).value_or(full_shard);
  }
  if (settings.strategy == no_shard) return settings;
  check_fixed(plugin, outside, place);
  check_not_supported(plugin, place);
  settings.state_dict_type =
      first_of(plugin.state_dict_type, state_dict_type_of(outside.state_dict_type)).value_or(settings.state_dict_type);
  check_shard_size(plugin.dp_shard_size, settings.strategy, place);
  FullShardOptions& options = settings.full_shard;
  options.shard_parameters = shards_parameters(settings.strategy);
  options.is_hybrid = is_hybrid(settings.strategy);
  options.dp_shard_size = plugin.dp_shard_size.value_or(0);
  options.reshard_after_forward = first_of(plugin.reshard_after_forward, outside.reshard_after_forward).value_or(true);
  options.cpu_offload = first_of(plugin.cpu_offload, outside.offload_params).value_or(false);
  check_offload(options, settings.strategy, place);
  options.prefetch = first_of(plugin.forward_prefetch, outside.forward_prefetch).value_or(true);
  options.prefetch_in_backward = prefetches_in_backward(plugin, outside, options.prefetch);
  options.units = unit_options_of(plugin, outside, place);
  return settings;
}

}  // namespace accelerate::sharding
