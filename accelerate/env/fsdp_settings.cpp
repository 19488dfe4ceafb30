// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/fsdp_settings.hpp"

#include "accelerate/env/deepspeed.hpp"
#include "accelerate/env/fsdp_table.hpp"
#include "accelerate/env/precedence.hpp"

namespace accelerate::env {

FsdpResolution weigh_fsdp(const FsdpSettings& given, const Variables& variables, const Config& config,
                          std::string_view given_by) {
  FsdpResolution result;
  const auto deepspeed = deepspeed_variables(variables);
  bool is_enabled = true;  // the first row is use_fsdp
  for_each_fsdp_setting([&](const auto& row) {
    if (!is_enabled) return;
    auto source = row;
    const auto name = deepspeed.names.find(row.key);
    const bool is_translated = name != deepspeed.names.end();
    if (is_translated) source.variable = name->second;
    const auto resolved =
        resolve_setting(source, row.of(given), is_translated ? deepspeed.values : variables, config, given_by);
    row.of(result.settings) = resolved.value;
    if (!resolved.conflict.empty()) result.conflicts.push_back(resolved.conflict);
    is_enabled = result.settings.use_fsdp.value_or(false);
  });
  return result;
}

}  // namespace accelerate::env
