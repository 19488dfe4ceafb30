// SPDX-License-Identifier: Apache-2.0
// Private: parses the single YAML document of a config file.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>

namespace accelerate::env {

/// Parses one YAML document. Returns null if the text is empty or contains only comments. A comma at the start of a
/// document makes YAML::LoadAll (yaml-cpp 0.7 and 0.8) loop forever over empty documents; this function does not.
/// \throws Error (environment) with this operation for invalid YAML, with its line, and for several documents.
YAML::Node yaml_document(const std::string& text, const std::string& path, std::string_view operation);

}  // namespace accelerate::env
