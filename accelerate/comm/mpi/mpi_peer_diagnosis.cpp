// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/mpi_peer_diagnosis.hpp"

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "accelerate/comm/core/peer_error_text.hpp"
#include "accelerate/comm/mpi/requests.hpp"

namespace accelerate::comm {
namespace {

using namespace std::chrono_literals;
using Words = std::array<int64_t, CollectiveFingerprint::kWords>;

constexpr auto kDiagnosisWindow = 2s;

struct DiagnosisRequest {
  explicit DiagnosisRequest(int peers)
      : answers(static_cast<size_t>(peers)), requests(answers.size(), MPI_REQUEST_NULL) {}
  Words mine{};
  std::vector<Words> answers;
  std::vector<MPI_Request> requests;
};

/// Answers may still arrive. The memory stays reachable until the process ends, so that leak checkers do not report it.
DiagnosisRequest* leaked_until_exit(std::unique_ptr<DiagnosisRequest> question) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<DiagnosisRequest>>;
  const std::lock_guard lock(mutex);
  return kept->emplace_back(std::move(question)).get();
}

void query_ranks(DiagnosisRequest& question, const MpiChannel& channel) {
  constexpr auto words = static_cast<int>(CollectiveFingerprint::kWords);
  for (int peer = 0; peer < channel.size(); ++peer) {
    if (peer == channel.rank()) continue;
    const auto i = static_cast<size_t>(peer);
    MPI_Irecv(question.answers[i].data(), words, MPI_INT64_T, peer, kDiagnosisTag, channel.communicator(),
              &question.requests[i]);
    MPI_Request sent = MPI_REQUEST_NULL;
    MPI_Isend(question.mine.data(), words, MPI_INT64_T, peer, kDiagnosisTag, channel.communicator(), &sent);
  }
}

/// Answers received so far; nothing for silent ranks.
std::vector<std::optional<CollectiveFingerprint>> collect_answers(const DiagnosisRequest& question) {
  std::vector<std::optional<CollectiveFingerprint>> answers(question.answers.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    int come = 0;
    MPI_Request_get_status(question.requests[i], &come, MPI_STATUS_IGNORE);
    if (come != 0) answers[i] = decode(question.answers[i]);
  }
  return answers;
}

}  // namespace

PeerReport diagnose_by_messages(const MpiChannel& channel, const CollectiveFingerprint& mine,
                                std::span<const int64_t> job_ranks) {
  auto* const question = leaked_until_exit(std::make_unique<DiagnosisRequest>(channel.size()));
  question->mine = encode(mine);
  query_ranks(*question, channel);
  const auto job_deadline = std::chrono::steady_clock::now() + kDiagnosisWindow;
  while (true) {
    auto answers = collect_answers(*question);
    answers[static_cast<size_t>(channel.rank())] = mine;
    const bool all = std::all_of(answers.begin(), answers.end(), [](const auto& each) { return each.has_value(); });
    if (all || std::chrono::steady_clock::now() > job_deadline) return peer_status_text(mine, answers, job_ranks);
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace accelerate::comm
