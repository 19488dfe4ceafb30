// SPDX-License-Identifier: Apache-2.0
#include "launch/run/port_owner.hpp"

#include <fmt/format.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

/// Listening sockets on the port, in the format of the links in /proc/PID/fd: "socket:[12345]".
std::vector<std::string> listeners(const char* table, int64_t port) {
  std::vector<std::string> found;
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // skips the heading
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, skip, inode;
    words >> slot >> local >> remote >> state >> skip >> skip >> skip >> skip >> skip >> inode;
    const auto colon = local.rfind(':');
    const bool listens = state == "0A" && colon != std::string::npos;
    if (listens && std::strtoll(local.c_str() + colon + 1, nullptr, 16) == port) {
      found.push_back(fmt::format("socket:[{}]", inode));
    }
  }
  return found;
}

bool has_open(const fs::path& process, const std::string& socket) {
  std::error_code error;
  for (fs::directory_iterator each(process / "fd", error), end; !error && each != end; each.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(each->path(), gone) == socket) return true;
  }
  return false;
}

std::optional<std::string> owner_of(const std::string& socket) {
  std::error_code error;
  for (fs::directory_iterator each("/proc", error), end; !error && each != end; each.increment(error)) {
    const std::string pid = each->path().filename();
    if (std::isdigit(static_cast<unsigned char>(pid.front())) == 0 || !has_open(each->path(), socket)) continue;
    std::ifstream file(each->path() / "comm");
    std::string name;
    std::getline(file, name);
    return fmt::format("{} (pid {})", name, pid);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> owner_of_port(int64_t port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    for (const auto& socket : listeners(table, port)) {
      if (const auto owner = owner_of(socket)) return owner;
    }
  }
  return std::nullopt;
}

std::string port_owner_text(int64_t port) {
  const auto holder = owner_of_port(port);
  return holder ? " by " + *holder : ", perhaps by another job";
}

}  // namespace accelerate::launch
