// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "accelerate/env/settings.hpp"

namespace accelerate::env {

/// The config file at this path, as parse_config.
///
/// named_by   for the error: "--config_file"
/// Throws Error (io) when it cannot be read.
Config read_config_file(const std::string& path, std::string_view named_by);

}  // namespace accelerate::env
