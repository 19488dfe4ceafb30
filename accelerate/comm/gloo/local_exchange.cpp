// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/gloo/local_exchange.hpp"

#include <c10/core/Storage.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <span>
#include <stdexcept>
#include <utility>

#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/elementwise.hpp"
#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/gloo/exit_time.hpp"

namespace accelerate::comm {
namespace {

using c10d::OpType;
using Milliseconds = std::chrono::milliseconds;
using WorkPtr = LocalExchange::WorkPtr;

// Up to this size each of several ranks reads all blocks. Above it each reduces its part of the blocks, which takes a
// second round and less time.
constexpr int64_t kWholeBytes = 32768;
// Time after which a waiting rank checks whether the other one has ended.
constexpr Milliseconds kCheckInterval{20};

void copy_bytes(const char* from, int64_t bytes, char* to) {
  if (from != to) std::copy_n(from, bytes, to);
}

/// Elements of a tensor in memory.
struct Elements {
  explicit Elements(const at::Tensor& tensor)
      : data(at_byte(tensor, 0)),
        count(tensor.numel()),
        bytes(static_cast<int64_t>(tensor.element_size())),
        dtype(tensor.scalar_type()),
        storage(tensor.storage()) {}

  [[nodiscard]] char* at(int64_t element) const { return data + element * bytes; }

  char* data;
  int64_t count, bytes;
  at::ScalarType dtype;
  c10::Storage storage;  // keeps the memory if the tensor gets another one meanwhile
};

/// True if both calls have the same rounds and blocks.
bool match(const CollectiveFingerprint& one, const CollectiveFingerprint& other) {
  return one.operation == other.operation && one.dtype == other.dtype && one.reduce == other.reduce &&
         one.root == other.root && one.item == other.item &&
         c10::multiply_integers(one.shape) == c10::multiply_integers(other.shape);
}

}  // namespace

struct LocalExchange::Call {
  CollectiveFingerprint own;
  AnnouncedOperation announced;
};

/// The rounds of this rank, and the operations that consist of them.
class LocalExchange::Rounds {
 public:
  Rounds(std::shared_ptr<SharedMemory> memory, int64_t rank, int64_t ranks)
      : memory_(std::move(memory)), rank_(rank), ranks_(ranks) {}

  /// Executes an operation. After a failure the ranks may be in different rounds, so all later operations fail for the
  /// same reason.
  void run(const Call& call, Deadline limit, const TaskContext& context, const Operate& operate) {
    if (failure_) std::rethrow_exception(failure_);
    call_ = &call;
    limit_ = limit;
    context_ = &context;
    is_first_ = true;
    try {
      operate(*this);
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  }

  void barrier() { meet(); }

  void all_reduce(const Elements& all, ReduceOp op) {
    for_each_block(all, /*parts=*/1, [&](int64_t first, int64_t count) {
      const int64_t bytes = count * all.bytes;
      copy_bytes(all.at(first), bytes, own_block());
      meet();
      if (ranks_ == 2) return reduce_pair(all, first, count, op);
      if (bytes <= kWholeBytes) return reduce_blocks(all, first, count, 0, op);
      const auto begin = [&](int64_t rank) { return count * rank / ranks_; };
      const int64_t mine = begin(rank_), length = begin(rank_ + 1) - mine;
      reduce_blocks(all, first + mine, length, mine, op);
      copy_bytes(all.at(first + mine), length * all.bytes, own_block());
      meet();
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        if (rank == rank_) continue;
        copy_bytes(block_of(rank), (begin(rank + 1) - begin(rank)) * all.bytes, all.at(first + begin(rank)));
      }
    });
  }

  void reduce(const Elements& all, ReduceOp op, int64_t root) {
    for_each_block(all, /*parts=*/1, [&](int64_t first, int64_t count) {
      copy_bytes(all.at(first), count * all.bytes, own_block());
      meet();
      if (rank_ == root) reduce_blocks(all, first, count, 0, op);
    });
  }

  void broadcast(const Elements& all, int64_t root) {
    for_each_block(all, /*parts=*/1, [&](int64_t first, int64_t count) {
      if (rank_ == root) copy_bytes(all.at(first), count * all.bytes, own_block());
      meet();
      if (rank_ != root) copy_bytes(block_of(root), count * all.bytes, all.at(first));
    });
  }

