// SPDX-License-Identifier: Apache-2.0
// What the launchers of several machines say to one another: lines of text, an empty one at the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

/// No message is longer; who sends more is no launcher.
inline constexpr size_t longest_message = 4096;

/// What a launcher says first. All launchers of a job must say the same, but for machine and host.
struct Hello {
  std::string version{};  ///< of the launcher
  std::string job_id{};   ///< where the user or a runner gave one; "" : machine 0 draws it
  std::string host{};     ///< this machine's name
  int64_t machine = 0;    ///< its rank
  int64_t machines = 1;
  int64_t processes = 1;  ///< of the whole job
  std::string ranks{};    ///< of each machine, "4,2"
  int64_t restarts = 0;   ///< that are allowed
  int64_t hang_ms = 0;    ///< for which no rank may stand still; 0: for ever

  bool operator==(const Hello&) const = default;
};

std::string message_of(const Hello& hello);
/// Nothing for text that no launcher says.
std::optional<Hello> read_hello(std::string_view message);

/// How machine 0 answers when all have come.
struct Welcome {
  std::string job_id{};
  int64_t port = 0;  ///< where rank 0 will listen

  bool operator==(const Welcome&) const = default;
};

std::string message_of(const Welcome& welcome);
std::optional<Welcome> read_welcome(std::string_view message);

/// Why the job ends, with the exit code that goes with it. Sent by whoever knows it, passed on by machine 0.
struct End {
  int exit_code = 1;
  std::string text{};     ///< one line
  bool is_final = false;  ///< no restart helps: somebody wants the end, or a launcher is lost

  bool operator==(const End&) const = default;
};

std::string message_of(const End& end);
std::optional<End> read_end(std::string_view message);

/// What machine 0 says after an End: whether all start again.
struct Again {
  std::optional<std::chrono::milliseconds> after{};  ///< unset: no

  bool operator==(const Again&) const = default;
};

std::string message_of(const Again& again);
std::optional<Again> read_again(std::string_view message);

/// What machine 0 says when the ranks of all machines stand still: each launcher tells where its own are, and ends
/// them.
struct Hung {
  std::string cause{};  ///< one line

  bool operator==(const Hung&) const = default;
};

std::string message_of(const Hung& hung);
std::optional<Hung> read_hung(std::string_view message);

/// All ranks of the sender ended well; from machine 0: all ranks of the job.
inline constexpr std::string_view done_message = "done\n\n";

/// The same, where a rank asks for another start; from machine 0: one of the job.
inline constexpr std::string_view asks_message = "asks\n\n";

/// False once the first bytes are of no launcher's message but these two, which machine 0 never says first.
bool may_be_ours(std::string_view received);

/// Takes the first whole message off the buffer; nothing while it is not whole.
std::optional<std::string> take_message(std::string& buffer);

/// What does not fit: "machine 1 (gpu-b) says num_processes 6, machine 0 (gpu-a) says 4". Nothing where the two are of
/// one job.
std::optional<std::string> mismatch(const Hello& first, const Hello& other);

}  // namespace accelerate::launch
