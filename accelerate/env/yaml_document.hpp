// SPDX-License-Identifier: Apache-2.0
// Private: the one document of a config file.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>

namespace accelerate::env {

/// Null where the text is empty, or comments alone.
/// Throws Error (environment), said by `who`, for what is no YAML, with its line, and for several documents.
/// YAML::LoadAll (yaml-cpp 0.7 and 0.8) never comes back from a text with a comma where a document begins: it finds one
/// empty document after another there. This does.
YAML::Node yaml_document(const std::string& text, const std::string& path, std::string_view who);

}  // namespace accelerate::env
