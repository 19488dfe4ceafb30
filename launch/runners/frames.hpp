// SPDX-License-Identifier: Apache-2.0
// What goes through an ssh connection to the launcher on the other side: a kind, a length, bytes. So no shell ever sees
// a user's arguments or environment.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::launch {

enum class FrameKind : char {
  job = 'J',        ///< the first: RemoteJob
  input = 'I',      ///< bytes of stdin
  input_end = 'E',  ///< and its end
  signal = 'S',     ///< its number, as text
  alive = 'A',      ///< nothing; so that silence means that the connection is gone
};

struct Frame {
  FrameKind kind = FrameKind::alive;
  std::string bytes{};

  bool operator==(const Frame&) const = default;
};

inline constexpr std::chrono::seconds alive_every{5};
inline constexpr std::chrono::seconds longest_silence{30};

std::string bytes_of(const Frame& frame);

/// Removes the first complete frame from the buffer and returns it. Returns nothing while it is incomplete.
/// \throws LaunchError (1) for bytes that are not a frame, or for a frame above 64 MiB.
std::optional<Frame> take_frame(std::string& buffer);

/// What a launcher on another host is to do.
struct RemoteJob {
  std::string version{};                 ///< of the requesting launcher
  std::string folder{};                  ///< to run in
  std::vector<std::string> arguments{};  ///< of accelerate_launch
  std::vector<std::string> variables{};  ///< "NAME=value", beside those that the host has

  bool operator==(const RemoteJob&) const = default;
};

Frame frame_of(const RemoteJob& job);
/// \throws LaunchError (1) if the frame does not contain a job.
RemoteJob job_of(const Frame& frame);

}  // namespace accelerate::launch
