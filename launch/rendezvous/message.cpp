// SPDX-License-Identifier: Apache-2.0
#include "launch/rendezvous/message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "accelerate/env/parse.hpp"

namespace accelerate::launch {
namespace {

using Fields = std::map<std::string, std::string, std::less<>>;

/// Replaces line ends, because a line end within a value would begin a new field.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return text.substr(0, kMaxMessageBytes / 4);
}

std::string lines(std::string_view title, const std::vector<std::pair<std::string_view, std::string>>& fields) {
  std::string message = fmt::format("{}\n", title);
  for (const auto& [name, value] : fields) message += fmt::format("{} {}\n", name, one_line(value));
  return message + "\n";
}

/// Returns the fields after the title line, or nothing if the title differs.
std::optional<Fields> fields_of(std::string_view message, std::string_view title) {
  Fields fields;
  if (!message.starts_with(title) || message.substr(title.size(), 1) != "\n") return std::nullopt;
  message.remove_prefix(title.size() + 1);
  while (!message.empty()) {
    const auto end = std::min(message.find('\n'), message.size());
    const auto line = message.substr(0, end);
    const auto space = std::min(line.find(' '), line.size());
    fields.emplace(line.substr(0, space), line.substr(std::min(space + 1, line.size())));
    message.remove_prefix(std::min(end + 1, message.size()));
  }
  return fields;
}

std::string field_text(const Fields& fields, std::string_view name) {
  const auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
}

/// Returns the field's number, or -1 if the field is missing or is not a number.
int64_t field_number(const Fields& fields, std::string_view name) {
  return env::parse_integer(field_text(fields, name)).value_or(-1);
}

std::string seconds_of_ms(int64_t ms) { return fmt::format("{:g} s", static_cast<double>(ms) / 1000); }

constexpr std::string_view kJoinRequest = "accelerate_launch hello";
constexpr std::string_view kJoinReply = "accelerate_launch welcome";
constexpr std::string_view kJobFailure = "accelerate_launch end";
constexpr std::string_view kRestartNotice = "accelerate_launch again";
constexpr std::string_view kHangNotice = "accelerate_launch hung";

}  // namespace

std::string message_of(const JoinRequest& hello) {
  return lines(kJoinRequest, {{"version", hello.version},
                              {"job_id", hello.job_id},
                              {"host", hello.host},
                              {"machine", fmt::to_string(hello.machine)},
                              {"machines", fmt::to_string(hello.machines)},
                              {"processes", fmt::to_string(hello.processes)},
                              {"ranks", hello.ranks},
                              {"restarts", fmt::to_string(hello.restarts)},
                              {"hang_ms", fmt::to_string(hello.hang_ms)}});
}

std::optional<JoinRequest> parse_join_request(std::string_view message) {
  const auto fields = fields_of(message, kJoinRequest);
  if (!fields) return std::nullopt;
  JoinRequest hello{.version = field_text(*fields, "version"),
                    .job_id = field_text(*fields, "job_id"),
                    .host = field_text(*fields, "host"),
                    .machine = field_number(*fields, "machine"),
                    .machines = field_number(*fields, "machines"),
                    .processes = field_number(*fields, "processes"),
                    .ranks = field_text(*fields, "ranks"),
                    .restarts = field_number(*fields, "restarts"),
                    .hang_ms = field_number(*fields, "hang_ms")};
  const bool possible = hello.machine >= 0 && hello.machines > 0 && hello.processes > 0;
  return possible ? std::optional(hello) : std::nullopt;
}

std::string message_of(const JoinReply& welcome) {
  return lines(kJoinReply, {{"job_id", welcome.job_id}, {"port", fmt::to_string(welcome.port)}});
}

std::optional<JoinReply> parse_join_reply(std::string_view message) {
  const auto fields = fields_of(message, kJoinReply);
  if (!fields) return std::nullopt;
  const int64_t port = field_number(*fields, "port");
  if (port < 1 || port > 65535) return std::nullopt;
  return JoinReply{.job_id = field_text(*fields, "job_id"), .port = port};
}

std::string message_of(const JobFailure& end) {
  return lines(kJobFailure, {{"exit_code", fmt::to_string(end.exit_code)},
                             {"final", fmt::to_string(end.is_final ? 1 : 0)},
                             {"text", end.text}});
}

std::optional<JobFailure> parse_job_failure(std::string_view message) {
  const auto fields = fields_of(message, kJobFailure);
  if (!fields) return std::nullopt;
  const int64_t code = field_number(*fields, "exit_code");
  return JobFailure{.exit_code = code < 1 || code > 255 ? 1 : static_cast<int>(code),
                    .text = field_text(*fields, "text"),
                    .is_final = field_number(*fields, "final") == 1};
}

std::string message_of(const RestartNotice& again) {
  return lines(kRestartNotice, {{"after_ms", fmt::to_string(again.after ? again.after->count() : -1)}});
}

std::optional<RestartNotice> parse_restart_notice(std::string_view message) {
  const auto fields = fields_of(message, kRestartNotice);
  if (!fields) return std::nullopt;
  const int64_t after = field_number(*fields, "after_ms");
  return after < 0 ? RestartNotice{} : RestartNotice{.after = std::chrono::milliseconds(after)};
}

std::string message_of(const HangNotice& hung) { return lines(kHangNotice, {{"cause", hung.cause}}); }

std::optional<HangNotice> parse_hang_notice(std::string_view message) {
  const auto fields = fields_of(message, kHangNotice);
  return fields ? std::optional(HangNotice{.cause = field_text(*fields, "cause")}) : std::nullopt;
}

bool could_be_launcher_message(std::string_view received) {
  constexpr std::string_view ours = "accelerate_launch ";  // prefix of all titles above
  return received.substr(0, ours.size()) == ours.substr(0, received.size());
}

std::optional<std::string> take_message(std::string& buffer) {
  const auto end = buffer.find("\n\n");
  if (end == std::string::npos) return std::nullopt;
  std::string message = buffer.substr(0, end + 1);
  buffer.erase(0, end + 2);
  return message;
}

std::optional<std::string> mismatch(const JoinRequest& first, const JoinRequest& other) {
  const auto differ = [&](std::string_view what, const auto& one, const auto& two) {
    return fmt::format("machine {} ({}) has {} {}, machine {} ({}) has {}; they must be the same", other.machine,
                       other.host, what, two, first.machine, first.host, one);
  };
  if (first.version != other.version) return differ("accelerate_launch", first.version, other.version);
  if (first.machines != other.machines) return differ("num_machines", first.machines, other.machines);
  if (first.processes != other.processes) return differ("num_processes", first.processes, other.processes);
  if (first.ranks != other.ranks) return differ("ranks per machine", first.ranks, other.ranks);
  if (first.restarts != other.restarts) return differ("max_restarts", first.restarts, other.restarts);
  if (first.hang_ms != other.hang_ms)
    return differ("hang_timeout", seconds_of_ms(first.hang_ms), seconds_of_ms(other.hang_ms));
  if (other.machine >= first.machines) {
    return fmt::format("machine {} ({}) tried to join a job of {} machines", other.machine, other.host, first.machines);
  }
  return std::nullopt;
}

}  // namespace accelerate::launch
