// SPDX-License-Identifier: Apache-2.0
// Optimizer state of ranges of parameters, for ranks that step on a part of each parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/device/copy_all.hpp"
#include "accelerate/state/saved_elements.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// Elements [begin, end) of a parameter in memory order.
struct StateRange {
  int64_t begin = 0, end = 0;
  /// Device of the state. If unset, that of the parameter.
  std::optional<c10::Device> device{};
};

/// Returns the range of a parameter for which this rank keeps state, or nothing if it keeps the whole state.
using RangeOfParameter = std::function<std::optional<StateRange>(const at::Tensor& parameter)>;

/// Returns the elements of a tensor with the shape of the parameter, in the memory order of the parameter, as a tensor
/// of [end - begin] elements. It may share memory with `whole`.
[[nodiscard]] at::Tensor range_of(const at::Tensor& whole, const at::Tensor& parameter, const StateRange& range);

/// Appends the copies that fill `to` with the elements of a saved tensor.
///
/// \param to         [end - begin] elements in the memory order of the parameter, contiguous.
/// \param saved      A tensor with the shape of the parameter, or a placeholder that `read` accepts.
/// \param parameter  Determines shape and memory order; its values are not used.
void append_copies(std::vector<device::CopyPair>& copies, const at::Tensor& to, const at::Tensor& saved,
                   const at::Tensor& parameter, const StateRange& range, const state::ReadElements& read);

/// Replaces each whole state tensor by this rank's range of it, and removes the state of parameters with an empty
/// range. State that has the length of the range is left as it is. Only for the stock optimizers of FusedStep.
/// \throws Error (usage) if a state tensor has another shape.
void keep_state_ranges(torch::optim::Optimizer& optimizer, const RangeOfParameter& range_of_parameter,
                       const RankContext& place);

}  // namespace accelerate::optim
