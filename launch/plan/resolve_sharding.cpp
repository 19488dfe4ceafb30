// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/resolve_sharding.hpp"

#include "accelerate/env/fsdp_table.hpp"

namespace accelerate::launch {
namespace {

/// An option without effect would hide that every rank holds the whole training state.
void check_none_given(const env::FsdpSettings& settings) {
  env::for_each_fsdp_setting([&](const auto& row) {
    if (row.name == "use_fsdp" || !row.of(settings)) return;
    fail(ErrorKind::usage,
         "{} is given, but sharded training is off; add --use_fsdp, or --use_deepspeed if you gave --zero_stage",
         row.option.name);
  });
}

}  // namespace

void resolve_sharding(const env::Variables& inherited, const env::Config& config, Resolved& result) {
  const env::FsdpSettings given = result.options.fsdp;
  const auto [settings, conflicts] = env::weigh_fsdp(given, inherited, config, "the command line");
  result.options.fsdp = settings;
  result.conflicts.insert(result.conflicts.end(), conflicts.begin(), conflicts.end());
  if (!settings.use_fsdp.value_or(false)) return check_none_given(given);
  if (result.options.use_deepspeed && !settings.sharding_strategy) {
    result.options.fsdp.sharding_strategy = env::strategy_of_zero_stage(env::kDefaultZeroStage);
  }
  result.options.use_deepspeed = false;
}

}  // namespace accelerate::launch
