// SPDX-License-Identifier: Apache-2.0
// Messages between the launchers of several machines: lines of text that end with an empty line.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

/// Maximum message length in bytes. A connection that sends more is not a launcher and is closed.
inline constexpr size_t longest_message = 4096;

/// First message of a launcher. All fields except machine and host must match on all launchers of a job.
struct Hello {
  std::string version{};  ///< launcher version
  std::string job_id{};   ///< set by the user or a runner; if "", machine 0 generates it
  std::string host{};     ///< host name of this machine
  int64_t machine = 0;    ///< machine rank
  int64_t machines = 1;
  int64_t processes = 1;  ///< number of ranks of the whole job
  std::string ranks{};    ///< number of ranks of each machine, "4,2"
  int64_t restarts = 0;   ///< maximum number of restarts
  int64_t hang_ms = 0;    ///< hang timeout in milliseconds; 0 disables hang detection

  bool operator==(const Hello&) const = default;
};

std::string message_of(const Hello& hello);
/// Returns nothing if the text is not a valid message.
std::optional<Hello> read_hello(std::string_view message);

/// Reply of machine 0 after all machines have joined.
struct Welcome {
  std::string job_id{};
  int64_t port = 0;  ///< port for rank 0

  bool operator==(const Welcome&) const = default;
};

std::string message_of(const Welcome& welcome);
std::optional<Welcome> read_welcome(std::string_view message);

/// Reason for the end of the job, and the exit code. Sent by the machine that detects the failure; machine 0 forwards
/// it.
struct End {
  int exit_code = 1;
  std::string text{};     ///< one line
  bool is_final = false;  ///< no restart is possible: the end was requested, or a launcher is lost

  bool operator==(const End&) const = default;
};

std::string message_of(const End& end);
std::optional<End> read_end(std::string_view message);

/// Machine 0's message after End: whether all machines restart.
struct Again {
  std::optional<std::chrono::milliseconds> after{};  ///< if unset, the job does not restart

  bool operator==(const Again&) const = default;
};

std::string message_of(const Again& again);
std::optional<Again> read_again(std::string_view message);

/// Machine 0's message when the ranks of all machines hang. Each launcher reports the state of its own ranks and ends
/// them.
struct Hung {
  std::string cause{};  ///< one line

  bool operator==(const Hung&) const = default;
};

std::string message_of(const Hung& hung);
std::optional<Hung> read_hung(std::string_view message);

/// All ranks of the sender exited with 0. If sent by machine 0, all ranks of the job exited with 0.
inline constexpr std::string_view done_message = "done\n\n";

/// Like done_message, but a rank of the sender requests a restart. If sent by machine 0, at least one rank of the job
/// does.
inline constexpr std::string_view asks_message = "asks\n\n";

/// Returns false if the first bytes cannot begin a launcher message. Machine 0 never sends these two messages first.
bool may_be_ours(std::string_view received);

/// Removes the first complete message from the buffer and returns it. Returns nothing while it is incomplete.
std::optional<std::string> take_message(std::string& buffer);

/// Returns the first setting that differs: "machine 1 (gpu-b) has num_processes 6, machine 0 (gpu-a) has 4". Returns
/// nothing if both launchers belong to the same job.
std::optional<std::string> mismatch(const Hello& first, const Hello& other);

}  // namespace accelerate::launch
