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
inline constexpr size_t kMaxMessageBytes = 4096;

/// First message of a launcher. All fields except machine and host must match on all launchers of a job.
struct JoinRequest {
  std::string version{};  ///< launcher version
  std::string job_id{};   ///< set by the user or a runner; if "", machine 0 generates it
  std::string host{};     ///< host name of this machine
  int64_t machine = 0;    ///< machine rank
  int64_t machines = 1;
  int64_t processes = 1;  ///< number of ranks of the whole job
  std::string ranks{};    ///< number of ranks of each machine, "4,2"
  int64_t restarts = 0;   ///< maximum number of restarts
  int64_t hang_ms = 0;    ///< hang timeout in milliseconds; 0 disables hang detection

  bool operator==(const JoinRequest&) const = default;
};

std::string message_of(const JoinRequest& hello);
/// Returns nothing if the text is not a valid message.
std::optional<JoinRequest> parse_join_request(std::string_view message);

/// Reply of machine 0 after all machines have joined.
struct JoinReply {
  std::string job_id{};
  int64_t port = 0;  ///< port for rank 0

  bool operator==(const JoinReply&) const = default;
};

std::string message_of(const JoinReply& welcome);
std::optional<JoinReply> parse_join_reply(std::string_view message);

/// Reason for the end of the job, and the exit code. Sent by the machine that detects the failure; machine 0 forwards
/// it.
struct JobFailure {
  int exit_code = 1;
  std::string text{};     ///< one line
  bool is_final = false;  ///< no restart is possible: the end was requested, or a launcher is lost

  bool operator==(const JobFailure&) const = default;
};

std::string message_of(const JobFailure& end);
std::optional<JobFailure> parse_job_failure(std::string_view message);

/// Machine 0's message after End: whether all machines restart.
struct RestartNotice {
  std::optional<std::chrono::milliseconds> after{};  ///< if unset, the job does not restart

  bool operator==(const RestartNotice&) const = default;
};

std::string message_of(const RestartNotice& again);
std::optional<RestartNotice> parse_restart_notice(std::string_view message);

/// Machine 0's message when the ranks of all machines hang. Each launcher reports the state of its own ranks and ends
/// them.
struct HangNotice {
  std::string cause{};  ///< one line

  bool operator==(const HangNotice&) const = default;
};

std::string message_of(const HangNotice& hung);
std::optional<HangNotice> parse_hang_notice(std::string_view message);

/// All ranks of the sender exited with 0. If sent by machine 0, all ranks of the job exited with 0.
inline constexpr std::string_view kDoneMessage = "done\n\n";

/// Like kDoneMessage, but a rank of the sender requests a restart. If sent by machine 0, at least one rank of the job
/// does.
inline constexpr std::string_view kRestartRequestMessage = "asks\n\n";

/// Returns false if the first bytes cannot begin a launcher message. Machine 0 never sends these two messages first.
bool could_be_launcher_message(std::string_view received);

/// Removes the first complete message from the buffer and returns it. Returns nothing while it is incomplete.
std::optional<std::string> take_message(std::string& buffer);

/// Returns the first setting that differs: "machine 1 (gpu-b) has num_processes 6, machine 0 (gpu-a) has 4". Returns
/// nothing if both launchers belong to the same job.
std::optional<std::string> mismatch(const JoinRequest& first, const JoinRequest& other);

}  // namespace accelerate::launch
