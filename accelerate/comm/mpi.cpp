// SPDX-License-Identifier: Apache-2.0
// The mpi backend: a c10d::Backend over a communicator of its own, carried out by one worker thread.
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "accelerate/comm/backends.hpp"
#include "accelerate/comm/link.hpp"
#include "accelerate/comm/mpi_runtime.hpp"
#include "accelerate/comm/own_work.hpp"
#include "accelerate/comm/worker.hpp"

namespace accelerate::comm {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr int kAllToAllTag = 32767;  // the one that send and recv leave free
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

ReduceOp from_c10d(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    default:
      throw std::invalid_argument("the mpi backend reduces by sum, product, min and max");
  }
}

template <typename F>
void in_slices(int64_t count, const F& f) {
  for (int64_t at = 0; at < count; at += kMostElements) f(at, static_cast<int>(std::min(kMostElements, count - at)));
}

char* bytes_at(const at::Tensor& tensor, int64_t element) {
  return static_cast<char*>(tensor.mutable_data_ptr()) + element * static_cast<int64_t>(tensor.element_size());
}

int64_t byte_count(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

/// One communicator; freed with the backend.
class MpiBackend : public c10d::Backend {
 public:
  MpiBackend(std::shared_ptr<MpiRuntime> runtime, MPI_Comm communicator, int rank, int size)
      : Backend(rank, size), runtime_(std::move(runtime)), comm_(communicator) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }

  ~MpiBackend() override {
    if (!worker_.stop(std::chrono::seconds(2))) runtime_->skip_finalize();
    if (runtime_->usable()) MPI_Comm_free(&comm_);
  }

  const std::string getBackendName() const override { return "mpi"; }
  [[nodiscard]] MPI_Comm communicator() const { return comm_; }
  [[nodiscard]] const std::shared_ptr<MpiRuntime>& runtime() const { return runtime_; }

  void give_up() noexcept {
    runtime_->skip_finalize();
    worker_.abandon();
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return submit(c10d::OpType::ALLREDUCE, tensors, [op = from_c10d(options.reduceOp), this](const Tensors& all) {
      for (const auto& tensor : all) {
        const auto [type, mpi_op] = runtime_->reduction(tensor.scalar_type(), op);
        in_slices(tensor.numel(), [&, type = type, mpi_op = mpi_op](int64_t at, int count) {
          check_mpi(MPI_Allreduce(MPI_IN_PLACE, bytes_at(tensor, at), count, type, mpi_op, comm_));
        });
      }
    });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    const auto root = static_cast<int>(options.rootRank);
    return submit(c10d::OpType::REDUCE, tensors, [op = from_c10d(options.reduceOp), root, this](const Tensors& all) {
      const auto [type, mpi_op] = runtime_->reduction(all[0].scalar_type(), op);
      in_slices(all[0].numel(), [&, type = type, mpi_op = mpi_op](int64_t at, int count) {
        void* data = bytes_at(all[0], at);
        check_mpi(MPI_Reduce(rank_ == root ? MPI_IN_PLACE : data, data, count, type, mpi_op, root, comm_));
      });
    });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return submit(c10d::OpType::_REDUCE_SCATTER_BASE, {output, input},
                  [op = from_c10d(options.reduceOp), this](const Tensors& all) { reduce_scatter_rows(all, op); });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const auto root = static_cast<int>(options.rootRank);
    return submit(c10d::OpType::BROADCAST, tensors, [root, this](const Tensors& all) {
      for (const auto& tensor : all) {
        const Bytes bytes(byte_count(tensor));
        check_mpi(MPI_Bcast(tensor.mutable_data_ptr(), bytes.count(), bytes.type(), root, comm_));
      }
    });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return submit(c10d::OpType::_ALLGATHER_BASE, {output, input}, [this](const Tensors& all) {
      const Bytes bytes(byte_count(all[1]));
      check_mpi(MPI_Allgather(all[1].const_data_ptr(), bytes.count(), bytes.type(), all[0].mutable_data_ptr(),
                              bytes.count(), bytes.type(), comm_));
    });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    Tensors kept = outputs.at(0);
    kept.push_back(inputs.at(0));
    return submit(c10d::OpType::ALLGATHER, std::move(kept), [this](const Tensors& all) {
      const Bytes bytes(byte_count(all.back()));
      const auto size = static_cast<size_t>(byte_count(all.back()));
      std::vector<char> buffer(size * static_cast<size_t>(size_));
      check_mpi(MPI_Allgather(all.back().const_data_ptr(), bytes.count(), bytes.type(), buffer.data(), bytes.count(),
                              bytes.type(), comm_));
      for (size_t r = 0; r + 1 < all.size(); ++r) {
        std::copy_n(buffer.data() + r * size, size, static_cast<char*>(all[r].mutable_data_ptr()));
      }
    });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions&) override {
    return submit(c10d::OpType::ALLTOALL_BASE, {output, input},
                  [to = input_rows, from = output_rows, this](const Tensors& all) {
                    exchange(all[0], offsets(all[0], from), all[1], offsets(all[1], to));
                  });
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return submit(c10d::OpType::SEND, tensors, [to, tag, this](const Tensors& all) {
      const Bytes bytes(byte_count(all[0]));
      check_mpi(MPI_Send(all[0].const_data_ptr(), bytes.count(), bytes.type(), to, tag, comm_));
    });
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return submit(c10d::OpType::RECV, tensors, [from, tag, this](const Tensors& all) {
      const Bytes bytes(byte_count(all[0]));
      check_mpi(MPI_Recv(all[0].mutable_data_ptr(), bytes.count(), bytes.type(), from, tag, comm_, MPI_STATUS_IGNORE));
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return submit(c10d::OpType::BARRIER, {}, [this](const Tensors&) { check_mpi(MPI_Barrier(comm_)); });
  }

  /// Runs something of MPI in turn with the operations, and waits.
  void in_turn(std::function<void()> job, std::chrono::milliseconds timeout) {
    submit(c10d::OpType::UNKNOWN, {}, [job = std::move(job)](const Tensors&) { job(); })->wait(timeout);
  }

 private:
  template <typename F>
  WorkPtr submit(c10d::OpType type, Tensors tensors, F carry_out) {
    auto work = c10::make_intrusive<OwnWork>(type, std::move(tensors));
    worker_.push([work, carry_out = std::move(carry_out)] {
      try {
        carry_out(work->tensors());
        work->end();
      } catch (...) {
        work->end(std::current_exception());
      }
    });
    return work;
  }

  void reduce_scatter_rows(const Tensors& all, ReduceOp op) {
    const auto& [output, input] = std::tie(all[0], all[1]);
    const auto [type, mpi_op] = runtime_->reduction(output.scalar_type(), op);
    const int64_t count = output.numel();
    if (count <= kMostElements) {
      check_mpi(MPI_Reduce_scatter_block(input.const_data_ptr(), output.mutable_data_ptr(), static_cast<int>(count),
                                         type, mpi_op, comm_));
      return;
    }
    for (int r = 0; r < size_; ++r) {
      in_slices(count, [&, type = type, mpi_op = mpi_op](int64_t at, int slice) {
        check_mpi(MPI_Reduce(bytes_at(input, r * count + at), bytes_at(output, at), slice, type, mpi_op, r, comm_));
      });
    }
  }

  /// Where each rank's part begins, and where the last ends, in bytes; no rows means equal parts.
  [[nodiscard]] std::vector<int64_t> offsets(const at::Tensor& tensor, const std::vector<int64_t>& rows) const {
    std::vector<int64_t> begins{0};
    const int64_t all_rows = tensor.dim() > 0 ? tensor.size(0) : 0;
    const int64_t row_bytes = all_rows > 0 ? byte_count(tensor) / all_rows : 0;
    for (int r = 0; r < size_; ++r) {
      const int64_t count = rows.empty() ? all_rows / size_ : rows[static_cast<size_t>(r)];
      begins.push_back(begins.back() + count * row_bytes);
    }
    return begins;
  }

  void exchange(const at::Tensor& output, const std::vector<int64_t>& from, const at::Tensor& input,
                const std::vector<int64_t>& to) {
    std::vector<MPI_Request> requests;
    auto* into = static_cast<char*>(output.mutable_data_ptr());
    const auto* out_of = static_cast<const char*>(input.const_data_ptr());
    for (int r = 0; r < size_; ++r) {
      const auto i = static_cast<size_t>(r);
      if (r == rank_) {
        std::copy(out_of + to[i], out_of + to[i + 1], into + from[i]);
        continue;
      }
      const Bytes in(from[i + 1] - from[i]);
      if (in.count() > 0) {
        check_mpi(MPI_Irecv(into + from[i], in.count(), in.type(), r, kAllToAllTag, comm_, &requests.emplace_back()));
      }
      const Bytes out(to[i + 1] - to[i]);
      if (out.count() > 0) {
        check_mpi(MPI_Isend(out_of + to[i], out.count(), out.type(), r, kAllToAllTag, comm_, &requests.emplace_back()));
      }
    }
    check_mpi(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
  }

  std::shared_ptr<MpiRuntime> runtime_;
  MPI_Comm comm_;
  Worker worker_;
};

class MpiLink : public Link {
 public:
  MpiLink(c10::intrusive_ptr<MpiBackend> mpi, std::chrono::milliseconds timeout)
      : Link("mpi", c10d::ProcessGroup::BackendType::MPI, mpi), mpi_(std::move(mpi)), timeout_(timeout) {}

  std::shared_ptr<Link> split(const Subgroup& part) override {
    MPI_Comm child = MPI_COMM_NULL;
    const auto color = static_cast<int>(part.ranks.front());  // the lowest member tells the parts apart
    mpi_->in_turn([&] { check_mpi(MPI_Comm_split(mpi_->communicator(), color, static_cast<int>(part.rank), &child)); },
                  timeout_);
    return std::make_shared<MpiLink>(
        c10::make_intrusive<MpiBackend>(mpi_->runtime(), child, static_cast<int>(part.rank),
                                        static_cast<int>(part.ranks.size())),
        timeout_);
  }

  std::string ask_after_peers(const Header&) override { return "MPI does not tell which rank is missing."; }

  void give_up() noexcept override { mpi_->give_up(); }

 private:
  c10::intrusive_ptr<MpiBackend> mpi_;
  std::chrono::milliseconds timeout_;
};

std::shared_ptr<Link> connect_mpi(const LinkContext& context) {
  auto runtime = MpiRuntime::start(context.process, context.place);
  MPI_Comm own = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &own));
  return std::make_shared<MpiLink>(
      c10::make_intrusive<MpiBackend>(std::move(runtime), own, static_cast<int>(context.process.rank),
                                      static_cast<int>(context.process.world_size)),
      context.options.timeout);
}

}  // namespace

const BackendRow& mpi_row() {
  static constexpr BackendRow row{.name = "mpi", .connect = connect_mpi, .missing = "", .uses_store = false};
  return row;
}

}  // namespace accelerate::comm
