// SPDX-License-Identifier: Apache-2.0
// Forwards the workers' output to the launcher's stdout and stderr.
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
#include "launch/run/line_buffer.hpp"
#include "launch/run/line_labels.hpp"
#include "launch/run/output_sink.hpp"
#include "launch/run/reported_failure.hpp"

namespace accelerate::launch {

/// Destinations of one worker's output.
struct OutputRouting {
  int64_t rank = 0;
  base::FileDescriptor log{};                  ///< its log file, if it has one
  std::array<bool, 2> to_log{true, true};      ///< stdout and stderr
  std::array<bool, 2> to_console{true, true};  ///< stdout and stderr
  bool reports_failures = false;               ///< true if per-rank wrappers of this launcher run around its ranks
};

/// Reads the workers' output and writes it without blocking. If the reader is slow and a Sink is full, the worker
/// waits.
class Output {
 public:
  /// \param labels  If true, each line is prefixed with its rank.
  Output(int out, int err, bool labels = false);

  /// Adds the next worker. \param out, err  Non-blocking read ends of its pipes.
  void add(base::FileDescriptor out, base::FileDescriptor err, OutputRouting way = {});

  /// Adds the poll() entries.
  void watch(std::vector<pollfd>& waits);
  /// Reads and writes without blocking. \param waits  Entries of watch() after poll().
  void serve(const std::vector<pollfd>& waits);
  /// Milliseconds until a partial line must be written, or -1 if none is pending.
  [[nodiscard]] int poll_timeout_ms() const;

  /// Call after a request to end: stops waiting for a slow reader. Bytes that it does not read in time are dropped, and
  /// a reader that closes the pipe no longer ends the workers.
  void expire();
  /// Call after all workers have ended: reads their last output. Output of programs that they started is not read.
  void drain_workers();
  [[nodiscard]] bool flushed() const;
  /// Reports how many bytes are lost because no process reads them.
  void discard_unread();

  /// The last lines of a worker, in the order of add().
  [[nodiscard]] std::string last_lines(size_t worker) const { return workers_.at(worker).tail.text(); }
  /// The first failure that a per-rank wrapper around this worker's ranks wrote to stderr.
  [[nodiscard]] const std::optional<ReportedFailure>& reported_failure(size_t worker) const {
    return workers_.at(worker).reported_failure.found();
  }
  /// Writes a message of the launcher to stderr.
  void write_message(std::string_view text) { sinks_[sink_of(1)].add(text); }

 private:
  struct Stream {
    base::FileDescriptor from{};
    LineBuffer lines{};
    size_t watched_at = 0;  // index in the poll() entries
  };
  struct Worker {
    Tail tail{};
    std::array<Stream, 2> streams{};
    OutputRouting way{};
    std::optional<Sink> log{};
    FirstReportedFailure reported_failure{};
  };

  /// Sink of stdout (0) or stderr (1). If both are one pipe or terminal, they share the first sink, because two sinks
  /// could write into each other's unfinished lines.
  [[nodiscard]] size_t sink_of(size_t which) const { return one_ ? 0 : which; }
  [[nodiscard]] bool may_read(size_t which) const { return hurries_ || !sinks_[sink_of(which)].full(); }
  /// Reads at most one buffer. Returns the number of bytes, or 0 if no more data is available.
  size_t relay(Worker& worker, size_t which);
  void pass_on(Worker& worker, size_t which, std::string_view bytes);
  void show(const Worker& worker, size_t which, std::string_view bytes);
  template <typename Function>
  void for_each_stream(Function&& function);

  bool one_;  ///< true if stdout and stderr are one file, pipe or terminal
  std::array<Sink, 2> sinks_;
  std::deque<Worker> workers_;
  /// One per sink; empty if lines have no labels.
  std::vector<Labels> labels_;
  std::optional<LineBuffer::Clock::time_point> reader_lost_at_{};
  bool hurries_ = false;
};

}  // namespace accelerate::launch
