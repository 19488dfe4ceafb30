// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/load_report.hpp"

#include <fmt/format.h>

namespace accelerate::data {

std::string LoadReport::text() const {
  if (batches == 0) return "no batch was taken yet";
  const double share = seconds > 0 ? 100 * waited_for_data / seconds : 0;
  const auto numbers = fmt::format(
      "{} samples in {} batches, {:.0f} samples/s; the step waited {:.1f} % of {:.3f} s for data, batches "
      "waited {:.3f} s for the step",
      samples, batches, samples_per_second(), share, seconds, data_waited);
  if (!data_is_bottleneck()) return numbers + ": the step is the bottleneck, the data keep up";
  if (num_workers == 0) return numbers + ": the data are the bottleneck; num_workers = 1 reads beside the step";
  return numbers +
         fmt::format(": the data are the bottleneck; more than {} workers, or a cheaper read, would help", num_workers);
}

}  // namespace accelerate::data