  void reduce_scatter(const Elements& output, const Elements& input, ReduceOp op) {
    for_each_block(output, /*parts=*/ranks_, [&](int64_t first, int64_t count) {
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        copy_bytes(input.at(rank * output.count + first), count * input.bytes,
                   own_block() + rank * count * input.bytes);
      }
      meet();
      reduce_blocks(output, first, count, rank_ * count, op);
    });
  }

  void all_gather(const Elements& output, const Elements& input) {
    for_each_block(input, /*parts=*/1, [&](int64_t first, int64_t count) {
      const int64_t bytes = count * input.bytes;
      copy_bytes(input.at(first), bytes, own_block());
      copy_bytes(input.at(first), bytes, output.at(rank_ * input.count + first));
      meet();
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        if (rank != rank_) copy_bytes(block_of(rank), bytes, output.at(rank * input.count + first));
      }
    });
  }

 private:
  /// Divides elements so that `parts` times as many fit into a block.
  template <typename Function>
  static void for_each_block(const Elements& all, int64_t parts, const Function& function) {
    const int64_t most = SharedMemory::kBlockBytes / (all.bytes * parts);
    for (int64_t first = 0; first < all.count; first += most) function(first, std::min(most, all.count - first));
  }

  /// Computes the reduction of the blocks' elements from `offset` into elements of a tensor.
  void reduce_blocks(const Elements& into, int64_t first, int64_t count, int64_t offset, ReduceOp op) const {
    char* const sum = into.at(first);
    copy_bytes(block_of(0) + offset * into.bytes, count * into.bytes, sum);
    for (int64_t rank = 1; rank < ranks_; ++rank) {
      reduce_into(sum, block_of(rank) + offset * into.bytes, count, into.dtype, op);
    }
  }

  /// The same for two ranks, if the elements still have the values of this rank's block.
  void reduce_pair(const Elements& into, int64_t first, int64_t count, ReduceOp op) const {
    const Side side = rank_ == 0 ? Side::right : Side::left;
    reduce_into(into.at(first), block_of(1 - rank_), count, into.dtype, op, side);
  }

  /// The block that this rank writes for the next round.
  [[nodiscard]] char* own_block() const { return memory_->block(rank_, round_ + 1); }
  /// The block of a rank in the last round. All ranks have read it when they publish the next one, so two blocks of
  /// each rank suffice.
  [[nodiscard]] const char* block_of(int64_t rank) const { return memory_->block(rank, round_); }

  /// Publishes the next round and waits for it on all ranks.
  void meet() {
    const uint32_t round = round_ + 1;
    if (is_first_) write_call(round);
    check_deadline();
    memory_->publish(rank_, round);
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      if (rank != rank_) wait_for(rank, round);
    }
    round_ = round;
    if (std::exchange(is_first_, false)) compare();
  }

  void wait_for(int64_t rank, uint32_t round) const {
    while (!memory_->wait_for(rank, round, kCheckInterval)) {
      check_ranks(round);
      check_deadline();
    }
  }

  /// Checks all ranks, because this rank may wait for one that waits for the one that has ended.
  void check_ranks(uint32_t round) const {
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      if (rank == rank_ || memory_->is_alive(rank) || memory_->has_published(rank, round)) continue;
      throw std::runtime_error(fmt::format("rank {} of the group has ended", rank));
    }
  }

  void check_deadline() const {
    const auto deadline = std::min(context_->job_deadline->load(), limit_);
    if (std::chrono::steady_clock::now() > deadline) throw DeadlineExceeded();
  }

  void write_call(uint32_t round) const {
    const auto words = memory_->call(rank_, round);
    std::ranges::copy(encode(call_->announced.fingerprint), words.begin());
    std::ranges::copy(encode(call_->own), words.begin() + CollectiveFingerprint::kWords);
  }

  /// The announced calls may be equal although the operations differ, for example if only one rank has debug mode.
  void compare() const {
    std::vector<CollectiveFingerprint> announced, own;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const std::span<const int64_t> words = memory_->call(rank, round_);
      announced.push_back(decode(words.first(CollectiveFingerprint::kWords)));
      own.push_back(decode(words.last(CollectiveFingerprint::kWords)));
    }
    const std::vector<int64_t> numbers(own.size());
    if (disagreement(announced, static_cast<size_t>(rank_), call_->announced.agreement, numbers)) {
      throw FingerprintMismatch(std::move(announced), call_->announced.agreement);
    }
    const auto matches = [&](const CollectiveFingerprint& call) { return match(call, own.front()); };
    if (!std::ranges::all_of(own, matches)) throw FingerprintMismatch(std::move(own), Agreement::whole_shape);
  }

  std::shared_ptr<SharedMemory> memory_;
  int64_t rank_, ranks_;
  uint32_t round_ = 0;  // number of the last round
  std::exception_ptr failure_{};
  // The operation.
  const Call* call_ = nullptr;
  Deadline limit_{};
  const TaskContext* context_ = nullptr;
  bool is_first_ = false;
};

