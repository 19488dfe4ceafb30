// SPDX-License-Identifier: Apache-2.0
// Keys of a config file that are no settings: accelerate_launch's own, and those that `accelerate config` writes
// besides.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"

namespace accelerate::env {

/// What accelerate_launch reads (launch/plan/options_table.hpp), the library does not.
const std::vector<std::string_view>& launcher_keys();

/// A key of Hugging Face Accelerate that says nothing here, or says it under another name.
struct ForeignKey {
  std::string_view key;
  /// The setting that it is; "": none.
  std::string_view setting = "";
  /// The value beside empty ones, no and false that asks for nothing.
  std::string_view asks_nothing = "";
};

const std::vector<ForeignKey>& foreign_keys();

/// Every key that a file may have, ours first.
std::vector<std::string> known_keys();

/// Keys of these values that are there and ask for something, but mean nothing here.
std::vector<std::string> keys_without_meaning(const std::map<std::string, std::string>& values);

/// Throws Error (environment) when the file was made for a kind of training that is not ours, with what there is
/// instead: data parallel training where a sharded one was configured would not fit, or quietly be another.
void check_distributed_type(const std::map<std::string, std::string>& values, const std::string& path);

}  // namespace accelerate::env
