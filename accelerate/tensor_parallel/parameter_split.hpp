// SPDX-License-Identifier: Apache-2.0
// How the parameters of a tensor parallel layer are split over the ranks of its group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// One parameter of which each rank has an equal part.
struct ParameterSplit {
  std::string name{};  ///< without the names of the modules that contain it: "weight"
  int64_t dim = 0;     ///< dimension that is split
  /// The dimension consists of this many equal blocks, and each rank has an equal part of each block. The packed
  /// projection of attention has three.
  int64_t blocks = 1;

  bool operator==(const ParameterSplit&) const = default;
};

/// Returns the part of one rank, as a new contiguous tensor. Pure function.
///
/// \param whole  The size of split.dim must be divisible by split.blocks * ranks.
at::Tensor part_of(const at::Tensor& whole, const ParameterSplit& split, int64_t rank, int64_t ranks);

/// Inverse of part_of(). Pure function.
///
/// \param parts  The parts of all ranks, in rank order.
at::Tensor whole_of(const std::vector<at::Tensor>& parts, const ParameterSplit& split);

/// Base class of layers that are split over a group. Their parameters have the names of LibTorch's layer; all that
/// parameter_splits() does not name are equal on all ranks.
class SplitLayer {
 public:
  explicit SplitLayer(comm::Group group) : group_(std::move(group)) {}
  virtual ~SplitLayer() = default;

  /// Splits of the layer's own parameters, without those of submodules.
  [[nodiscard]] virtual std::vector<ParameterSplit> parameter_splits() const = 0;
  [[nodiscard]] const comm::Group& group() const { return group_; }

 protected:
  SplitLayer(const SplitLayer&) = default;
  SplitLayer& operator=(const SplitLayer&) = default;

  /// Returns this rank's part of a parameter of the whole layer; undefined if that is undefined.
  [[nodiscard]] at::Tensor part(const at::Tensor& whole, const ParameterSplit& split) const;
  /// Returns a copy of a parameter that is not split; undefined if that is undefined.
  [[nodiscard]] static at::Tensor copy_of(const at::Tensor& whole);
  /// True if a parameter of the whole layer exists and needs a gradient.
  [[nodiscard]] static bool learns(const at::Tensor& whole) { return whole.defined() && whole.requires_grad(); }

 private:
  comm::Group group_;
};

}  // namespace accelerate::nn
