// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace accelerate::precision {

/// State of a loss scale; content of torch.amp.GradScaler.state_dict().
struct ScalerState {
  double scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  /// Number of consecutive iterations without inf or NaN since the scale last changed.
  int64_t growth_tracker = 0;
  bool operator==(const ScalerState&) const = default;
};

}  // namespace accelerate::precision
