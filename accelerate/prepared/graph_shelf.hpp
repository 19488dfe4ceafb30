// SPDX-License-Identifier: Apache-2.0
// Which calls of a graphed step run as they are, are recorded, or replayed: a value.
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
  /// Calls with inputs of the same shapes that run as they are before the next one is recorded: what a first step makes
  /// (buckets, an optimizer's averages, kernels that are chosen by trying) is there then. At least 1.
  int64_t warmup_steps = 3;
  /// Graphs that are kept, one for each set of shapes; each holds the memory of a step. At least 1.
  int64_t max_graphs = 8;
  bool operator==(const GraphOptions&) const = default;
};

/// Throws Error (usage) with the option, its value and what it must be.
void check(const GraphOptions& options, const Place& place);

/// Why no step of this device is recorded, whatever it does; empty: it may be.
/// graphs    of that type of device; null: there are none
/// backend   of the group, "nccl+gloo"
[[nodiscard]] std::string why_no_graphs(c10::Device device, const device::GraphRow* graphs, std::string_view backend,
                                        int64_t ranks);

class GraphShelf {
 public:
  enum class Action { plain, record, replay };
  struct Decision {
    Action action = Action::plain;
    /// To be recorded or replayed; they count from 0.
    size_t graph = 0;
    /// All graphs so far are worth nothing any more.
    bool cleared = false;
    bool operator==(const Decision&) const = default;
  };

  explicit GraphShelf(const GraphOptions& options) : options_(options) {}

  /// The next call.
  /// inputs    their shapes, dtypes and places, as text
  /// made_of   what else a step rests on; where it changes, graphs go, and no call is recorded at once
  Decision next(const std::string& inputs, uint64_t made_of);

  /// All graphs so far were thrown away.
  void forget() { clear(); }
  [[nodiscard]] int64_t graphs() const { return graphs_; }
  /// Why calls stay plain that are warm; empty: none does.
  [[nodiscard]] const std::string& why_plain() const { return why_plain_; }

 private:
  struct Kept {
    int64_t plain = 0;
    bool recorded = false;
    size_t graph = 0;
    int64_t replays = 0;
  };
  void clear();
  Decision keep_or_record(Kept& kept, bool changed);

  GraphOptions options_;
  std::unordered_map<std::string, Kept> kept_;
  uint64_t made_of_ = 0;
  int64_t graphs_ = 0;
  int64_t wasted_ = 0;  ///< graphs that went before they were replayed
  std::string why_plain_;
};

}  // namespace accelerate::prepared
