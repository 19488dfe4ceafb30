// SPDX-License-Identifier: Apache-2.0
// Options of sharded training, with the names of Hugging Face Accelerate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"
#include "accelerate/sharding/full_shard_options.hpp"
#include "accelerate/sharding/strategy.hpp"

namespace accelerate::sharding {

/// Options of sharded training. A value given here takes precedence. If a member is unset, and ACCELERATE_USE_FSDP is
/// true, the environment variable in its comment counts, then the config file (accelerate/env/README.md); otherwise the
/// default. accelerate_launch sets the variables.
struct FullyShardedDataParallelPlugin {
  /// FSDP_SHARDING_STRATEGY: a name in upper or lower case, or PyTorch's number, 1 to 5; default full_shard if
  /// ACCELERATE_USE_FSDP is true, otherwise no_shard.
  std::optional<ShardingStrategy> sharding_strategy{};
  /// Number of consecutive ranks that divide a replica of hybrid_shard and hybrid_shard_zero2, at least 1; it must
  /// divide the number of ranks. ParallelismConfig::dp_shard_size of Accelerate. If unset, the ranks of a machine
  /// divide a replica. An error with other strategies.
  std::optional<int64_t> dp_shard_size{};
  /// If false, parameters of full_shard stay whole from the forward to the end of the backward. PyTorch's SHARD_GRAD_OP
  /// is full_shard with false. FSDP_RESHARD_AFTER_FORWARD, which may also be FULL_SHARD (true) or SHARD_GRAD_OP
  /// (false), as for FSDP1; default true.
  std::optional<bool> reshard_after_forward{};
  /// Starts gathers before their parameters are used, in the forward, and in the backward if backward_prefetch is
  /// unset. If false, a step of shard_optim_op and shard_grad_op waits for the parameters of the other ranks. The
  /// variable is FSDP_FORWARD_PREFETCH; the default is true.
  std::optional<bool> forward_prefetch{};
  /// Gathers of the backward. backward_pre and backward_post start them before their parameters are used; no_prefetch
  /// does not, and needs the memory of one unit less. The variable is FSDP_BACKWARD_PREFETCH; if unset, the value of
  /// forward_prefetch counts.
  std::optional<BackwardPrefetch> backward_prefetch{};
  /// Names of modules that are units: {"blocks.*", "head"}; "*" replaces one component. If empty, the children of the
  /// outermost ModuleList and Sequential with at least 1 MB are units, and the other parameters are packed.
  std::vector<std::string> shard_units{};
  /// Names of classes with modules that are units, as well as shard_units: {"Block"} for Block or BlockImpl in any
  /// namespace. FSDP_TRANSFORMER_CLS_TO_WRAP, names separated by commas, without effect if FSDP_AUTO_WRAP_POLICY is
  /// another policy than TRANSFORMER_BASED_WRAP.
  std::vector<std::string> transformer_cls_names_to_wrap{};
  /// Least number of elements of a unit, at least 1, in place of 1 MB. FSDP_MIN_NUM_PARAMS.
  std::optional<int64_t> min_num_params{};
  /// Selects which of the three members above count. If unset, all of them. An error if one that it excludes is set
  /// here. The variable is FSDP_AUTO_WRAP_POLICY, which counts if the three members are unset.
  std::optional<AutoWrapPolicy> auto_wrap_policy{};
  /// Names are an error, because all parameters of a prepared model are sharded. Keep such modules outside of the
  /// prepared module. FSDP_IGNORED_MODULES.
  std::vector<std::string> ignored_modules{};
  /// As ignored_modules, for single parameters.
  std::vector<std::string> ignored_parameters{};
  /// A value is an error: AcceleratorOptions::mixed_precision and precision_policy set the precision.
  std::optional<std::string> mixed_precision_policy{};
  /// How save_state() writes sharded tensors. Both are loaded on any number of ranks, with any strategy. The variable
  /// is FSDP_STATE_DICT_TYPE; the default is sharded_state_dict.
  std::optional<StateDictType> state_dict_type{};
  /// Always true: parameters keep their identity, so an optimizer may be made before prepare(). false is an error.
  /// FSDP_USE_ORIG_PARAMS.
  std::optional<bool> use_orig_params{};
  /// Always true: at most two units are gathered at a time. false is an error. FSDP_LIMIT_ALL_GATHERS.
  std::optional<bool> limit_all_gathers{};
  /// Always true: prepare() makes the parameters equal to rank 0's. false is an error. FSDP_SYNC_MODULE_STATES.
  std::optional<bool> sync_module_states{};
  /// Always true: each rank reads only its part of a checkpoint. false is an error. FSDP_CPU_RAM_EFFICIENT_LOADING.
  std::optional<bool> cpu_ram_efficient_loading{};
  /// If true, a rank's parts of parameters and gradients, and its optimizer state, are in pinned memory of the host,
  /// where the optimizer steps; only gathered units are on the device. It also applies to a single rank. An error with
  /// strategies other than full_shard and hybrid_shard. Without effect on the CPU. The variable is FSDP_OFFLOAD_PARAMS;
  /// the default is false.
  std::optional<bool> cpu_offload{};
  /// true is an error: call nn::checkpoint() in the model. FSDP_ACTIVATION_CHECKPOINTING.
  std::optional<bool> activation_checkpointing{};
};

/// Resolved options.
struct ShardingSettings {
  ShardingStrategy strategy = ShardingStrategy::no_shard;
  StateDictType state_dict_type = StateDictType::sharded_state_dict;
  FullShardOptions full_shard{};
};

/// Combines AcceleratorOptions::sharding, the plugin, the environment and the config file. Pure function.
/// \throws Error (usage) for a value that is not supported, or if `sharding` and the plugin have different strategies.
/// \throws Error (environment) for a variable or a value of the file that is not understood, with its source.
[[nodiscard]] ShardingSettings resolve_sharding_settings(const std::optional<ShardingStrategy>& sharding,
                                                         const FullyShardedDataParallelPlugin& plugin,
                                                         const env::Variables& variables, const RankContext& place,
                                                         const env::Config& config = {});

}  // namespace accelerate::sharding
