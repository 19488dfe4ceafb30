// SPDX-License-Identifier: Apache-2.0
// Keys of a config file that are not settings: those of accelerate_launch, and further keys that `accelerate config`
// writes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"

namespace accelerate::env {

/// Returns the keys that only accelerate_launch reads (launch/plan/options_table.hpp).
const std::vector<std::string_view>& launcher_keys();

/// A key of Hugging Face Accelerate that has no meaning here or has another name.
struct ForeignKey {
  std::string_view key;
  /// Equivalent setting of this library. Empty if there is none.
  std::string_view setting = "";
  /// A value without effect, in addition to empty, "no" and "false".
  std::string_view disabled_value = "";
};

const std::vector<ForeignKey>& foreign_keys();

/// True unless the value is empty, means "no", or is the key's disabled value.
bool is_requested(const ForeignKey& key, const std::string& value);

/// Returns all valid keys of a config file, this library's keys first.
std::vector<std::string> known_keys();

/// Returns the keys with an effective value that have no meaning here, also those of groups: "deepspeed_config.KEY".
std::vector<std::string> keys_without_meaning(const std::map<std::string, std::string>& values);

/// \throws Error (environment) if the file configures an unsupported kind of training, with the available alternative.
///         Data parallel training in place of a sharded one might not fit into memory or would silently differ.
void check_distributed_type(const std::map<std::string, std::string>& values, const std::string& path);

}  // namespace accelerate::env
