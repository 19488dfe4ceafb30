// SPDX-License-Identifier: Apache-2.0
// Text to values, as environment variables and config files give them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::env {

/// A decimal integer and nothing else; otherwise nothing.
std::optional<int64_t> parse_integer(std::string_view text);

/// y yes t true on 1 and n no f false off 0, in any case; otherwise nothing.
std::optional<bool> parse_bool(std::string_view text);

/// cpu, cuda, cuda:N, or another device in LibTorch's way of writing; otherwise nothing. Whether LibTorch knows one of
/// that name shows when it is chosen.
std::optional<DeviceName> parse_device(std::string_view text);

/// The variable's text; an empty one counts as not set.
std::optional<std::string> find(const Variables& variables, const std::string& name);

}  // namespace accelerate::env
