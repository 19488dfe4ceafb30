// SPDX-License-Identifier: Apache-2.0
// Private: the documents of a YAML text.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

namespace accelerate::env {

/// Without those that are null (empty, or comments alone).
/// Throws YAML::Exception for what is no YAML. YAML::LoadAll (yaml-cpp 0.7 and 0.8) never comes back from a text with a
/// comma where a document begins: it finds one empty document after another there.
std::vector<YAML::Node> yaml_documents(const std::string& text);

}  // namespace accelerate::env
