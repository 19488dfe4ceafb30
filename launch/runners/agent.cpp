// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"
#include "launch/plan/error.hpp"
#include "launch/run/signals.hpp"
#include "launch/runners/frames.hpp"
#include "launch/runners/piped_child.hpp"
#include "launch/runners/relay.hpp"
#include "launch/runners/runner_context.hpp"

namespace accelerate::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// Merges the host's own variables with the received ones.
std::vector<std::string> with_ours(const std::vector<std::string>& came) {
  auto variables = env::current_variables();
  for (const auto& word : came) {
    const auto equals = std::min(word.find('='), word.size());
    variables[word.substr(0, equals)] = word.substr(std::min(equals + 1, word.size()));
  }
  std::vector<std::string> words;
  for (const auto& [name, value] : variables) words.push_back(name + "=" + value);
  return words;
}

class Agent {
 public:
  int run() {
    while (!launcher_) step();
    int code = -1;
    while ((code = launcher_->exit_code()) < 0) step();
    return code;
  }

 private:
  void start(const RemoteJob& job) {
    check_version(job.version);
    if (chdir(job.folder.c_str()) != 0) {
      fail(ErrorKind::environment, "{} on {}: {}; the folder must exist as on the host that starts the job", job.folder,
           base::host_name(), std::strerror(errno));
    }
    std::vector<std::string> arguments{"accelerate_launch"};
    arguments.insert(arguments.end(), job.arguments.begin(), job.arguments.end());
    launcher_.emplace("/proc/self/exe", std::move(arguments), with_ours(job.variables), SIGTERM);
  }

  /// Waits for the connection, the launcher or the next deadline.
  void step() {
    constexpr size_t enough = size_t{8} << 20;  // limit of stdin bytes that rank 0 has not read
    const bool full = launcher_ && launcher_->waiting() > enough;
    std::array<pollfd, 3> waits{
        // If the buffer is full, only the end of the connection is polled.
        pollfd{.fd = lost_ ? -1 : STDIN_FILENO, .events = static_cast<short>(full ? POLLRDHUP : POLLIN), .revents = 0},
        pollfd{.fd = launcher_ ? launcher_->wants_to_write() : -1, .events = POLLOUT, .revents = 0},
        pollfd{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
    poll(waits.data(), waits.size(), 1000);
    while (const auto signal = signals_.next()) {
      if (signal->number != SIGCHLD && launcher_) launcher_->send_signal(signal->number);
    }
    if (waits[1].revents != 0) launcher_->flush();
    if (full) last_frame_at_ = Clock::now();
    if (full && waits[0].revents != 0) handle_lost_relay();
    if (!full && waits[0].revents != 0) receive();
    if (!lost_ && Clock::now() - last_frame_at_ > kMaxSilence) handle_lost_relay();
    if (lost_ && launcher_ && Clock::now() > kill_at_) launcher_->send_signal(SIGKILL);
  }

  void receive() {
    std::array<char, 65536> bytes;
    const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) return;
    if (count <= 0) return handle_lost_relay();
    last_frame_at_ = Clock::now();
    received_.append(bytes.data(), static_cast<size_t>(count));
    while (const auto frame = take_frame(received_)) handle_frame(*frame);
  }

  void handle_frame(const Frame& frame) {
    if (!launcher_) return start(job_of(frame));
    if (frame.kind == FrameKind::input) launcher_->send(frame.bytes);
    if (frame.kind == FrameKind::input_end) launcher_->end_input();
    if (frame.kind != FrameKind::signal) return;
    const auto number = env::parse_integer(frame.bytes);
    if (number && *number > 0 && *number < NSIG) launcher_->send_signal(static_cast<int>(*number));
  }

  /// Called if the launcher that requested the job is gone.
  void handle_lost_relay() {
    constexpr std::chrono::minutes for_its_ranks{2};  // which have their own, shorter grace
    if (!launcher_) fail(ErrorKind::peer, "no job was received");
    lost_ = true;
    kill_at_ = Clock::now() + for_its_ranks;
    launcher_->send_signal(SIGTERM);
  }

  Signals signals_;
  std::string received_;
  std::optional<PipedChild> launcher_;
  Clock::time_point last_frame_at_ = Clock::now();
  Clock::time_point kill_at_{};
  bool lost_ = false;
};

}  // namespace

int run_agent() { return Agent().run(); }

}  // namespace accelerate::launch
