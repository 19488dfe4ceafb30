// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/fsdp_settings.hpp"

#include "accelerate/env/fsdp_table.hpp"
#include "accelerate/env/precedence.hpp"

namespace accelerate::env {

FsdpResolution weigh_fsdp(const FsdpSettings& given, const Variables& variables, const Config& config,
                          std::string_view given_by) {
  FsdpResolution result;
  bool is_enabled = true;  // the first row is use_fsdp
  for_each_fsdp_setting([&](const auto& row) {
    if (!is_enabled) return;
    const auto resolved = resolve(row, row.of(given), variables, config, given_by);
    row.of(result.settings) = resolved.value;
    if (!resolved.conflict.empty()) result.conflicts.push_back(resolved.conflict);
    is_enabled = result.settings.use_fsdp.value_or(false);
  });
  return result;
}

}  // namespace accelerate::env
