// SPDX-License-Identifier: Apache-2.0
// Frames of an ssh connection to the remote launcher: kind, length, bytes. No shell interprets a user's arguments or
// environment.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::launch {

enum class FrameKind : char {
  job = 'J',        ///< first frame: RemoteJob
  input = 'I',      ///< bytes of stdin
  input_end = 'E',  ///< end of stdin
  signal = 'S',     ///< signal number as text
  alive = 'A',      ///< empty keep-alive frame
};

struct Frame {
  FrameKind kind = FrameKind::alive;
  std::string bytes{};

  bool operator==(const Frame&) const = default;
};

inline constexpr std::chrono::seconds kAliveEvery{5};
inline constexpr std::chrono::seconds kMaxSilence{30};

std::string encode_frame(const Frame& frame);

/// Removes the first complete frame from the buffer and returns it. Returns nothing while it is incomplete.
/// \throws LaunchError (1) for bytes that are not a frame, or for a frame above 64 MiB.
std::optional<Frame> take_frame(std::string& buffer);

/// Job for a launcher on another host.
struct RemoteJob {
  std::string version{};                 ///< version of the requesting launcher
  std::string folder{};                  ///< working folder
  std::vector<std::string> arguments{};  ///< arguments of accelerate_launch
  std::vector<std::string> variables{};  ///< "NAME=value", in addition to the host's variables

  bool operator==(const RemoteJob&) const = default;
};

Frame frame_of(const RemoteJob& job);
/// \throws LaunchError (1) if the frame does not contain a job.
RemoteJob job_of(const Frame& frame);

}  // namespace accelerate::launch
