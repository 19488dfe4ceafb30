// SPDX-License-Identifier: Apache-2.0
// A batch as a dictionary: what a collate function makes of examples.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::trainer {

/// {"x": [B, ...], "labels": [B]}: tensors by name, each with a row per example.
class Inputs : public std::map<std::string, at::Tensor> {
 public:
  using std::map<std::string, at::Tensor>::map;

  /// Throws MissingInput for a name that the batch does not have, with those that it has.
  const at::Tensor& operator[](const std::string& name) const;

  [[nodiscard]] std::vector<std::string> names() const;
  /// B, of the first by name that has rows; 0 where none has.
  [[nodiscard]] int64_t examples() const;
  /// The first `count` rows of every tensor that has B, as views.
  [[nodiscard]] Inputs first(int64_t count) const;
};

/// Error (usage). A batch does not know whose it is: the Trainer adds the place.
class MissingInput final : public base::Error {
 public:
  explicit MissingInput(const std::string& message, const Place& place = {});
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  std::string message_;
};

/// What call returns, which uses batches at this place.
template <typename Call>
decltype(auto) using_inputs_at(const Place& place, const Call& call) {
  try {
    return call();
  } catch (const MissingInput& missing) {
    throw MissingInput(missing.message(), place);
  }
}

}  // namespace accelerate::trainer
