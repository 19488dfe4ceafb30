// SPDX-License-Identifier: Apache-2.0
// A recording of what the host gives to a device, to be given again in one call: CUDA graphs, and what other devices
// have like them.
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
  /// The current stream, which must not be the default one, records what it is given from now on, and so do streams
  /// that are made to wait for it.
  virtual void begin() = 0;
  /// The end of it. Throws where the device could not record something.
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

/// Records what work gives to the device, on a stream of its own that comes after the current one and before what the
/// current one gets next.
///
/// before   runs on that stream first, and is not recorded
/// Throws what before and work throw, and what the device could not record; the graph is then to be thrown away.
void record(Graph& graph, c10::Device device, const std::function<void()>& before, const std::function<void()>& work);

}  // namespace accelerate::device
