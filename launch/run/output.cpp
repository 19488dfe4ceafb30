// SPDX-License-Identifier: Apache-2.0
#include "launch/run/output.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace accelerate::launch {
namespace {

using Clock = LineBuffer::Clock;

/// More than a pipe holds: what comes beyond it was written after the end of the workers.
constexpr size_t rest_bytes = 1 << 20;

}  // namespace

template <typename Function>
void Output::for_each_stream(Function&& function) {
  for (auto& worker : workers_) {
    for (size_t which = 0; which < sinks_.size(); ++which) function(worker, which);
  }
}

void Output::add(base::FileDescriptor out, base::FileDescriptor err) {
  auto& worker = workers_.emplace_back();
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
    if (const auto failure = sink.take_failure()) say(*failure);
  }
}

int Output::patience_ms() const {
  const auto holds = [](const Stream& stream) { return !stream.lines.empty(); };
  const bool one_waits = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return std::any_of(worker.streams.begin(), worker.streams.end(), holds);
  });
  return one_waits ? static_cast<int>(LineBuffer::patience.count()) : -1;
}

size_t Output::relay(Worker& worker, size_t which) {
  auto& stream = worker.streams[which];
  std::array<char, 65536> buffer;
  const ssize_t n = read(stream.from.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) {  // end of file; a terminal says EIO
    pass_on(worker, which, stream.lines.flush(Clock::now(), true));
    stream.from.reset();
    return 0;
  }
  const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
  if (workers_.size() == 1) {
    pass_on(worker, which, bytes);
  } else {
    pass_on(worker, which, stream.lines.add(bytes, Clock::now()));
  }
  return bytes.size();
}

void Output::pass_on(Worker& worker, size_t which, std::string_view bytes) {
  worker.tail.add(bytes);
  if (!bytes.empty()) sinks_[which].add(bytes);
  // The worker then gets SIGPIPE, as it would without us.
  if (sinks_[which].abandoned()) worker.streams[which].from.reset();
}

void Output::hurry() {
  hurries_ = true;
  for (auto& sink : sinks_) sink.drop_beyond_limit();
}

void Output::take_the_rest() {
  for_each_stream([&](Worker& worker, size_t which) {
    auto& stream = worker.streams[which];
    for (size_t taken = 0, n = 1; stream.from && n > 0 && taken < rest_bytes; taken += n) n = relay(worker, which);
    pass_on(worker, which, stream.lines.flush(Clock::now(), true));
    stream.from.reset();
  });
}

bool Output::flushed() const {
  return std::all_of(sinks_.begin(), sinks_.end(), [](const Sink& sink) { return sink.empty(); });
}

void Output::give_up() {
  std::string lost;
  for (const auto& sink : sinks_) lost += sink.unread().value_or("");
  if (!lost.empty()) say(lost);
}

}  // namespace accelerate::launch
