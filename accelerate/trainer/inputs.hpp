// SPDX-License-Identifier: Apache-2.0
// A batch as a dictionary, which a collate function makes of examples.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::trainer {

/// Tensors by name, each with one row per example: {"x": [B, ...], "labels": [B]}.
class Inputs : public std::map<std::string, at::Tensor> {
 public:
  using std::map<std::string, at::Tensor>::map;

  /// \throws MissingInput with the available names if the batch lacks this name.
  const at::Tensor& operator[](const std::string& name) const;

  [[nodiscard]] std::vector<std::string> names() const;
  /// Returns B, the number of rows of the first tensor by name that has rows; otherwise 0.
  [[nodiscard]] int64_t examples() const;
  /// Returns the first `count` rows of every tensor with B rows, as views. Other tensors are returned unchanged.
  [[nodiscard]] Inputs first(int64_t count) const;
};

/// Error (usage) for a missing name. A batch has no RankContext, so the Trainer adds it.
class MissingInput final : public base::Error {
 public:
  explicit MissingInput(const std::string& message, const RankContext& place = {});
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  std::string message_;
};

/// Returns the result of call() and adds the place to a MissingInput that it throws.
template <typename Call>
decltype(auto) using_inputs_at(const RankContext& place, const Call& call) {
  try {
    return call();
  } catch (const MissingInput& missing) {
    throw MissingInput(missing.message(), place);
  }
}

}  // namespace accelerate::trainer
