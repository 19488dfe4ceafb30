// SPDX-License-Identifier: Apache-2.0
// The threads backend: ranks are threads of one process. Implements c10d's interface over ThreadsGroup.
#include "accelerate/comm/threads/backend.hpp"

#include "accelerate/comm/core/completable_work.hpp"
#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/core/wire_format.hpp"
#include "accelerate/comm/threads/threads_group.hpp"

namespace accelerate::comm {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using c10d::OpType;

namespace {

class ThreadWork : public c10d::Work {
 public:
  ThreadWork(std::shared_ptr<ThreadsGroup> group, std::shared_ptr<SharedOperation> operation, size_t rank,
             Tensors outputs)
      : Work(-1, operation->type),
        group_(std::move(group)),
        operation_(std::move(operation)),
        me_(rank),
        outputs_(std::move(outputs)) {}

  bool isCompleted() override { return group_->run_one_task(*operation_); }
  bool isSuccess() const override {
    const std::lock_guard lock(group_->mutex);
    return operation_->over() && !operation_->error;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    group_->wait_and_help(*operation_, me_, timeout);
    return true;
  }
  Tensors result() override { return outputs_; }

  /// Returns a completed future: only waiting ranks execute the operation.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_after_wait(*this, kNoTimeout); }

 private:
  std::shared_ptr<ThreadsGroup> group_;
  std::shared_ptr<SharedOperation> operation_;
  size_t me_;
  Tensors outputs_;
};

class ThreadsBackend : public c10d::Backend {
 public:
  ThreadsBackend(std::shared_ptr<ThreadsGroup> group, size_t rank)
      : Backend(static_cast<int>(rank), static_cast<int>(group->size)), group_(std::move(group)), me_(rank) {}

  const std::string getBackendName() const override { return "threads"; }
  void announce(const CollectiveFingerprint& signature, Agreement agreement) {
    signature_ = signature;
    agreement_ = agreement;
  }
  [[nodiscard]] ThreadsGroup& group() { return *group_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return put(OpType::ALLREDUCE, {.outputs = tensors}, from_c10d(options.reduceOp, "threads"));
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return put(OpType::REDUCE, {.outputs = tensors}, from_c10d(options.reduceOp, "threads"), options.rootRank);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return put(OpType::BROADCAST, {.outputs = tensors}, ReduceOp::sum, options.rootRank);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    return put(OpType::ALLGATHER, {.outputs = outputs.at(0), .inputs = inputs});
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return put(OpType::_ALLGATHER_BASE, {.outputs = {output}, .inputs = {input}});
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return put(OpType::_REDUCE_SCATTER_BASE, {.outputs = {output}, .inputs = {input}},
               from_c10d(options.reduceOp, "threads"));
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions&) override {
    return put(OpType::ALLTOALL_BASE,
               {.outputs = {output}, .inputs = {input}, .output_rows = output_rows, .input_rows = input_rows});
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return put(OpType::BARRIER, {}); }

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;

 private:
  WorkPtr put(OpType type, Contribution mine, ReduceOp op = ReduceOp::sum, int64_t root = 0) {
    Tensors outputs = mine.outputs;
    mine.signature = std::exchange(signature_, std::nullopt);
    auto operation = group_->put(me_, type, op, static_cast<size_t>(root), agreement_, std::move(mine));
    return c10::make_intrusive<ThreadWork>(group_, std::move(operation), me_, std::move(outputs));
  }

  std::shared_ptr<ThreadsGroup> group_;
  size_t me_;
  std::optional<CollectiveFingerprint> signature_;
  Agreement agreement_ = Agreement::operation_only;
};

/// A send copies the tensor into the mailbox, so it completes at once.
WorkPtr ThreadsBackend::send(Tensors& tensors, int to, int tag) {
  const std::lock_guard lock(group_->mutex);
  Letters& letters = group_->mail[{me_, static_cast<size_t>(to), tag}];
  letters.waiting.emplace(letters.sent++, tensors.at(0).clone());
  group_->changed.notify_all();
  auto sent = c10::make_intrusive<CompletableWork>(OpType::SEND, tensors);
  sent->end();
  return sent;
}

class PointToPointWork : public c10d::Work {
 public:
  PointToPointWork(std::shared_ptr<ThreadsGroup> group, size_t from, size_t to, int tag, at::Tensor tensor)
      : Work(-1, OpType::RECV), group_(std::move(group)), from_(from), tensor_(std::move(tensor)) {
    const std::lock_guard lock(group_->mutex);
    letters_ = &group_->mail[{from, to, tag}];
    number_ = letters_->receives++;
  }

