// SPDX-License-Identifier: Apache-2.0
// Capture of device work that is replayed with one call: CUDA graphs, and equivalents on other devices.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string_view>

namespace accelerate::device {

/// One recording. What is recorded does not run; memory that it allocates is the graph's own and stays where it is as
/// long as the graph lives. Not to be used by several threads at once.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Starts capturing on the current stream, which must not be the default stream, and on streams that are made to wait
  /// for it.
  virtual void begin() = 0;
  /// Ends the capture. \throws if the device could not capture an operation.
  virtual void end() = 0;
  /// Gives all of it to the current stream; the host does not wait.
  virtual void replay() = 0;
};

/// Graphs of one type of device.
struct GraphRow {
  c10::DeviceType type;
  std::unique_ptr<Graph> (*make)();
  /// Whose collectives can be recorded too.
  std::string_view backend;
};

/// Null where such devices have no graphs, or this build does not know them.
[[nodiscard]] const GraphRow* find_graphs(c10::DeviceType type);

/// For a device that this library does not know: as comm::add_backend(). The row must outlive the program's graphs.
void add_graphs(const GraphRow& row);

/// Captures the device work of `work` on a separate stream, which is ordered after the current stream and before its
/// later work.
///
/// \param before  Runs first on that stream and is not captured.
/// \throws the exceptions of `before` and `work`, or an error if an operation cannot be captured; the graph must then
///         be discarded.
void record(Graph& graph, c10::Device device, const std::function<void()>& before, const std::function<void()>& work);

}  // namespace accelerate::device
