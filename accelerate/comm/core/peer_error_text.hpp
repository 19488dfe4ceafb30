// SPDX-License-Identifier: Apache-2.0
// Converts exceptions of libraries to texts for users. Private.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/comm/core/collective_fingerprint.hpp"

namespace accelerate::comm {

/// Seconds for message texts.
inline double seconds(std::chrono::duration<double> time) { return time.count(); }

/// Removes backtraces, source positions ("[/pytorch/.../pair.cc:534] ") and the conditions of gloo's checks.
std::string plain(std::string_view text);

/// Returns the text of the error after plain().
std::string reason_of(const std::exception& error);

/// Returns the reason why a backend could not connect the ranks, with the fact whether the timeout was reached:
/// "gloo could not connect the 2 ranks within 2 s"
/// "gloo could not connect the 2 ranks, it failed after 0.3 s: Connection closed by peer"
std::string connect_failure(std::string_view backend, int64_t ranks, std::chrono::milliseconds timeout,
                            std::chrono::milliseconds waited, std::string_view reason);

/// Diagnosis of the other ranks after a failed operation.
struct PeerReport {
  std::string text{};                    ///< a sentence for the user, or ""
  std::vector<int64_t> missing_ranks{};  ///< ranks of the job that did not join the operation, as far as known
};

/// Summarizes the positions that the ranks of a group reported; ranks without an answer are listed as silent.
/// "rank 1 is in operation 4 (barrier). no response from rank 2.", or "" if all are in the same operation.
/// Silent ranks and ranks in another operation are missing, except ranks that are past this one.
PeerReport peer_status_text(const CollectiveFingerprint& mine,
                            std::span<const std::optional<CollectiveFingerprint>> answers,
                            std::span<const int64_t> job_ranks);

}  // namespace accelerate::comm
