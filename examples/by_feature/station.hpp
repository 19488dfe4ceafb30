// SPDX-License-Identifier: Apache-2.0
// Data and network of a program without this library.
#pragma once

#include <torch/torch.h>

#include <utility>

/// Generates points: x [B, 2], and the distance of each from the origin [B, 1].
struct Station {
  std::pair<torch::Tensor, torch::Tensor> measure(int64_t points) {
    const auto x = torch::rand({points, 2}) * 2 - 1;
    return {x, x.norm(2, 1, /*keepdim=*/true)};
  }
};
