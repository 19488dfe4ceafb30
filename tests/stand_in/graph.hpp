// SPDX-License-Identifier: Apache-2.0
// Streams that capture their work, as in CUDA, and graphs that replay it.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/stand_in/blocks.hpp"
#include "tests/stand_in/clock.hpp"

namespace stand_in {

/// One capture. Guarded by the world's mutex until it ends.
struct Capture {
  struct Entry {
    std::vector<Touch> touches;
    std::function<void()> job;
  };
  int origin = 0;                                ///< the stream on which it began
  std::vector<Entry> entries;                    ///< in the host's order, which is a valid order for the streams
  std::vector<std::function<void()>> at_replay;  ///< host functions of each replay
  std::map<int, Clock> streams;                  ///< capturing streams with their dependencies
  bool ended = false;

  void add(int stream, Entry entry);
  /// Streams whose work is not joined into the origin stream.
  [[nodiscard]] bool unjoined() const;
};
using CapturePtr = std::shared_ptr<Capture>;

/// Null if the stream does not capture. Call with the world's mutex locked.
CapturePtr capture_of(int stream);
/// A stream that waits for a capturing stream captures too. Fails for the default stream, as CUDA's legacy stream does.
void join_capture(int stream, const CapturePtr& capture, const Clock& after);

/// Capture of the device's current stream; locks the mutex.
CapturePtr current_capture(c10::DeviceIndex device);

/// Fails while this thread or that stream captures, because the result of the call would not be known before a replay.
void refuse_while_recording(const std::string& call);
void refuse_while_recording(const std::string& call, const c10::Stream& stream);

}  // namespace stand_in
