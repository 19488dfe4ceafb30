// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/all_reduce.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/elementwise.hpp"

namespace accelerate::comm {
namespace {

// The ring processes slices that stay in the cache between its two rounds.
constexpr int64_t kSliceBytes = 4 << 20;

// Between machines two smaller slices alternate, so that the link is busy while the other slice is added up, and while
// a rank waits for a processor that the backward pass occupies.
constexpr size_t kLanesBetweenHosts = 2;

}  // namespace

MpiAllReduce::MpiAllReduce(MPI_Comm communicator, std::shared_ptr<MpiHandshake> handshake,
                           std::vector<bool> is_on_other_host)
    : handshake_(std::move(handshake)) {
  const bool spans_hosts = std::find(is_on_other_host.begin(), is_on_other_host.end(), true) != is_on_other_host.end();
  for (size_t lane = 0; lane < (spans_hosts ? kLanesBetweenHosts : 1); ++lane) {
    lanes_.push_back({.requests = {communicator, kOperationTag, is_on_other_host}});
  }
  check_mpi(MPI_Comm_rank(communicator, &rank_));
  check_mpi(MPI_Comm_size(communicator, &size_));
}

void MpiAllReduce::run(const at::Tensor& tensor, ReduceOp op, const AnnouncedOperation& call,
                       const TaskContext& call_context) {
  dtype_ = tensor.scalar_type();
  op_ = op;
  const int64_t bytes = byte_count(tensor);
  const Part own{at_byte(tensor, 0), bytes};
  if (handshake_->carries(bytes)) {
    handshake_->run(call, {own.data, static_cast<size_t>(bytes)}, call_context);
    return sum_all(own);
  }
  handshake_->run(call, {}, call_context);
  run_ring(slices_of(own), {sum_steps().begin, copy_steps().end}, call_context);
}

void MpiAllReduce::reduce_scatter(const at::Tensor& tensor, ReduceOp op, const AnnouncedOperation& call,
                                  const TaskContext& call_context) {
  dtype_ = tensor.scalar_type();
  op_ = op;
  handshake_->run(call, {}, call_context);
  run_ring(slices_of_rows(tensor), sum_steps(), call_context);
}

void MpiAllReduce::all_gather(const at::Tensor& tensor, const AnnouncedOperation& call,
                              const TaskContext& call_context) {
  dtype_ = tensor.scalar_type();
  handshake_->run(call, {}, call_context);
  run_ring(slices_of_rows(tensor), copy_steps(), call_context);
}

template <typename Each>
void MpiAllReduce::in_slices(int64_t bytes, const Each& each) const {
  const int64_t most = kSliceBytes / static_cast<int64_t>(lanes_.size());
  const int64_t count = std::max<int64_t>((bytes + most / 2) / most, 1);  // no slice is much smaller than the others
  const auto element = static_cast<int64_t>(c10::elementSize(dtype_));
  const int64_t slice = (bytes / element + count - 1) / count * element;
  for (int64_t begin = 0; begin < bytes; begin += slice) each(begin, std::min(slice, bytes - begin));
}

MpiAllReduce::Slices MpiAllReduce::slices_of(Part whole) const {
  Slices slices;
  in_slices(whole.bytes, [&](int64_t begin, int64_t bytes) {
    slices.push_back(split_into_parts({whole.data + begin, bytes}));
  });
  return slices;
}

MpiAllReduce::Slices MpiAllReduce::slices_of_rows(const at::Tensor& tensor) const {
  const int64_t row = byte_count(tensor) / size_;
  Slices slices;
  in_slices(row, [&](int64_t begin, int64_t bytes) {
    Parts& parts = slices.emplace_back();
    for (int rank = 0; rank < size_; ++rank) parts.push_back({at_byte(tensor, rank * row + begin), bytes});
  });
  return slices;
}

MpiAllReduce::Parts MpiAllReduce::split_into_parts(Part whole) const {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype_));
  const int64_t share = (whole.bytes / element + size_ - 1) / size_ * element;
  Parts parts;
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t begin = std::min(rank * share, whole.bytes);
    parts.push_back({whole.data + begin, std::min(share, whole.bytes - begin)});
  }
  return parts;
}

void MpiAllReduce::sum_all(Part own) {
  char* const sum = handshake_->payload_of(0);
  for (int rank = 1; rank < size_; ++rank) reduce_into(sum, handshake_->payload_of(rank), own.bytes);
  std::memcpy(own.data, sum, static_cast<size_t>(own.bytes));
}

void MpiAllReduce::run_ring(const Slices& slices, Steps steps, const TaskContext& call_context) {
  const int steps_of_slice = steps.end - steps.begin;
  const size_t lanes = lanes_.size();
  const size_t turns = (slices.size() + lanes - 1) / lanes * static_cast<size_t>(steps_of_slice);
  const auto in_lane = [&](size_t lane, size_t turn, const auto& act) {
    const auto slice = turn / static_cast<size_t>(steps_of_slice) * lanes + lane;
    const int step = steps.begin + static_cast<int>(turn % static_cast<size_t>(steps_of_slice));
    if (slice < slices.size()) act(lanes_[lane], slices[slice], step);
  };
  const auto begin = [&](Lane& lane, const Parts& parts, int step) { begin_step(lane, parts, step); };
  const auto end = [&](Lane& lane, const Parts& parts, int step) { end_step(lane, parts, step, call_context); };
  // Every rank posts its messages in this order, which matches them.
  for (size_t turn = 0; turn <= turns; ++turn) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      if (turn > 0) in_lane(lane, turn - 1, end);
      if (turn < turns) in_lane(lane, turn, begin);
    }
  }
}

void MpiAllReduce::begin_step(Lane& lane, const Parts& parts, int step) {
  const Part into = received_part(parts, step);
  const Part out = received_part(parts, step - 1);
  char* place = into.data;
  if (sums(step)) {
    if (static_cast<int64_t>(lane.received.size()) < into.bytes) lane.received.resize(static_cast<size_t>(into.bytes));
    place = lane.received.data();
  }
  lane.requests.receive(place, into.bytes, static_cast<int>(index(rank_ - 1)));
  lane.requests.send(out.data, out.bytes, static_cast<int>(index(rank_ + 1)));
}

// A received part is added to this rank's part and sent on. The last received part is the sum of all other ranks.
void MpiAllReduce::end_step(Lane& lane, const Parts& parts, int step, const TaskContext& call_context) {
  lane.requests.wait(call_context);
  const Part into = received_part(parts, step);
  if (sums(step)) reduce_into(into.data, lane.received.data(), into.bytes);
}

void MpiAllReduce::reduce_into(char* into, const char* from, int64_t bytes) const {
  comm::reduce_into(into, from, bytes / static_cast<int64_t>(c10::elementSize(dtype_)), dtype_, op_);
}

}  // namespace accelerate::comm
