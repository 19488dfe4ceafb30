// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/gloo/direct_exchange.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <utility>

#include "accelerate/base/hash.hpp"
#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/elementwise.hpp"
#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/gloo/exit_time.hpp"

namespace accelerate::comm {
namespace {

using c10d::OpType;
using Milliseconds = std::chrono::milliseconds;
using WorkPtr = DirectExchange::WorkPtr;

// Above the tags of Group::send(), which are below 2^15.
constexpr uint32_t kFirstTag = uint32_t{1} << 20;
// LibTorch counts the tags of its operations from zero.
constexpr uint32_t kTagOfLibTorch = uint32_t{1} << 31;
constexpr uint32_t kTagsOfOperation = 4096, kOperations = uint32_t{1} << 17;

at::Tensor flat(const at::Tensor& tensor) { return tensor.view({-1}); }

at::Tensor part_of(const at::Tensor& tensor, int64_t rank, int64_t ranks) {
  const int64_t length = tensor.numel() / ranks;
  return tensor.narrow(0, rank * length, length);
}

void copy_values(const at::Tensor& from, const at::Tensor& to) {
  if (at_byte(from, 0) != at_byte(to, 0)) std::copy_n(at_byte(from, 0), byte_count(from), at_byte(to, 0));
}

// Computes tensors[0] (op) tensors[1] (op) ... into `target`, which is one of the tensors.
void reduce_in_order(const std::vector<at::Tensor>& tensors, const at::Tensor& target, ReduceOp op) {
  char* const sum = at_byte(tensors.front(), 0);
  for (size_t rank = 1; rank < tensors.size(); ++rank) {
    reduce_into(sum, at_byte(tensors[rank], 0), target.numel(), target.scalar_type(), op);
  }
  copy_values(tensors.front(), target);
}

}  // namespace

struct DirectExchange::Messages {
  std::vector<WorkPtr> receives{}, sends{};

  void wait_for_receives(Deadline deadline) const { wait_for(receives, deadline); }
  void wait_for_sends(Deadline deadline) const { wait_for(sends, deadline); }

 private:
  static void wait_for(const std::vector<WorkPtr>& works, Deadline deadline) {
    for (const WorkPtr& work : works) {
      const auto left = std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now());
      work->wait(std::max(left, Milliseconds(1)));
    }
  }
};

DirectExchange::DirectExchange(c10d::Backend& backend, Milliseconds timeout)
    : backend_(backend),
      rank_(backend.getRank()),
      ranks_(backend.getSize()),
      timeout_(timeout),
      worker_(std::make_shared<WorkerThread>(timeout)) {}

DirectExchange::~DirectExchange() { worker_->stop(exit_time(timeout_)); }

void DirectExchange::abandon() noexcept { worker_->abandon(); }

DirectExchange::Messages DirectExchange::post(int tag, const TensorOfRank& receives, const TensorOfRank& sends) {
  Messages messages;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    std::vector<at::Tensor> tensor{receives(rank)};
    messages.receives.push_back(backend_.recv(tensor, static_cast<int>(rank), tag));
  }
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    std::vector<at::Tensor> tensor{sends(rank)};
    messages.sends.push_back(backend_.send(tensor, static_cast<int>(rank), tag));
  }
  return messages;
}

// The messages of one operation.
struct DirectExchange::Call {
  Agreement agreement = Agreement::whole_shape;
  size_t rank = 0;
  std::vector<at::Tensor> fingerprints{};  // of the ranks, in their order
  int tag = 0;                             // of the messages with tensors
  Messages with_fingerprints{}, with_tensors{};
  Milliseconds timeout{};

  // Waits until the received tensors have their values, and the sent ones may change. Checks the fingerprints first,
  // because tensors that do not match never arrive.
  void wait(const TaskContext& context) const {
    const auto deadline = std::min(context.job_deadline->load(), std::chrono::steady_clock::now() + timeout);
    with_fingerprints.wait_for_receives(deadline);
    check();
    with_tensors.wait_for_receives(deadline);
    with_fingerprints.wait_for_sends(deadline);
    with_tensors.wait_for_sends(deadline);
  }

 private:
  void check() const {
    std::vector<CollectiveFingerprint> calls;
    for (const at::Tensor& words : fingerprints) {
      calls.push_back(decode({words.const_data_ptr<int64_t>(), CollectiveFingerprint::kWords}));
    }
    const std::vector<int64_t> ranks(calls.size());
    if (disagreement(calls, rank, agreement, ranks)) throw FingerprintMismatch(std::move(calls), agreement);
  }
};

