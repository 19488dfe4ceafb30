// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/rendezvous/store_peer_diagnosis.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "accelerate/comm/core/deadline_call.hpp"

namespace accelerate::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kResponseTimeout = 2s;

std::string key(const std::string& group, int64_t rank) { return fmt::format("{}/failed/{}", group, rank); }

std::string arrival_key(const std::string& group, int64_t rank) { return fmt::format("{}/connects/{}", group, rank); }

struct Answers {
  std::vector<int64_t> silent;
  std::string elsewhere;  ///< sentences about ranks that are in another operation
  std::vector<int64_t> missing;
};

std::string fingerprint_text(const CollectiveFingerprint& signature) {
  if (signature.sequence == 0) return fmt::format("a {}", collective_name(signature.operation));
  return fmt::format("operation {} ({})", signature.sequence, collective_name(signature.operation));
}

/// Returns the operation number in a text of fingerprint_text(); 0 for a message.
int64_t sequence_in(const std::string& text) {
  constexpr std::string_view before = "operation ";
  int64_t sequence = 0;
  if (text.starts_with(before)) std::from_chars(text.data() + before.size(), text.data() + text.size(), sequence);
  return sequence;
}

Answers read_answers(c10d::Store& store, const std::string& group, const CollectiveFingerprint& mine, int64_t rank,
                     const std::vector<int64_t>& job_ranks) {
  Answers answers;
  for (int64_t r = 0; r < static_cast<int64_t>(job_ranks.size()); ++r) {
    if (r == rank) continue;
    const int64_t job_rank = job_ranks[static_cast<size_t>(r)];
    if (!store.check({key(group, r)})) {
      answers.silent.push_back(job_rank);
      answers.missing.push_back(job_rank);
      continue;
    }
    const std::string theirs = store.get_to_str(key(group, r));
    if (theirs == fingerprint_text(mine)) continue;
    answers.elsewhere += fmt::format("rank {} is in {}. ", job_rank, theirs);
    // A message involves only two ranks, so the other ranks are not missing.
    if (mine.sequence > 0 && sequence_in(theirs) <= mine.sequence) answers.missing.push_back(job_rank);
  }
  return answers;
}

PeerReport inquire(c10d::Store& store, const std::string& group, const CollectiveFingerprint& mine, int64_t rank,
                   const std::vector<int64_t>& job_ranks) {
  store.set(key(group, rank), fingerprint_text(mine));
  const auto until = std::chrono::steady_clock::now() + kResponseTimeout;
  Answers answers;
  do {
    answers = read_answers(store, group, mine, rank, job_ranks);
    if (answers.silent.empty()) break;
    std::this_thread::sleep_for(50ms);
  } while (std::chrono::steady_clock::now() < until);
  std::string text = answers.elsewhere;
  if (!answers.silent.empty()) {
    text += fmt::format("no response from {} {}.", answers.silent.size() == 1 ? "rank" : "ranks",
                        fmt::join(answers.silent, ", "));
  } else if (!text.empty()) {
    text.pop_back();
  }
  return {.text = std::move(text), .missing_ranks = std::move(answers.missing)};
}

}  // namespace

PeerReport diagnose_peers_over_store(const StoreConnectionInfo& kept, const std::string& group,
                                     const CollectiveFingerprint& mine, int64_t rank,
                                     const std::vector<int64_t>& job_ranks) noexcept {
  const auto& store = kept.store;
  std::string_view how = "does not answer";
  try {
    // A store on a machine that is off, or in a frozen process, accepts requests and never answers.
    const auto deadline = std::chrono::steady_clock::now() + 2 * kResponseTimeout;
    auto answer = run_with_deadline(
        deadline, [store, group, mine, rank, job_ranks] { return inquire(*store, group, mine, rank, job_ranks); });
    if (answer) return *std::move(answer);
  } catch (const std::exception&) {  // the store's process has ended, so the connection is closed
    how = "is gone";
  }
  return {.text = fmt::format("the job's store at {}, which {} keeps, {}.", kept.address, kept.store_owner, how)};
}

void announce_arrival(c10d::Store& store, const std::string& group, int64_t rank) {
  store.set(arrival_key(group, rank), "");
}

std::vector<int64_t> missing_ranks_in_store(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group,
                                            int64_t size) noexcept {
  try {
    return run_with_deadline(std::chrono::steady_clock::now() + kResponseTimeout,
                             [store, group, size] {
                               std::vector<int64_t> absent;
                               for (int64_t rank = 0; rank < size; ++rank) {
                                 if (!store->check({arrival_key(group, rank)})) absent.push_back(rank);
                               }
                               return absent;
                             })
        .value_or(std::vector<int64_t>{});
  } catch (const std::exception&) {  // the store is lost
    return {};
  }
}

}  // namespace accelerate::comm
