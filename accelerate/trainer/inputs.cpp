// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/inputs.hpp"

#include "accelerate/trainer/best_metric.hpp"

namespace accelerate::trainer {

const at::Tensor& Inputs::operator[](const std::string& name) const {
  const auto found = find(name);
  if (found != end()) return found->second;
  throw MissingInput(
      fmt::format("there is no \"{}\", the collate function returned {}; use one of these, or let the collate function "
                  "return that one too",
                  name, quoted_names(names())));
}

MissingInput::MissingInput(const std::string& message, const RankContext& place)
    : Error(ErrorKind::usage, place, "batch", message), message_(message) {}

std::vector<std::string> Inputs::names() const {
  std::vector<std::string> list;
  for (const auto& [name, tensor] : *this) list.push_back(name);
  return list;
}

Inputs Inputs::first(int64_t count) const {
  const int64_t rows = examples();
  Inputs part = *this;
  for (auto& [name, tensor] : part) {
    if (tensor.defined() && tensor.dim() > 0 && tensor.size(0) == rows) tensor = tensor.narrow(0, 0, count);
  }
  return part;
}

int64_t Inputs::examples() const {
  for (const auto& [name, tensor] : *this) {
    if (tensor.defined() && tensor.dim() > 0) return tensor.size(0);
  }
  return 0;
}

}  // namespace accelerate::trainer
