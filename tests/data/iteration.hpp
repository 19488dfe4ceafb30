// SPDX-License-Identifier: Apache-2.0
// Common code of the loader tests: passes as lists of numbers.
#pragma once

#include "tests/testing.hpp"
//
#include "accelerate/data/source.hpp"

namespace sources {

using Numbers = std::vector<int64_t>;
using Batches = std::vector<Numbers>;

inline Numbers list(const at::Tensor& tensor) {
  const auto own = tensor.to(torch::kLong).contiguous();
  return {own.const_data_ptr<int64_t>(), own.const_data_ptr<int64_t>() + own.numel()};
}

/// The batches of one pass over a loader of tensors, at most `most`.
template <typename Loader>
Batches pass(Loader& loader, int64_t most = 1'000'000) {
  Batches batches;
  if (most == 0) return batches;
  for (auto& batch : loader) {
    batches.push_back(list(batch));
    if (static_cast<int64_t>(batches.size()) == most) break;
  }
  return batches;
}

/// A source without data: its batches are the sample numbers.
struct Positions final : accelerate::data::SourceOf<at::Tensor> {
  explicit Positions(int64_t n) : samples(n) {}
  [[nodiscard]] int64_t size() const override { return samples; }
  [[nodiscard]] at::Tensor read(const at::Tensor& indices) const override { return indices; }
  int64_t samples;
};

}  // namespace sources
