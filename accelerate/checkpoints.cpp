// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoints.hpp"

namespace accelerate {

prepared::TensorDict Checkpoints::load(const std::filesystem::path& path) {
  prepared::TensorDict dict;
  for (const auto& [name, tensor] : checkpoint::read_weights(path, "load")) dict.insert(name, tensor);
  return dict;
}

}  // namespace accelerate
