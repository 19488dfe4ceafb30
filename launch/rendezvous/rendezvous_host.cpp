// SPDX-License-Identifier: Apache-2.0
#include "launch/rendezvous/rendezvous_host.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "accelerate/base/random_id.hpp"
#include "launch/plan/error.hpp"
#include "launch/rendezvous/socket.hpp"

namespace accelerate::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// A connection that has not identified itself yet.
struct PendingConnection {
  base::FileDescriptor connection{};
  std::string received{};
  Clock::time_point until{};
};

class RendezvousHost {
 public:
  explicit RendezvousHost(const RendezvousOptions& invitation)
      : invitation_(invitation), listener_(listen_on(invitation.address, invitation.port)) {}

  RendezvousResult run() {
    const auto until = Clock::now() + invitation_.timeout;
    while (static_cast<int64_t>(members_.size()) + 1 < invitation_.own.machines) {
      if (Clock::now() >= until) reject_all(missing_machines_text());
      wait();
      while (auto connection = accept_from(listener_.get())) admit_guest(std::move(connection));
      receive_from_guests();
    }
    return all_joined();
  }

 private:
  /// Waits for a short time at most, so that every deadline is checked.
  void wait() {
    std::vector<pollfd> waits{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const auto& guest : guests_) waits.push_back({.fd = guest.connection.get(), .events = POLLIN, .revents = 0});
    poll(waits.data(), waits.size(), 100);
  }

  void admit_guest(base::FileDescriptor connection) {
    constexpr size_t max_guests = 256;  // limits the descriptors; the oldest connection is closed
    constexpr std::chrono::seconds patience{10};
    if (guests_.size() >= max_guests) guests_.pop_front();
    guests_.push_back({.connection = std::move(connection), .received = {}, .until = Clock::now() + patience});
  }

  void receive_from_guests() {
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      guest = is_still_valid(*guest) ? std::next(guest) : guests_.erase(guest);
    }
  }

  bool is_still_valid(PendingConnection& guest) {
    std::array<char, 1024> bytes;
    const ssize_t count = read(guest.connection.get(), bytes.data(), bytes.size());
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (count > 0) guest.received.append(bytes.data(), static_cast<size_t>(count));
    if (const auto message = take_message(guest.received)) {
      read_guest(guest, *message);
      return false;
    }
    return guest.received.size() <= kMaxMessageBytes && Clock::now() < guest.until;
  }

  void read_guest(PendingConnection& guest, const std::string& message) {
    const auto hello = parse_join_request(message);
    const bool stranger = !hello || hello->job_id != invitation_.own.job_id;
    if (stranger) return;
    RendezvousPeer member{.machine = hello->machine, .host = hello->host, .connection = std::move(guest.connection)};
    auto refusal = mismatch(invitation_.own, *hello);
    if (const auto holder = host_of(member.machine); !refusal && holder) {
      refusal =
          fmt::format("{} tried to join, but {} is already machine {}", peer_name(member), *holder, member.machine);
    }
    if (refusal) send_message(member, message_of(JobFailure{.exit_code = 1, .text = *refusal}));
    if (refusal) reject_all(*refusal);
    members_.insert_or_assign(member.machine, std::move(member));
  }

  /// Returns the host that joined as this machine and is still connected. A launcher that was stopped may join again.
  [[nodiscard]] std::optional<std::string> host_of(int64_t machine) const {
    if (machine == 0) return invitation_.own.host;
    const auto found = members_.find(machine);
    char byte = 0;
    const bool there =
        found != members_.end() && recv(found->second.connection.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
    return there ? std::optional(found->second.host) : std::nullopt;
  }

  [[nodiscard]] std::string missing_machines_text() const {
    std::vector<int64_t> missing;
    for (int64_t machine = 1; machine < invitation_.own.machines; ++machine) {
      if (!members_.contains(machine)) missing.push_back(machine);
    }
    return fmt::format("{} did not join at {}:{} within {:g} s; start accelerate_launch there, or check the network",
                       missing.size() == 1 ? fmt::format("machine {}", missing.front())
                                           : fmt::format("machines {}", fmt::join(missing, ", ")),
                       invitation_.address, invitation_.port,
                       std::chrono::duration<double>(invitation_.timeout).count());
  }

  [[noreturn]] void reject_all(const std::string& reason) {
    const std::string message = message_of(JobFailure{.exit_code = 1, .text = reason});
    for (const auto& [machine, member] : members_) send_message(member, message);
    fail(ErrorKind::peer, "{}", reason);
  }

  static void send_message(const RendezvousPeer& member, const std::string& message) {
    send(member.connection.get(), message.data(), message.size(), MSG_NOSIGNAL);
  }

  RendezvousResult all_joined() {
    RendezvousResult gathered;
    gathered.kept_port = keep_port_beside(listener_.get(), gathered.welcome.port);
    gathered.welcome.job_id = invitation_.own.job_id.empty() ? base::random_id() : invitation_.own.job_id;
    const std::string message = message_of(gathered.welcome);
    for (auto& [machine, member] : members_) {
      send_message(member, message);
      gathered.members.push_back(std::move(member));
    }
    return gathered;
  }

  const RendezvousOptions& invitation_;
  base::FileDescriptor listener_;
  std::list<PendingConnection> guests_;
  std::map<int64_t, RendezvousPeer> members_;
};

}  // namespace

std::string peer_name(const RendezvousPeer& member) {
  return fmt::format("machine {} ({})", member.machine, member.host);
}

RendezvousResult host_rendezvous(const RendezvousOptions& invitation) { return RendezvousHost(invitation).run(); }

}  // namespace accelerate::launch
