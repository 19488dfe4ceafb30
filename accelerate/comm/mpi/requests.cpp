// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/requests.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include "accelerate/comm/core/connection.hpp"

namespace accelerate::comm {
namespace {

using namespace std::chrono_literals;

/// Number of polls before the thread yields: about 20 us.
constexpr int kSpins = 200;
constexpr auto kSpinsBeforeProbe = 100ms;

}  // namespace

MpiBytes::MpiBytes(int64_t bytes) {
  const auto most = static_cast<int>(kMaxElements);
  if (bytes <= most) {
    count_ = static_cast<int>(bytes);
    return;
  }
  MPI_Datatype block = MPI_DATATYPE_NULL;
  MPI_Datatype blocks = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_contiguous(most, MPI_BYTE, &block));
  check_mpi(MPI_Type_contiguous(static_cast<int>(bytes / most), block, &blocks));
  std::array<int, 2> lengths{1, static_cast<int>(bytes % most)};
  std::array<MPI_Aint, 2> offsets{0, static_cast<MPI_Aint>(bytes / most * most)};
  std::array<MPI_Datatype, 2> types{blocks, MPI_BYTE};
  check_mpi(MPI_Type_create_struct(2, lengths.data(), offsets.data(), types.data(), &type_));
  check_mpi(MPI_Type_commit(&type_));
  MPI_Type_free(&blocks);
  MPI_Type_free(&block);
  count_ = 1;
}

MpiBytes::~MpiBytes() {
  if (type_ != MPI_BYTE) MPI_Type_free(&type_);
}

MPI_Request* MpiRequests::add(int peer, bool receives) {
  messages_.push_back({peer, receives});
  return &requests_.emplace_back(MPI_REQUEST_NULL);
}

template <typename Each>
void MpiRequests::in_pieces(int64_t bytes, int peer, const Each& each) const {
  const bool far = !is_on_other_host_.empty() && is_on_other_host_[static_cast<size_t>(peer)];
  const int64_t most = far ? kAtOnce : bytes;
  for (int64_t begin = 0; begin < bytes; begin += most) each(begin, std::min(most, bytes - begin));
}

void MpiRequests::send(const void* data, int64_t bytes, int to) {
  in_pieces(bytes, to, [&](int64_t begin, int64_t length) {
    const MpiBytes all(length);
    const char* const piece = static_cast<const char*>(data) + begin;
    check_mpi(MPI_Isend(piece, all.count(), all.type(), to, tag_, comm_, add(to, false)));
  });
}

void MpiRequests::receive(void* data, int64_t bytes, int from) {
  in_pieces(bytes, from, [&](int64_t begin, int64_t length) {
    const MpiBytes all(length);
    char* const piece = static_cast<char*>(data) + begin;
    check_mpi(MPI_Irecv(piece, all.count(), all.type(), from, tag_, comm_, add(from, true)));
  });
}

bool MpiRequests::test() {
  statuses_.resize(requests_.size());
  int done = 0;
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
  if (code != MPI_SUCCESS) {
    for (const auto& status : statuses_) {
      if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_ERR_PENDING) check_mpi(status.MPI_ERROR);
    }
    check_mpi(code);
  }
  return done != 0;
}

void MpiRequests::wait(const TaskContext& call_context, const std::function<void()>& check_peers) {
  std::optional<std::chrono::steady_clock::time_point> pauses;
  std::optional<std::chrono::steady_clock::time_point> looks;
  for (int64_t probe = 0; !test(); ++probe) {
    if (probe < kSpins) continue;
    if (call_context.deadline_exceeded()) throw DeadlineExceeded();
    const auto now = std::chrono::steady_clock::now();
    if (!pauses) {
      pauses = now + kSpinsBeforePause;
      looks = now + kSpinsBeforeProbe;
    }
    if (check_peers && now > *looks) {
      check_peers();
      looks = now + kSpinsBeforeProbe;
    }
    if (now < *pauses) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  requests_.clear();
  messages_.clear();
}

std::vector<int64_t> MpiRequests::silent_peers() const {
  std::vector<int64_t> silent;
  for (size_t i = 0; i < requests_.size(); ++i) {
    int answered = 0;
    MPI_Request_get_status(requests_[i], &answered, MPI_STATUS_IGNORE);
    if (answered == 0 && messages_[i].receives) silent.push_back(messages_[i].peer);
  }
  std::sort(silent.begin(), silent.end());
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  return silent;
}

}  // namespace accelerate::comm
