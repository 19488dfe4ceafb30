// SPDX-License-Identifier: Apache-2.0
// Interface between a backend and a group. Private.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/core/collective_fingerprint.hpp"
#include "accelerate/comm/core/connect_options.hpp"
#include "accelerate/comm/core/peer_error_text.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

/// A wait reached its deadline. Contains the missing ranks if the backend knows them.
struct DeadlineExceeded : std::runtime_error {
  explicit DeadlineExceeded(std::vector<int64_t> missing_ranks = {})
      : std::runtime_error("deadline passed"), missing(std::move(missing_ranks)) {}
  std::vector<int64_t> missing;
};

/// A peer ended. Contains a sentence for the user ("rank 2 ended: ...").
struct PeerLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A member left the group and will join no further operation. Contains its rank in the group.
struct PeerLeft : std::runtime_error {
  explicit PeerLeft(int64_t member) : std::runtime_error("a member left"), rank(member) {}
  int64_t rank;
};

/// The ranks announced operations that do not match.
struct FingerprintMismatch : std::runtime_error {
  FingerprintMismatch(std::vector<CollectiveFingerprint> all_signatures, Agreement needed)
      : std::runtime_error("signatures differ"), signatures(std::move(all_signatures)), agreement(needed) {}
  std::vector<CollectiveFingerprint> signatures;
  Agreement agreement;
};

/// The members of a new group within a parent group.
struct Subgroup {
  std::string name{};                ///< name of the new group, unique in the job; prefix of its keys in the store
  std::string ranks_name{};          ///< kind of the members, for messages; may be empty
  std::vector<int64_t> ranks{};      ///< members, as ranks of the parent, in their new order
  std::vector<int64_t> job_ranks{};  ///< members as ranks of the job, for messages
  int64_t rank = 0;                  ///< this rank in the new group
};

/// One backend's connection between the ranks of one group. Not thread-safe, except abort_operations(): its group
/// orders the calls.
class Connection {
 public:
  Connection(std::string_view connection_name, c10d::ProcessGroup::BackendType connection_tag,
             c10::intrusive_ptr<c10d::Backend> c10d_backend)
      : name(connection_name), tag(connection_tag), backend(std::move(c10d_backend)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  virtual ~Connection() = default;

  /// Collective over the parent: all its ranks call it at the same point, each with its own part.
  virtual std::shared_ptr<Connection> split(const Subgroup& part) = 0;

  /// Passes the fingerprint of the next operation to a backend that compares it within the operation. Returns false if
  /// the backend does not compare.
  virtual bool announce(const CollectiveFingerprint&, Agreement) { return false; }

  /// True if reduce_scatter is a separate operation with a deadline. If false, an all-reduce of the whole tensor is
  /// used.
  [[nodiscard]] virtual bool reduces_rows() const { return true; }

  /// After a failed operation: diagnosis of the peers ("no response from rank 1."), or "".
  virtual PeerReport diagnose_peers(const CollectiveFingerprint&) { return {}; }

  /// Called if the group is broken, or if an exception unwinds this rank out of it. Nothing may wait for peers
  /// afterwards.
  virtual void abort_operations() noexcept {}

  /// \throws PeerLost if an operation has failed for which the host did not wait. Operations of an accelerator are
  ///         asynchronous, and their results are invalid then.
  virtual void check() {}

  /// Store that the ranks of this connection share, or null if they can only use the connection's own operations.
  virtual c10::intrusive_ptr<c10d::Store> store() { return {}; }

  const std::string name;
  const c10d::ProcessGroup::BackendType tag;
  const c10::intrusive_ptr<c10d::Backend> backend;
};

/// Input of a backend's connect function.
struct ConnectionContext {
  const env::ProcessEnv& process;
  const ConnectOptions& options;
  const env::Variables& variables;
  RankContext place{};
  std::string name = "world";
  c10::intrusive_ptr<c10d::Store> store{};  ///< null unless the row sets uses_store
};

}  // namespace accelerate::comm
