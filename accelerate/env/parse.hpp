// SPDX-License-Identifier: Apache-2.0
// Parsers for the values of environment variables and config files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::env {

/// Parses a decimal integer. Returns nothing for any other text.
std::optional<int64_t> parse_integer(std::string_view text);

/// Parses y yes t true on 1 and n no f false off 0, case-insensitively. Returns nothing for any other text.
std::optional<bool> parse_bool(std::string_view text);

/// Parses cpu, cuda, cuda:N, or another device in LibTorch's notation. Returns nothing for any other text. Whether
/// LibTorch supports the device is checked only when the device is selected.
std::optional<DeviceName> parse_device(std::string_view text);

/// Returns the value of a variable. An empty value counts as unset.
std::optional<std::string> find(const Variables& variables, const std::string& name);

}  // namespace accelerate::env
