// SPDX-License-Identifier: Apache-2.0
// What the workers print, on its way to our stdout and stderr.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/run/labels.hpp"
#include "launch/run/lines.hpp"
#include "launch/run/sink.hpp"
#include "launch/run/told_failure.hpp"

namespace accelerate::launch {

/// What becomes of one worker's output.
struct OutputWay {
  int64_t rank = 0;
  base::FileDescriptor log{};                  ///< its log file, if it has one
  std::array<bool, 2> to_log{true, true};      ///< stdout, stderr
  std::array<bool, 2> to_console{true, true};  ///< our stdout, our stderr
  bool may_tell_of_failures = false;           ///< it starts ranks with launchers of ours around them
};

/// Reads the workers and writes our outputs, without waiting for either. A worker waits when our reader is slow and a
/// Sink is full.
class Output {
 public:
  /// \param labels  Prefix each line with its rank.
  Output(int out, int err, bool labels = false);

  /// out, err   the ends of the next worker's pipes that we read, non-blocking
  void add(base::FileDescriptor out, base::FileDescriptor err, OutputWay way = {});

  /// Adds what poll() has to look at.
  void watch(std::vector<pollfd>& waits);
  /// Does what can be done now. waits: after poll(), as watch() filled it.
  void serve(const std::vector<pollfd>& waits);
  /// Milliseconds until a partial line must be written, or -1 if none is pending.
  [[nodiscard]] int patience_ms() const;

  /// The end was requested: stops waiting for a slow reader of our output. Bytes that it does not read in time are
  /// dropped, and a reader that closes the pipe no longer ends the workers.
  void hurry();
  /// All workers have ended: reads their last output. Output of programs that they left behind is not read.
  void take_the_rest();
  [[nodiscard]] bool flushed() const;
  /// Reports how many bytes are lost because no process reads them.
  void give_up();

  /// The last lines of a worker, in the order of add().
  [[nodiscard]] std::string last_lines(size_t worker) const { return workers_.at(worker).tail.text(); }
  /// The first failure that a per-rank wrapper around this worker's ranks wrote to stderr.
  [[nodiscard]] const std::optional<ToldFailure>& told_failure(size_t worker) const {
    return workers_.at(worker).told.found();
  }
  /// A message of our own, to stderr.
  void say(std::string_view text) { sinks_[sink_of(1)].add(text); }

 private:
  struct Stream {
    base::FileDescriptor from{};
    LineBuffer lines{};
    size_t watched_at = 0;  // in the waits
  };
  struct Worker {
    Tail tail{};
    std::array<Stream, 2> streams{};
    OutputWay way{};
    std::optional<Sink> log{};
    FirstToldFailure told{};
  };

  /// Of stdout (0) or stderr (1): the first for both where they are one pipe or terminal. Two would write into the line
  /// that the other could not end yet.
  [[nodiscard]] size_t sink_of(size_t which) const { return one_ ? 0 : which; }
  [[nodiscard]] bool may_read(size_t which) const { return hurries_ || !sinks_[sink_of(which)].full(); }
  /// Reads at most one buffer. Returns the number of bytes, or 0 if no more data is available.
  size_t relay(Worker& worker, size_t which);
  void pass_on(Worker& worker, size_t which, std::string_view bytes);
  void show(const Worker& worker, size_t which, std::string_view bytes);
  template <typename Function>
  void for_each_stream(Function&& function);

  bool one_;  ///< whether our stdout and stderr are one file, pipe or terminal
  std::array<Sink, 2> sinks_;
  std::deque<Worker> workers_;
  /// One for each sink; empty where lines have no labels.
  std::vector<Labels> labels_;
  std::optional<LineBuffer::Clock::time_point> reader_gone_at_{};
  bool hurries_ = false;
};

}  // namespace accelerate::launch
