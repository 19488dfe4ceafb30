// SPDX-License-Identifier: Apache-2.0
#include "launch/run/worker_output.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>

namespace accelerate::launch {
namespace {

using Clock = LineBuffer::Clock;

/// More than a pipe can hold. Bytes beyond this limit were written after the workers ended.
constexpr size_t kRestBytes = 1 << 20;
/// Time for a signal from a terminal to reach all its receivers on a busy machine.
constexpr std::chrono::milliseconds kSignalComes{200};

/// True for a terminal, unless the user requested plain output (no-color.org).
bool is_colourful(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(fd) != 0 && (no_color == nullptr || *no_color == '\0') &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

bool are_one_file(int one, int other) {
  struct stat first {};
  struct stat second {};
  return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

Output::Output(int out, int err, bool labels)
    : one_(are_one_file(out, err)), sinks_{Sink(out, one_ ? "stdout and stderr" : "stdout"), Sink(err, "stderr")} {
  if (labels) labels_ = {Labels(is_colourful(out)), Labels(is_colourful(err))};
}

template <typename Function>
void Output::for_each_stream(Function&& function) {
  for (auto& worker : workers_) {
    for (size_t which = 0; which < sinks_.size(); ++which) function(worker, which);
  }
}

void Output::add(base::FileDescriptor out, base::FileDescriptor err, OutputRouting way) {
  auto& worker = workers_.emplace_back();
  worker.way = std::move(way);
  if (worker.way.log) worker.log.emplace(worker.way.log.get(), fmt::format("the log of rank {}", worker.way.rank));
  worker.streams[0].from = std::move(out);
  worker.streams[1].from = std::move(err);
}

void Output::watch(std::vector<pollfd>& waits) {
  for_each_stream([&](Worker& worker, size_t which) {
    auto& stream = worker.streams[which];
    stream.watched_at = waits.size();
    waits.push_back({.fd = may_read(which) ? stream.from.get() : -1, .events = POLLIN, .revents = 0});
  });
  for (const auto& sink : sinks_) {
    if (!sink.empty()) waits.push_back({.fd = sink.fd(), .events = POLLOUT, .revents = 0});
  }
}

void Output::serve(const std::vector<pollfd>& waits) {
  for (auto& sink : sinks_) sink.flush();
  for_each_stream([&](Worker& worker, size_t which) {
    auto& stream = worker.streams[which];
    if (waits[stream.watched_at].revents != 0 && may_read(which)) relay(worker, which);
    pass_on(worker, which, stream.lines.flush(Clock::now()));
  });
  for (auto& sink : sinks_) {
    if (const auto failure = sink.take_failure()) write_message(*failure);
  }
}

int Output::poll_timeout_ms() const {
  const auto holds = [](const Stream& stream) { return !stream.lines.empty(); };
  const bool one_waits = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return std::any_of(worker.streams.begin(), worker.streams.end(), holds);
  });
  return one_waits ? static_cast<int>(LineBuffer::kMaxWait.count()) : -1;
}

size_t Output::relay(Worker& worker, size_t which) {
  auto& stream = worker.streams[which];
  std::array<char, 65536> buffer;
  const ssize_t n = read(stream.from.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) {  // end of file; a terminal returns EIO
    pass_on(worker, which, stream.lines.flush(Clock::now(), true));
    stream.from.reset();
    return 0;
  }
  const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
  if (workers_.size() == 1 && labels_.empty()) {
    pass_on(worker, which, bytes);
  } else {
    pass_on(worker, which, stream.lines.add(bytes, Clock::now()));
  }
  return bytes.size();
}

void Output::pass_on(Worker& worker, size_t which, std::string_view bytes) {
  if (bytes.empty()) return;
  worker.tail.add(bytes);
  if (worker.way.reports_failures && which == 1) worker.reported_failure.add(bytes);
  if (worker.log && worker.way.to_log.at(which)) {
    worker.log->add(bytes);
    if (const auto failure = worker.log->take_failure()) write_message(*failure);
  }
  if (!worker.way.to_console.at(which)) return;
  show(worker, which, bytes);
  // Closes the pipe, so that the worker gets SIGPIPE as without a launcher. Not after a request to end, because the
  // worker may be saving when the same Ctrl-C has ended `| tee log`.
  if (hurries_ || !sinks_[sink_of(which)].abandoned()) return;
  if (!reader_lost_at_) reader_lost_at_ = Clock::now();
  if (Clock::now() > *reader_lost_at_ + kSignalComes) worker.streams[which].from.reset();
}

void Output::show(const Worker& worker, size_t which, std::string_view bytes) {
  const size_t sink = sink_of(which);
  if (labels_.empty()) return sinks_[sink].add(bytes);
  const auto stream = 2 * static_cast<size_t>(worker.way.rank) + which;
  sinks_[sink].add(labels_.at(sink).label(worker.way.rank, stream, bytes));
}

void Output::expire() {
  hurries_ = true;
  for (auto& sink : sinks_) sink.drop_beyond_limit();
}

void Output::drain_workers() {
  for_each_stream([&](Worker& worker, size_t which) {
    auto& stream = worker.streams[which];
    for (size_t taken = 0, n = 1; stream.from && n > 0 && taken < kRestBytes; taken += n) n = relay(worker, which);
    pass_on(worker, which, stream.lines.flush(Clock::now(), true));
    stream.from.reset();
  });
}

bool Output::flushed() const {
  return std::all_of(sinks_.begin(), sinks_.end(), [](const Sink& sink) { return sink.empty(); });
}

void Output::discard_unread() {
  std::string lost;
  for (const auto& sink : sinks_) lost += sink.unread().value_or("");
  if (!lost.empty()) write_message(lost);
}

}  // namespace accelerate::launch