// Tensors of other sizes and dtypes have other tags, because gloo ends the process if a message is larger than the
// tensor that receives it.
DirectExchange::Call DirectExchange::begin(const CollectiveFingerprint& own, const CallOptions& options) {
  const auto announced = options.announced.value_or(AnnouncedOperation{.fingerprint = own});
  Call call{.agreement = announced.agreement, .rank = static_cast<size_t>(rank_), .timeout = timeout_};
  uint64_t hash = base::kEmptyHash;
  for (const int64_t word : {static_cast<int64_t>(own.operation), c10::multiply_integers(own.shape),
                             static_cast<int64_t>(*own.dtype), own.reduce, own.root}) {
    hash = base::hash_word(static_cast<uint64_t>(word), hash);
  }
  const uint32_t first = kFirstTag + operations_++ % kOperations * kTagsOfOperation;
  call.tag = static_cast<int>(first + 1 + static_cast<uint32_t>((hash >> 32) % (kTagsOfOperation - 1)));
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    call.fingerprints.push_back(rank == rank_ ? tensor_of(announced.fingerprint)
                                              : at::empty({int64_t{CollectiveFingerprint::kWords}}, at::kLong));
  }
  call.with_fingerprints = post(
      static_cast<int>(first), [&](int64_t rank) { return call.fingerprints[static_cast<size_t>(rank)]; },
      [&](int64_t) { return call.fingerprints[static_cast<size_t>(rank_)]; });
  return call;
}

WorkPtr DirectExchange::submit(OpType type, std::vector<at::Tensor> tensors, const CallOptions& options,
                               Finish finish) {
  return submit_operation(worker_, type, std::move(tensors), options.asynchronous, timeout_, std::move(finish));
}

WorkPtr DirectExchange::compare(OpType type, const CollectiveFingerprint& own, const at::Tensor& tensor,
                                const CallOptions& options, const BeginWork& begin_work) {
  const at::NoGradGuard no_grad;
  Call call = begin(own, options);
  call.with_tensors.receives.push_back(begin_work(static_cast<uint32_t>(call.tag) | kTagOfLibTorch));
  auto finish = [call = std::move(call)](const TaskContext& context) { call.wait(context); };
  // The waiting caller finishes, because LibTorch's threads execute the operation meanwhile.
  return submit(type, {tensor}, {.asynchronous = false}, std::move(finish));
}

std::vector<at::Tensor> DirectExchange::terms_beside(const at::Tensor& own) const {
  std::vector<at::Tensor> terms;
  for (int64_t rank = 0; rank < ranks_; ++rank) terms.push_back(rank == rank_ ? own : at::empty_like(own));
  return terms;
}

WorkPtr DirectExchange::all_reduce(const at::Tensor& tensor, ReduceOp op, const CallOptions& options) {
  const at::NoGradGuard no_grad;
  Call call = begin(fingerprint_of(Operation::all_reduce, tensor, op), options);
  const at::Tensor own = flat(tensor);
  const std::vector<at::Tensor> terms = terms_beside(own);
  call.with_tensors = post(
      call.tag, [&](int64_t rank) { return terms[static_cast<size_t>(rank)]; },
      [&](int64_t) -> const at::Tensor& { return own; });
  auto finish = [=](const TaskContext& context) {
    call.wait(context);
    reduce_in_order(terms, own, op);
  };
  return submit(OpType::ALLREDUCE, {tensor}, options, std::move(finish));
}

WorkPtr DirectExchange::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                       const CallOptions& options) {
  const at::NoGradGuard no_grad;
  Call call = begin(fingerprint_of(Operation::reduce_scatter, input, op), options);
  const at::Tensor whole = flat(input), own = flat(output);
  const std::vector<at::Tensor> terms = terms_beside(own);
  call.with_tensors = post(
      call.tag, [&](int64_t rank) { return terms[static_cast<size_t>(rank)]; },
      [&](int64_t rank) { return part_of(whole, rank, ranks_); });
  auto finish = [=, mine = part_of(whole, rank_, ranks_)](const TaskContext& context) {
    call.wait(context);
    copy_values(mine, own);
    reduce_in_order(terms, own, op);
  };
  return submit(OpType::_REDUCE_SCATTER_BASE, {output, input}, options, std::move(finish));
}

WorkPtr DirectExchange::all_gather(const at::Tensor& output, const at::Tensor& input, const CallOptions& options) {
  const at::NoGradGuard no_grad;
  Call call = begin(fingerprint_of(Operation::all_gather, input), options);
  const at::Tensor whole = flat(output), mine = flat(input);
  call.with_tensors = post(
      call.tag, [&](int64_t rank) { return part_of(whole, rank, ranks_); },
      [&](int64_t) -> const at::Tensor& { return mine; });
  copy_values(mine, part_of(whole, rank_, ranks_));
  auto finish = [call = std::move(call)](const TaskContext& context) { call.wait(context); };
  return submit(OpType::_ALLGATHER_BASE, {output, input}, options, std::move(finish));
}

}  // namespace accelerate::comm
