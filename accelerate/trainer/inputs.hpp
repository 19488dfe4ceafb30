// SPDX-License-Identifier: Apache-2.0
// A batch as a dictionary: what a collate function makes of examples.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace accelerate::trainer {

/// {"x": [B, ...], "labels": [B]}: tensors by name, each with a row per example.
class Inputs : public std::map<std::string, at::Tensor> {
 public:
  using std::map<std::string, at::Tensor>::map;

  /// Throws Error (usage) for a name that the batch does not have, with those that it has.
  const at::Tensor& operator[](const std::string& name) const;

  [[nodiscard]] std::vector<std::string> names() const;
  /// B, of the first by name that has rows; 0 where none has.
  [[nodiscard]] int64_t examples() const;
  /// The first `count` rows of every tensor that has B, as views.
  [[nodiscard]] Inputs first(int64_t count) const;
};

}  // namespace accelerate::trainer
