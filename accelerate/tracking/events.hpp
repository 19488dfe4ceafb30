// SPDX-License-Identifier: Apache-2.0
// Messages of TensorBoard's event files; their .proto files are in tensorboard/compat/proto and plugins/hparams.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/tracking/protobuf.hpp"
#include "accelerate/tracking/values.hpp"

namespace accelerate::tracking {

/// First event of a file.
[[nodiscard]] Message version_event(double time);

/// \param summary  One or several summary values, made by the functions below.
[[nodiscard]] Message summary_event(const std::vector<Message>& summary, int64_t step, double time);

[[nodiscard]] Message scalar_summary(const std::string& tag, double value);
[[nodiscard]] Message text_summary(const std::string& tag, const std::string& text);
[[nodiscard]] Message image_summary(const std::string& tag, const Image& image);
[[nodiscard]] Message histogram_summary(const std::string& tag, const Histogram& histogram);

/// Configuration of a run for the HPARAMS tab, written at the start of the run.
[[nodiscard]] std::vector<Message> hparams_summaries(const std::string& name, const Values& config, double time);
/// Marks the run as successfully ended in the HPARAMS tab.
[[nodiscard]] Message hparams_end_summary(double time);

}  // namespace accelerate::tracking
