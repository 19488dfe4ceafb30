// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "accelerate/env/settings.hpp"

namespace accelerate::env {

/// Reads the config file at this path; see parse_config().
///
/// \param named_by  Source of the path for the message: "--config_file".
/// \throws Error (io) if the file cannot be read.
Config read_config_file(const std::string& path, std::string_view named_by);

}  // namespace accelerate::env
