// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/channel.hpp"

#include <algorithm>
#include <array>

#include "accelerate/comm/core/bytes.hpp"

namespace accelerate::comm {
namespace {

constexpr int kOwnTag = 32767;  // the one that send and recv leave free
constexpr int64_t kMostElements = int64_t{1} << 30;

/// n bytes as one element, because MPI counts in int.
class Bytes {
 public:
  explicit Bytes(int64_t count) {
    const auto most = static_cast<int>(kMostElements);
    if (count <= most) {
      count_ = static_cast<int>(count);
      return;
    }
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_Datatype blocks = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(most, MPI_BYTE, &block));
    check_mpi(MPI_Type_contiguous(static_cast<int>(count / most), block, &blocks));
    std::array<int, 2> lengths{1, static_cast<int>(count % most)};
    std::array<MPI_Aint, 2> offsets{0, static_cast<MPI_Aint>(count / most * most)};
    std::array<MPI_Datatype, 2> types{blocks, MPI_BYTE};
    check_mpi(MPI_Type_create_struct(2, lengths.data(), offsets.data(), types.data(), &type_));
    check_mpi(MPI_Type_commit(&type_));
    MPI_Type_free(&blocks);
    MPI_Type_free(&block);
    count_ = 1;
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_BYTE;
  int count_ = 0;
};

template <typename F>
void in_slices(int64_t count, const F& f) {
  for (int64_t at = 0; at < count; at += kMostElements) f(at, static_cast<int>(std::min(kMostElements, count - at)));
}

char* at_element(const at::Tensor& tensor, int64_t element) {
  return at_byte(tensor, element * static_cast<int64_t>(tensor.element_size()));
}

}  // namespace

MpiChannel::MpiChannel(std::shared_ptr<MpiRuntime> runtime, MPI_Comm communicator)
    : runtime_(std::move(runtime)), comm_(communicator) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &size_));
  if (size_ <= kFewRanks) by_messages_ = std::make_unique<MpiAllReduce>(comm_, kOwnTag);
}

MpiChannel::~MpiChannel() {
  if (runtime_->usable()) MPI_Comm_free(&comm_);
}

void MpiChannel::all_reduce(const Tensors& tensors, ReduceOp op, MpiAllReduce::Deadline deadline) const {
  for (const auto& tensor : tensors) {
    const auto [type, mpi_op] = runtime_->reduction(tensor.scalar_type(), op);
    if (by_messages_) {
      by_messages_->run(tensor, op, deadline);
      continue;
    }
    in_slices(tensor.numel(), [&, type = type, mpi_op = mpi_op](int64_t at, int count) {
      check_mpi(MPI_Allreduce(MPI_IN_PLACE, at_element(tensor, at), count, type, mpi_op, comm_));
    });
  }
}

void MpiChannel::reduce(const at::Tensor& tensor, ReduceOp op, int root) const {
  const auto [type, mpi_op] = runtime_->reduction(tensor.scalar_type(), op);
  in_slices(tensor.numel(), [&, type = type, mpi_op = mpi_op](int64_t at, int count) {
    void* data = at_element(tensor, at);
    check_mpi(MPI_Reduce(rank_ == root ? MPI_IN_PLACE : data, data, count, type, mpi_op, root, comm_));
  });
}

void MpiChannel::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
  const auto [type, mpi_op] = runtime_->reduction(output.scalar_type(), op);
  const int64_t count = output.numel();
  if (count <= kMostElements) {
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

void MpiChannel::broadcast(const Tensors& tensors, int root) const {
  for (const auto& tensor : tensors) {
    const Bytes bytes(byte_count(tensor));
    check_mpi(MPI_Bcast(tensor.mutable_data_ptr(), bytes.count(), bytes.type(), root, comm_));
  }
}

void MpiChannel::all_gather(const at::Tensor& output, const at::Tensor& input) const {
  const Bytes bytes(byte_count(input));
  check_mpi(MPI_Allgather(input.const_data_ptr(), bytes.count(), bytes.type(), output.mutable_data_ptr(), bytes.count(),
                          bytes.type(), comm_));
}

void MpiChannel::all_gather_list(const Tensors& outputs, const at::Tensor& input) const {
  const Bytes bytes(byte_count(input));
  const auto part = static_cast<size_t>(byte_count(input));
  std::vector<char> buffer(part * outputs.size());
  check_mpi(MPI_Allgather(input.const_data_ptr(), bytes.count(), bytes.type(), buffer.data(), bytes.count(),
                          bytes.type(), comm_));
  for (size_t r = 0; r < outputs.size(); ++r) std::copy_n(buffer.data() + r * part, part, at_element(outputs[r], 0));
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

/// Messages, not MPI_Alltoallv: its offsets are int.
void MpiChannel::all_to_all(const at::Tensor& output, const std::vector<int64_t>& output_rows, const at::Tensor& input,
                            const std::vector<int64_t>& input_rows) const {
  const auto from = offsets(output, output_rows);
  const auto to = offsets(input, input_rows);
  auto* const into = static_cast<char*>(output.mutable_data_ptr());
  const auto* const out_of = static_cast<const char*>(input.const_data_ptr());
  std::vector<MPI_Request> requests;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<size_t>(r);
    if (r == rank_) {
      std::copy(out_of + to[i], out_of + to[i + 1], into + from[i]);
      continue;
    }
    const Bytes in(from[i + 1] - from[i]);
    if (in.count() > 0) {
      check_mpi(MPI_Irecv(into + from[i], in.count(), in.type(), r, kOwnTag, comm_, &requests.emplace_back()));
    }
    const Bytes out(to[i + 1] - to[i]);
    if (out.count() > 0) {
      check_mpi(MPI_Isend(out_of + to[i], out.count(), out.type(), r, kOwnTag, comm_, &requests.emplace_back()));
    }
  }
  check_mpi(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

void MpiChannel::send(const at::Tensor& tensor, int to, int tag) const {
  const Bytes bytes(byte_count(tensor));
  check_mpi(MPI_Send(tensor.const_data_ptr(), bytes.count(), bytes.type(), to, tag, comm_));
}

void MpiChannel::recv(const at::Tensor& tensor, int from, int tag) const {
  const Bytes bytes(byte_count(tensor));
  check_mpi(MPI_Recv(tensor.mutable_data_ptr(), bytes.count(), bytes.type(), from, tag, comm_, MPI_STATUS_IGNORE));
}

void MpiChannel::barrier() const { check_mpi(MPI_Barrier(comm_)); }

std::shared_ptr<MpiChannel> MpiChannel::split(int color, int key) const {
  MPI_Comm child = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, color, key, &child));
  return std::make_shared<MpiChannel>(runtime_, child);
}

}  // namespace accelerate::comm