  bool isCompleted() override {
    const std::lock_guard lock(group_->mutex);
    return received_ || letters_->waiting.contains(number_) || group_->left[from_];
  }

  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(group_->mutex);
    if (received_) return true;
    const auto come = [&] { return letters_->waiting.contains(number_) || group_->left[from_]; };
    if (timeout <= std::chrono::milliseconds(0)) {  // in c10d, 0 means no limit
      group_->changed.wait(lock, come);
    } else if (!group_->changed.wait_for(lock, timeout, come)) {
      throw DeadlineExceeded({static_cast<int64_t>(from_)});
    }
    const auto found = letters_->waiting.find(number_);
    if (found == letters_->waiting.end()) {
      throw PeerLost(fmt::format("rank {} {}", group_->job_ranks[from_], *group_->left[from_]));
    }
    const at::Tensor letter = found->second;
    letters_->waiting.erase(found);
    received_ = true;
    if (letter.nbytes() != tensor_.nbytes()) {
      throw PeerLost(fmt::format("rank {} sends {} bytes, this rank expects {}", group_->job_ranks[from_],
                                 letter.nbytes(), tensor_.nbytes()));
    }
    copy_bytes(tensor_, 0, letter, 0, byte_count(letter));
    return true;
  }

 private:
  std::shared_ptr<ThreadsGroup> group_;
  size_t from_;
  Letters* letters_ = nullptr;  ///< in group_; the map's nodes do not move
  uint64_t number_ = 0;
  bool received_ = false;
  at::Tensor tensor_;
};

WorkPtr ThreadsBackend::recv(Tensors& tensors, int from, int tag) {
  return c10::make_intrusive<PointToPointWork>(group_, static_cast<size_t>(from), me_, tag, tensors.at(0));
}

class ThreadsConnection : public Connection {
 public:
  ThreadsConnection(std::shared_ptr<ThreadsGroup> group, size_t rank)
      : ThreadsConnection(c10::make_intrusive<ThreadsBackend>(group, rank), group, rank) {}

  std::shared_ptr<Connection> split(const Subgroup& part) override {
    const std::lock_guard lock(group_->mutex);
    auto& child = group_->parts[part.name];
    if (!child) {
      child = std::make_shared<ThreadsGroup>(part.job_ranks);
      group_->members_of_parts[part.name] = part.ranks;
      for (size_t r = 0; r < part.ranks.size(); ++r) child->left[r] = group_->left[static_cast<size_t>(part.ranks[r])];
    }
    return std::make_shared<ThreadsConnection>(child, static_cast<size_t>(part.rank));
  }

  bool announce(const CollectiveFingerprint& signature, Agreement agreement) override {
    threads_->announce(signature, agreement);
    return true;
  }

  void abort_operations() noexcept override { group_->mark_left(me_, "aborted after its own error"); }

  c10::intrusive_ptr<c10d::Store> store() override { return group_->store; }

 private:
  ThreadsConnection(const c10::intrusive_ptr<ThreadsBackend>& threads, std::shared_ptr<ThreadsGroup> group, size_t rank)
      : Connection("threads", c10d::ProcessGroup::BackendType::CUSTOM, threads),
        threads_(threads),
        group_(std::move(group)),
        me_(rank) {}

  c10::intrusive_ptr<ThreadsBackend> threads_;
  std::shared_ptr<ThreadsGroup> group_;
  size_t me_;
};

}  // namespace

ThreadsWorld::ThreadsWorld(int64_t size) : group_(std::make_shared<ThreadsGroup>(all_ranks(size))) {}

std::shared_ptr<Connection> ThreadsWorld::connection(int64_t rank) const {
  return std::make_shared<ThreadsConnection>(group_, static_cast<size_t>(rank));
}

void ThreadsWorld::mark_left(int64_t rank, const std::string& reason) const {
  group_->mark_left(static_cast<size_t>(rank), reason);
}

}  // namespace accelerate::comm
