// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/frames.hpp"

#include <fmt/format.h>

#include <string_view>

#include "accelerate/env/parse.hpp"
#include "launch/plan/error.hpp"

namespace accelerate::launch {
namespace {

constexpr size_t kHeader = 5;  // the kind, and four bytes of length in big-endian order
constexpr size_t kMaxFrameBytes = size_t{64} << 20;

bool is_kind(char kind) { return std::string_view("JIESA").find(kind) != std::string_view::npos; }

[[noreturn]] void refuse_bytes() {
  fail(ErrorKind::peer,
       "the data on the connection is not from accelerate_launch; does a shell start-up file print text?");
}

void add(std::string& bytes, std::string_view word) { bytes.append(word).push_back('\0'); }

}  // namespace

std::string encode_frame(const Frame& frame) {
  std::string bytes(1, static_cast<char>(frame.kind));
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(frame.bytes.size() >> shift & 0xff));
  return bytes + frame.bytes;
}

std::optional<Frame> take_frame(std::string& buffer) {
  if (!buffer.empty() && !is_kind(buffer.front())) refuse_bytes();
  if (buffer.size() < kHeader) return std::nullopt;
  size_t length = 0;
  for (size_t i = 1; i < kHeader; ++i) length = length << 8 | static_cast<unsigned char>(buffer[i]);
  if (length > kMaxFrameBytes) refuse_bytes();
  if (buffer.size() < kHeader + length) return std::nullopt;
  Frame frame{.kind = static_cast<FrameKind>(buffer.front()), .bytes = buffer.substr(kHeader, length)};
  buffer.erase(0, kHeader + length);
  return frame;
}

Frame frame_of(const RemoteJob& job) {
  Frame frame{.kind = FrameKind::job};
  add(frame.bytes, job.version);
  add(frame.bytes, job.folder);
  add(frame.bytes, fmt::to_string(job.arguments.size()));
  for (const auto& word : job.arguments) add(frame.bytes, word);
  for (const auto& word : job.variables) add(frame.bytes, word);
  return frame;
}

RemoteJob job_of(const Frame& frame) {
  std::vector<std::string> words;
  std::string_view rest = frame.bytes;
  while (!rest.empty()) {
    const auto end = rest.find('\0');
    if (end == rest.npos) refuse_bytes();
    words.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
  const auto count = words.size() < 3 ? std::nullopt : env::parse_integer(words[2]);
  if (frame.kind != FrameKind::job || !count || *count < 0 || *count > static_cast<int64_t>(words.size()) - 3) {
    refuse_bytes();
  }
  const auto variables = words.begin() + 3 + *count;
  return {.version = words[0],
          .folder = words[1],
          .arguments = {words.begin() + 3, variables},
          .variables = {variables, words.end()}};
}

}  // namespace accelerate::launch
