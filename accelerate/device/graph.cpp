// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/graph.hpp"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <vector>

#include "accelerate/device/cuda_graph.hpp"
#include "accelerate/device/streams.hpp"

namespace accelerate::device {
namespace {

struct Added {
  std::mutex mutex;
  std::vector<const GraphRow*> rows;
};

Added& added() {
  static Added one;
  return one;
}

void follow(const c10::Stream& stream, const c10::Stream& first) { event_on(first).block(stream); }

}  // namespace

const GraphRow* find_graphs(c10::DeviceType type) {
  const GraphRow* cuda = cuda_graphs();
  if (cuda != nullptr && cuda->type == type) return cuda;
  const std::lock_guard lock(added().mutex);
  const auto& rows = added().rows;
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const GraphRow* row) { return row->type == type; });
  return found == rows.end() ? nullptr : *found;
}

void add_graphs(const GraphRow& row) {
  const std::lock_guard lock(added().mutex);
  added().rows.push_back(&row);
}

void capture_graph(Graph& graph, c10::Device device, const std::function<void()>& before,
                   const std::function<void()>& work) {
  const c10::Stream callers = current_stream(device);
  const c10::Stream own = stream_of_pool(device);
  follow(own, callers);
  {
    const c10::StreamGuard on_own(own);
    before();
    graph.begin();
    try {
      work();
    } catch (...) {
      try {
        graph.end();
      } catch (const std::exception&) {  // reports only that the capture failed; the first exception has the reason
      }
      throw;
    }
    graph.end();
  }
  follow(callers, own);
}

}  // namespace accelerate::device
