// SPDX-License-Identifier: Apache-2.0
// Capture of device work that is replayed with one call: CUDA graphs, and equivalents on other devices.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string_view>

namespace accelerate::device {

/// One captured graph. Captured work does not run during the capture. Memory that it allocates belongs to the graph and
/// keeps its address during the graph's lifetime. Not thread-safe.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Starts capturing on the current stream, which must not be the default stream, and on streams that are made to wait
  /// for it.
  virtual void begin() = 0;
  /// Ends the capture. \throws if the device could not capture an operation.
  virtual void end() = 0;
  /// Enqueues all captured work on the current stream. The host does not wait.
  virtual void replay() = 0;
};

/// Graph implementation for one device type.
struct GraphRow {
  c10::DeviceType type;
  std::unique_ptr<Graph> (*make)();
  /// Name of the backend with collectives that can be captured.
  std::string_view backend;
};

/// Returns null if this device type has no graphs, or if this build does not support them.
[[nodiscard]] const GraphRow* find_graphs(c10::DeviceType type);

/// Registers graphs of an external device type, as comm::add_backend() does for backends. The row must outlive all its
/// graphs.
void add_graphs(const GraphRow& row);

/// Captures the device work of `work` on a separate stream, which is ordered after the current stream and before its
/// later work.
///
/// \param before  Runs first on that stream and is not captured.
/// \throws the exceptions of `before` and `work`, or an error if an operation cannot be captured; the graph must then
///         be discarded.
void capture_graph(Graph& graph, c10::Device device, const std::function<void()>& before,
                   const std::function<void()>& work);

}  // namespace accelerate::device
