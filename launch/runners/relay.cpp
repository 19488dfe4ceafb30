// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/relay.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "accelerate/env/process_env.hpp"
#include "launch/plan/error.hpp"
#include "launch/plan/shell.hpp"
#include "launch/run/signals.hpp"
#include "launch/runners/forwarded_environment.hpp"
#include "launch/runners/frames.hpp"
#include "launch/runners/piped_child.hpp"
#include "launch/runners/runner_context.hpp"

namespace accelerate::launch {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> relay_arguments(const env::Variables& variables) {
  std::vector<std::string> words;
  for (const auto& [name, value] : variables) words.push_back(name + "=" + value);
  return words;
}

/// The only text that the remote login shell receives: fixed words and the path of this program.
std::string remote_command() {
  const std::string script =
      R"(test -x "$1" || { echo "accelerate_launch: $1 is not on $(uname -n); install it at the same path on every host" >&2; exit 127; }; )"
      R"(exec "$1" "$2")";
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  return "exec " + for_shell({"sh", "-c", script, "sh", self, kAgentFlag});
}

std::vector<std::string> ssh_command(const std::string& host, const std::string& patience) {
  return {"ssh",
          "-T",
          "-x",
          "-o",
          "BatchMode=yes",  // several parallel connections cannot prompt for passwords
          "-o",
          "ConnectTimeout=" + patience,
          "-o",
          "ServerAliveInterval=5",
          "-o",
          "ServerAliveCountMax=5",
          "--",
          host,
          remote_command()};
}

class Relay {
 public:
  explicit Relay(const std::vector<std::string>& words)
      : host_(words.at(0)),
        variables_(env::current_variables()),
        ssh_("ssh", ssh_command(words[0], words.at(1)), relay_arguments(variables_), SIGKILL) {
    send(frame_of({.version = ACCELERATE_VERSION,
                   .folder = current_folder(),
                   .arguments = {words.begin() + 2, words.end()},
                   .variables = relay_arguments(forwarded_variables(variables_))}));
  }

  int run() {
    int code = -1;
    while ((code = ssh_.exit_code()) < 0) step();
    if (code == 255) {
      const auto seconds = std::chrono::duration<double>(Clock::now() - start_).count();
      fmt::print(
          stderr,
          "accelerate_launch: ssh to {} ended after {:.1f} s: the host was unreachable or refused the login, the "
          "connection was lost, or a rank ended with 255\n",
          host_, seconds);
    }
    return code;
  }

 private:
  void send(const Frame& frame) { ssh_.send(encode_frame(frame)); }

  void step() {
    constexpr size_t enough = size_t{1} << 20;
    std::array<pollfd, 3> waits{
        pollfd{.fd = signals_.fd(), .events = POLLIN, .revents = 0},
        pollfd{.fd = ssh_.wants_to_write(), .events = POLLOUT, .revents = 0},
        pollfd{.fd = reads_ && ssh_.waiting() < enough ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
    const auto next = std::min(alive_at_, end_by_.value_or(alive_at_));
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count();
    poll(waits.data(), waits.size(), static_cast<int>(std::max<int64_t>(1, left + 1)));
    while (const auto signal = signals_.next()) {
      if (signal->number == SIGCHLD) continue;
      send({.kind = FrameKind::signal, .bytes = fmt::to_string(signal->number)});
      if (!is_notice(signal->number) && !end_by_) end_by_ = Clock::now() + std::chrono::seconds(2);
    }
    if (waits[1].revents != 0) ssh_.flush();
    if (waits[2].revents != 0) pass_input_on();
    // A signal would be stuck behind unsent input. Closing the connection ends the remote ranks.
    if (ssh_.waiting() == 0) {
      end_by_.reset();
    } else if (end_by_ && Clock::now() > *end_by_) {
      ssh_.send_signal(SIGTERM);
      end_by_.reset();
    }
    if (Clock::now() < alive_at_) return;
    alive_at_ = Clock::now() + kAliveEvery;
    if (ssh_.waiting() == 0) send({.kind = FrameKind::alive});
  }

  void pass_input_on() {
    std::array<char, 65536> bytes;
    const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    reads_ = count > 0;
    send(reads_ ? Frame{.kind = FrameKind::input, .bytes = {bytes.data(), static_cast<size_t>(count)}}
                : Frame{.kind = FrameKind::input_end});
  }

  std::string host_;
  env::Variables variables_;
  Signals signals_;  // constructed before the child, so that its end is detected
  Clock::time_point start_ = Clock::now();
  Clock::time_point alive_at_ = Clock::now() + kAliveEvery;
  PipedChild ssh_;
  std::optional<Clock::time_point> end_by_{};  // deadline for sending the signal
  bool reads_ = true;
};

}  // namespace

int run_relay(const std::vector<std::string>& words) { return Relay(words).run(); }

}  // namespace accelerate::launch
