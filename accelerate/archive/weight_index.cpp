// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/weight_index.hpp"

#include <nlohmann/json.hpp>

#include "accelerate/archive/json_text.hpp"
#include "accelerate/archive/manifest.hpp"

namespace accelerate::archive {

WeightIndex read_weight_index(std::string_view text, const Origin& origin) {
  const nlohmann::json whole = parse_json(text, "index", {}, origin);
  const auto* const map = whole.is_object() && whole.contains("weight_map") ? &whole.at("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) {
    origin.broken("the index has no 'weight_map' from tensors to files");
  }
  WeightIndex index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_file_name(file.get_ref<const std::string&>())) {
      origin.broken("the index maps {} to {}, expected a file's name without folders", quote_for_terminal(tensor),
                    quote_for_terminal(file.is_string() ? file.get<std::string>() : file.dump()));
    }
    index.emplace(tensor, file.get<std::string>());
  }
  return index;
}

}  // namespace accelerate::archive
