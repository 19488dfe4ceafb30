// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/channel.hpp"

#include <algorithm>

#include "accelerate/comm/core/bytes.hpp"

namespace accelerate::comm {
namespace {

template <typename F>
void in_slices(int64_t count, const F& f) {
  for (int64_t at = 0; at < count; at += kMaxElements) f(at, static_cast<int>(std::min(kMaxElements, count - at)));
}

char* at_element(const at::Tensor& tensor, int64_t element) {
  return at_byte(tensor, element * static_cast<int64_t>(tensor.element_size()));
}

MPI_Comm returning_errors(MPI_Comm communicator) {
  MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  return communicator;
}

}  // namespace

MpiChannel::MpiChannel(std::shared_ptr<MpiRuntime> runtime, MPI_Comm communicator)
    : runtime_(std::move(runtime)),
      comm_(returning_errors(communicator)),
      handshake_(std::make_shared<MpiHandshake>(comm_)),
      requests_(comm_, kOperationTag) {
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &size_));
}

MpiChannel::~MpiChannel() {
  if (runtime_->usable()) MPI_Comm_free(&comm_);
}

void MpiChannel::all_reduce(const at::Tensor& tensor, MpiRuntime::Reduction reduction,
                            const MpiCallContext& call_context) {
  run_handshake(call_context);
  in_slices(tensor.numel(), [&](int64_t at, int count) {
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, at_element(tensor, at), count, reduction.first, reduction.second, comm_));
  });
}

void MpiChannel::reduce(const at::Tensor& tensor, ReduceOp op, int root, const MpiCallContext& call_context) {
  const auto [type, mpi_op] = runtime_->reduction(tensor.scalar_type(), op);
  run_handshake(call_context);
  in_slices(tensor.numel(), [&, type = type, mpi_op = mpi_op](int64_t at, int count) {
    void* data = at_element(tensor, at);
    check_mpi(MPI_Reduce(rank_ == root ? MPI_IN_PLACE : data, data, count, type, mpi_op, root, comm_));
  });
}

void MpiChannel::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                const MpiCallContext& call_context) {
  const auto [type, mpi_op] = runtime_->reduction(output.scalar_type(), op);
  run_handshake(call_context);
  const int64_t count = output.numel();
  if (count <= kMaxElements) {
    check_mpi(MPI_Reduce_scatter_block(input.const_data_ptr(), output.mutable_data_ptr(), static_cast<int>(count), type,
                                       mpi_op, comm_));
    return;
  }
  for (int r = 0; r < size_; ++r) {
    in_slices(count, [&, type = type, mpi_op = mpi_op](int64_t at, int slice) {
      check_mpi(MPI_Reduce(at_element(input, r * count + at), at_element(output, at), slice, type, mpi_op, r, comm_));
    });
  }
}

void MpiChannel::broadcast(const Tensors& tensors, int root, const MpiCallContext& call_context) {
  for (const auto& tensor : tensors) {
    const int64_t bytes = byte_count(tensor);
    char* const data = at_byte(tensor, 0);
    if (handshake_->carries(bytes)) {
      const auto length = static_cast<size_t>(bytes);
      handshake_->run(call_context.call, {data, rank_ == root ? length : 0}, call_context.call_context);
      if (rank_ != root) std::copy_n(handshake_->payload_of(root), length, data);
      continue;
    }
    run_handshake(call_context);
    if (!has_few_ranks()) {
      const MpiBytes all(bytes);
      check_mpi(MPI_Bcast(data, all.count(), all.type(), root, comm_));
      continue;
    }
    if (rank_ != root) requests_.receive(data, bytes, root);
    for (int r = 0; rank_ == root && r < size_; ++r) {
      if (r != root) requests_.send(data, bytes, r);
    }
    requests_.wait(call_context.call_context);
  }
}

void MpiChannel::all_gather(const at::Tensor& output, const at::Tensor& input, const MpiCallContext& call_context) {
  std::vector<char*> places;
  for (int r = 0; r < size_; ++r) places.push_back(at_byte(output, r * byte_count(input)));
  gather_into(places, input, call_context);
}

void MpiChannel::all_gather_list(const Tensors& outputs, const at::Tensor& input, const MpiCallContext& call_context) {
  std::vector<char*> places;
  for (const auto& output : outputs) places.push_back(at_byte(output, 0));
  gather_into(places, input, call_context);
}

/// Uses messages for any number of ranks, because MPI_Allgather requires a single buffer.
void MpiChannel::gather_into(const std::vector<char*>& places, const at::Tensor& input,
                             const MpiCallContext& call_context) {
  const int64_t bytes = byte_count(input);
  const char* const data = at_byte(input, 0);
  if (handshake_->carries(bytes)) {
    const auto length = static_cast<size_t>(bytes);
    handshake_->run(call_context.call, {data, length}, call_context.call_context);
    for (int r = 0; r < size_; ++r) std::copy_n(handshake_->payload_of(r), length, places.at(static_cast<size_t>(r)));
    return;
  }
  run_handshake(call_context);
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_;
    requests_.receive(places.at(static_cast<size_t>(from)), bytes, from);
    requests_.send(data, bytes, (rank_ + step) % size_);
  }
  std::copy_n(data, bytes, places.at(static_cast<size_t>(rank_)));
  requests_.wait(call_context.call_context);
}

std::vector<int64_t> MpiChannel::offsets(const at::Tensor& tensor, const std::vector<int64_t>& rows) const {
  std::vector<int64_t> begins{0};
  const int64_t all_rows = tensor.dim() > 0 ? tensor.size(0) : 0;
  const int64_t row_bytes = all_rows > 0 ? byte_count(tensor) / all_rows : 0;
  for (int r = 0; r < size_; ++r) {
    const int64_t count = rows.empty() ? all_rows / size_ : rows[static_cast<size_t>(r)];
    begins.push_back(begins.back() + count * row_bytes);
  }
  return begins;
}

/// Uses messages instead of MPI_Alltoallv, which has int offsets.
void MpiChannel::all_to_all(const at::Tensor& output, const std::vector<int64_t>& output_rows, const at::Tensor& input,
                            const std::vector<int64_t>& input_rows, const MpiCallContext& call_context) {
  const auto from = offsets(output, output_rows);
  const auto to = offsets(input, input_rows);
  char* const into = at_byte(output, 0);
  const char* const out_of = at_byte(input, 0);
  run_handshake(call_context);
  for (int step = 1; step < size_; ++step) {
    const int source = (rank_ + size_ - step) % size_;
    const int target = (rank_ + step) % size_;
    const auto i = static_cast<size_t>(source);
    const auto o = static_cast<size_t>(target);
    requests_.receive(into + from[i], from[i + 1] - from[i], source);
    requests_.send(out_of + to[o], to[o + 1] - to[o], target);
  }
  const auto me = static_cast<size_t>(rank_);
  std::copy(out_of + to[me], out_of + to[me + 1], into + from[me]);
  requests_.wait(call_context.call_context);
}

void MpiChannel::barrier(const MpiCallContext& call_context) { run_handshake(call_context); }

MPI_Comm MpiChannel::split(int color, int key, const MpiCallContext& call_context) {
  run_handshake(call_context);
  MPI_Comm child = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, color, key, &child));
  return child;
}

}  // namespace accelerate::comm