LocalExchange::LocalExchange(std::shared_ptr<SharedMemory> memory, int64_t rank, int64_t ranks, Milliseconds timeout)
    : rounds_(std::make_shared<Rounds>(std::move(memory), rank, ranks)),
      timeout_(timeout),
      worker_(std::make_shared<WorkerThread>(timeout)) {}

LocalExchange::~LocalExchange() { worker_->stop(exit_time(timeout_)); }

void LocalExchange::abandon() noexcept { worker_->abandon(); }

WorkPtr LocalExchange::submit(OpType type, std::vector<at::Tensor> tensors, const CollectiveFingerprint& own,
                              CallOptions options, Operate operate) {
  Call call;
  call.own = own;
  if (options.announced) {
    call.announced = std::move(*options.announced);
  } else {
    call.announced.fingerprint = own;
  }
  auto operation = [rounds = rounds_, call = std::move(call), operate = std::move(operate),
                    timeout = timeout_](const TaskContext& context) {
    rounds->run(call, std::chrono::steady_clock::now() + timeout, context, operate);
  };
  return submit_operation(worker_, type, std::move(tensors), options.asynchronous, timeout_, std::move(operation));
}

WorkPtr LocalExchange::all_reduce(const at::Tensor& tensor, ReduceOp op, CallOptions options) {
  return submit(OpType::ALLREDUCE, {tensor}, fingerprint_of(Operation::all_reduce, tensor, op), std::move(options),
                [all = Elements(tensor), op](Rounds& rounds) { rounds.all_reduce(all, op); });
}

WorkPtr LocalExchange::reduce(const at::Tensor& tensor, ReduceOp op, int64_t root, CallOptions options) {
  return submit(OpType::REDUCE, {tensor}, fingerprint_of(Operation::reduce, tensor, op, root), std::move(options),
                [all = Elements(tensor), op, root](Rounds& rounds) { rounds.reduce(all, op, root); });
}

WorkPtr LocalExchange::broadcast(const at::Tensor& tensor, int64_t root, CallOptions options) {
  return submit(OpType::BROADCAST, {tensor}, fingerprint_of(Operation::broadcast, tensor, std::nullopt, root),
                std::move(options), [all = Elements(tensor), root](Rounds& rounds) { rounds.broadcast(all, root); });
}

WorkPtr LocalExchange::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                      CallOptions options) {
  return submit(OpType::_REDUCE_SCATTER_BASE, {output, input}, fingerprint_of(Operation::reduce_scatter, input, op),
                std::move(options), [to = Elements(output), from = Elements(input), op](Rounds& rounds) {
                  rounds.reduce_scatter(to, from, op);
                });
}

WorkPtr LocalExchange::all_gather(const at::Tensor& output, const at::Tensor& input, CallOptions options) {
  return submit(OpType::_ALLGATHER_BASE, {output, input}, fingerprint_of(Operation::all_gather, input),
                std::move(options),
                [to = Elements(output), from = Elements(input)](Rounds& rounds) { rounds.all_gather(to, from); });
}

WorkPtr LocalExchange::barrier(CallOptions options) {
  return submit(OpType::BARRIER, {}, {.operation = Operation::barrier}, std::move(options),
                [](Rounds& rounds) { rounds.barrier(); });
}

}  // namespace accelerate::comm
