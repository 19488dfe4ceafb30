// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/hosts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "accelerate/env/parse.hpp"
#include "launch/plan/error.hpp"
#include "launch/plan/options_table.hpp"

namespace accelerate::launch {
namespace {

constexpr int64_t kMaxHostSlots = 4096;

/// True for a name that ssh accepts as a host and cannot mistake for an option.
bool is_host(std::string_view name) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-@:%";
  return !name.empty() && name.size() <= 255 && name.front() != '-' && name.find_first_not_of(letters) == name.npos;
}

std::optional<int64_t> slots_of(std::string_view text) {
  const auto slots = env::parse_integer(text);
  return slots && *slots >= 1 && *slots <= kMaxHostSlots ? slots : std::nullopt;
}

/// Parses "gpu-a:4". An IPv6 address has several colons, so its slots follow the closing bracket.
std::optional<HostSlots> host_of(std::string_view word) {
  HostSlots host{.name = std::string(word)};
  auto colon = word.rfind(':');
  if (word.starts_with('[')) {
    const auto close = word.find(']');
    if (close == word.npos || (close + 1 < word.size() && word[close + 1] != ':')) return std::nullopt;
    host.name = word.substr(1, close - 1);
    colon = close + 1 < word.size() ? close + 1 : word.npos;
  } else if (colon != word.find(':')) {
    colon = word.npos;
  } else if (colon != word.npos) {
    host.name = word.substr(0, colon);
  }
  if (colon != word.npos) {
    const auto slots = slots_of(word.substr(colon + 1));
    if (!slots) return std::nullopt;
    host.slots = *slots;
  }
  return is_host(host.name) ? std::optional(host) : std::nullopt;
}

/// Appends a host, or adds the slots of a repeated one. A repeated entry without slots counts as one slot, as in a
/// Torque node file.
void add(std::vector<HostSlots>& hosts, const HostSlots& host) {
  const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const auto& each) { return each.name == host.name; });
  if (found == hosts.end()) {
    hosts.push_back(host);
  } else {
    found->slots = std::max<int64_t>(1, found->slots) + std::max<int64_t>(1, host.slots);
  }
}

std::string shown(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');
  return text.size() > 80 ? text.substr(0, 80) + "..." : text;
}

/// A line of a host file, with its position for errors.
struct HostLine {
  const std::string& path;
  int64_t number = 0;
  std::string text{};
};

[[noreturn]] void refuse(const HostLine& line) {
  fail(ErrorKind::usage, "{} line {} is '{}', must be like 'gpu-a slots=4'", line.path, line.number, shown(line.text));
}

/// Reads "slots=4" into the host. max_slots is validated and ignored: the launcher never oversubscribes.
void read_key(const HostLine& line, const std::string& word, HostSlots& host) {
  const auto equals = word.find('=');
  if (equals == word.npos || equals == 0) refuse(line);
  const auto key = word.substr(0, equals);
  if (key != "slots" && key != "max_slots" && key != "max-slots") {
    fail(ErrorKind::usage, "{} line {} is '{}'; the key '{}' is unknown, must be slots or max_slots", line.path,
         line.number, shown(line.text), shown(key));
  }
  const auto slots = slots_of(std::string_view(word).substr(equals + 1));
  if (!slots) refuse(line);
  if (key == "slots") host.slots = *slots;
}

HostSlots host_of_line(const HostLine& line) {
  std::istringstream words(line.text);
  std::string word;
  words >> word;
  auto host = host_of(word);
  if (!host) refuse(line);
  while (words >> word) read_key(line, word, *host);
  return *host;
}

}  // namespace

std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& path) {
  std::vector<HostSlots> hosts;
  std::istringstream lines{std::string(text)};
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    add(hosts, host_of_line({.path = path, .number = number, .text = line}));
  }
  if (hosts.empty()) fail(ErrorKind::usage, "{} names no host; its lines are like 'gpu-a slots=4'", path);
  return hosts;
}

std::string with_home(const std::string& path, const std::optional<std::string>& home) {
  const bool in_home = path == "~" || path.starts_with("~/");
  return in_home && home ? *home + path.substr(1) : path;
}

std::vector<HostSlots> read_hostfile(const std::string& name) {
  const std::string path = with_home(name, env::find(env::current_variables(), "HOME"));
  errno = 0;
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad() || errno != 0) {
    fail(ErrorKind::io, "cannot read the host file {}: {}", path, std::strerror(errno));
  }
  return parse_hostfile(text.str(), path);
}

bool is_loopback_name(const std::string& host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

std::vector<HostSlots> parse_hosts(std::string_view list) {
  std::vector<HostSlots> hosts;
  while (true) {
    const auto comma = list.find(',');
    const auto word = list.substr(0, comma);
    const auto host = host_of(word);
    // In an IPv6 address without brackets the last number is ambiguous: part of the address, or slots.
    if (host && !word.starts_with('[') && host->name.find(':') != std::string::npos) {
      fail(ErrorKind::usage, "--hosts has '{}'; an IPv6 address must be in brackets, [{}] or [...]:4 with its ranks",
           word, word);
    }
    if (!host) fail(ErrorKind::usage, "--hosts has '{}', must be like gpu-a:4,gpu-b:4", shown(std::string(word)));
    add(hosts, *host);
    if (comma == list.npos) return hosts;
    list.remove_prefix(comma + 1);
  }
}

std::vector<int64_t> fill_hosts(std::vector<HostSlots>& hosts, int64_t processes) {
  const auto count = static_cast<int64_t>(hosts.size());
  const bool say_slots = std::any_of(hosts.begin(), hosts.end(), [](const auto& host) { return host.slots != 0; });
  if (!say_slots && processes == 0) return {};
  if (!say_slots && processes % count != 0) {
    fail(ErrorKind::usage, "num_processes is {} on {} hosts, must be a multiple of {}, or set slots for the hosts",
         processes, count, count);
  }
  std::vector<int64_t> ranks;
  int64_t total = 0;
  for (auto& host : hosts) total += host.slots = say_slots ? std::max<int64_t>(1, host.slots) : processes / count;
  if (processes > total) {
    fail(ErrorKind::usage, "num_processes is {}, but the hosts have {} slots", processes, total);
  }
  if (processes == 0 && total > kMaxProcesses) {
    fail(ErrorKind::usage, "the hosts have {} slots, a job has at most {} ranks; give --num_processes, or fewer slots",
         total, kMaxProcesses);
  }
  for (int64_t left = processes == 0 ? total : processes; left > 0; left -= ranks.back()) {
    ranks.push_back(std::min(left, hosts[ranks.size()].slots));
  }
  hosts.resize(ranks.size());
  return ranks;
}

}  // namespace accelerate::launch
