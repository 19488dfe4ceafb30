// SPDX-License-Identifier: Apache-2.0
// Decides which calls of a graphed step run eagerly, are captured, or are replayed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "accelerate/base/error.hpp"
#include "accelerate/device/graph.hpp"

namespace accelerate::prepared {

struct GraphOptions {
  /// Number of eager calls per set of input shapes before capture. They create buckets and optimizer state, and select
  /// autotuned kernels. At least 1.
  int64_t warmup_steps = 3;
  /// Maximum number of graphs, one per set of shapes. Each owns the memory of a step. At least 1.
  int64_t max_graphs = 8;
  bool operator==(const GraphOptions&) const = default;
};

/// \throws Error (usage) if an option is out of range.
void check_graph_options(const GraphOptions& options, const RankContext& place);

/// Returns the reason why steps on this device cannot be captured at all, or "" if they can.
/// \param graphs   Graphs of this device type; null if there are none.
/// \param backend  Backend of the process group, such as "nccl+gloo".
[[nodiscard]] std::string graphs_unsupported_reason(c10::Device device, const device::GraphRow* graphs,
                                                    std::string_view backend, int64_t ranks);

class GraphCache {
 public:
  enum class Action { plain, record, replay };
  struct Decision {
    Action action = Action::plain;
    /// Index of the graph to capture or replay.
    size_t graph = 0;
    /// True if all earlier graphs are invalid.
    bool cleared = false;
    bool operator==(const Decision&) const = default;
  };

  explicit GraphCache(const GraphOptions& options) : options_(options) {}

  /// Decides about the next call.
  /// \param inputs   Text with the inputs' shapes, strides, dtypes and devices.
  /// \param made_of  Fingerprint of everything else that a step depends on. A change drops all graphs, and this call is
  /// not captured.
  Decision next(const std::string& inputs, uint64_t made_of);

  /// Call it after all graphs were discarded.
  void forget() { clear(); }
  [[nodiscard]] int64_t graphs() const { return graphs_; }
  /// Reason why calls after the warm-up are not captured; empty if there is none.
  [[nodiscard]] const std::string& not_captured_reason() const { return not_captured_reason_; }

 private:
  struct Kept {
    int64_t plain = 0;
    bool recorded = false;
    size_t graph = 0;
    int64_t replays = 0;
  };
  void clear();
  Decision keep_or_capture(Kept& kept, bool changed);

  GraphOptions options_;
  std::unordered_map<std::string, Kept> kept_;
  uint64_t made_of_ = 0;
  int64_t graphs_ = 0;
  int64_t wasted_ = 0;  ///< graphs that were discarded before their first replay
  std::string not_captured_reason_;
};

}  // namespace accelerate::prepared
