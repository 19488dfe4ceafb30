// SPDX-License-Identifier: Apache-2.0
// The threads backend: ranks are threads of one process. c10d's interface to the hub where they meet.
#include "accelerate/comm/threads.hpp"

#include "accelerate/comm/group_impl.hpp"
#include "accelerate/comm/own_work.hpp"
#include "accelerate/comm/threads_hub.hpp"

namespace accelerate::comm {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using c10d::OpType;

namespace {

class ThreadsWork : public c10d::Work {
 public:
  ThreadsWork(std::shared_ptr<Hub> hub, std::shared_ptr<Slot> slot, size_t rank, Tensors outputs)
      : Work(-1, slot->type), hub_(std::move(hub)), slot_(std::move(slot)), me_(rank), outputs_(std::move(outputs)) {}

  bool isCompleted() override { return hub_->help(*slot_); }
  bool isSuccess() const override {
    const std::lock_guard lock(hub_->mutex);
    return slot_->over() && !slot_->error;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    hub_->finish(*slot_, me_, timeout);
    return true;
  }
  Tensors result() override { return outputs_; }

  /// A completed one: nobody but waiting ranks carries the operation out.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    try {
      wait(kNoTimeout);
      future->markCompleted(c10::IValue(outputs_));
    } catch (...) {
      future->setError(std::current_exception());
    }
    return future;
  }

 private:
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Slot> slot_;
  size_t me_;
  Tensors outputs_;
};

class ThreadsBackend : public c10d::Backend {
 public:
  ThreadsBackend(std::shared_ptr<Hub> hub, size_t rank)
      : Backend(static_cast<int>(rank), static_cast<int>(hub->size)), hub_(std::move(hub)), me_(rank) {}

  const std::string getBackendName() const override { return "threads"; }
  void announce(const Header& header, Agreement agreement) {
    header_ = header;
    agreement_ = agreement;
  }
  [[nodiscard]] Hub& hub() { return *hub_; }

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
    mine.header = std::exchange(header_, std::nullopt);
    auto slot = hub_->put(me_, type, op, static_cast<size_t>(root), agreement_, std::move(mine));
    return c10::make_intrusive<ThreadsWork>(hub_, std::move(slot), me_, std::move(outputs));
  }

  std::shared_ptr<Hub> hub_;
  size_t me_;
  std::optional<Header> header_;
  Agreement agreement_ = Agreement::operation_only;
};

/// A send is a copy into the mail, so it ends at once.
WorkPtr ThreadsBackend::send(Tensors& tensors, int to, int tag) {
  const std::lock_guard lock(hub_->mutex);
  hub_->mail[{me_, static_cast<size_t>(to), tag}].push_back(tensors.at(0).clone());
  hub_->changed.notify_all();
  return nullptr;
}

class MailWork : public c10d::Work {
 public:
  MailWork(std::shared_ptr<Hub> hub, size_t from, size_t to, int tag, at::Tensor tensor)
      : Work(-1, OpType::RECV), hub_(std::move(hub)), from_(from), to_(to), tag_(tag), tensor_(std::move(tensor)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(hub_->mutex);
    auto& box = hub_->mail[{from_, to_, tag_}];
    const auto come = [&] { return !box.empty() || hub_->left[from_]; };
    if (!hub_->changed.wait_for(lock, timeout, come)) throw DeadlinePassed({static_cast<int64_t>(from_)});
    if (box.empty()) throw PeerLost(fmt::format("rank {} {}", hub_->labels[from_], *hub_->left[from_]));
    const at::Tensor letter = box.front();
    box.pop_front();
    if (letter.nbytes() != tensor_.nbytes()) {
      throw PeerLost(fmt::format("rank {} sends {} bytes, this rank expects {}", hub_->labels[from_], letter.nbytes(),
                                 tensor_.nbytes()));
    }
    copy_bytes(tensor_, 0, letter, 0, byte_count(letter));
    return true;
  }

 private:
  std::shared_ptr<Hub> hub_;
  size_t from_;
  size_t to_;
  int tag_;
  at::Tensor tensor_;
};

WorkPtr ThreadsBackend::recv(Tensors& tensors, int from, int tag) {
  return c10::make_intrusive<MailWork>(hub_, static_cast<size_t>(from), me_, tag, tensors.at(0));
}

class ThreadsLink : public Link {
 public:
  ThreadsLink(std::shared_ptr<Hub> hub, size_t rank)
      : ThreadsLink(c10::make_intrusive<ThreadsBackend>(hub, rank), hub, rank) {}

  std::shared_ptr<Link> split(const Subgroup& part) override {
    const std::lock_guard lock(hub_->mutex);
    auto& child = hub_->parts[part.name];
    if (!child) {
      child = std::make_shared<Hub>(part.labels);
      hub_->members_of_parts[part.name] = part.ranks;
      for (size_t r = 0; r < part.ranks.size(); ++r) child->left[r] = hub_->left[static_cast<size_t>(part.ranks[r])];
    }
    return std::make_shared<ThreadsLink>(child, static_cast<size_t>(part.rank));
  }

  bool announce(const Header& header, Agreement agreement) override {
    threads_->announce(header, agreement);
    return true;
  }

  void give_up() noexcept override { hub_->leave(me_, "gave up after an error of its own"); }

 private:
  ThreadsLink(const c10::intrusive_ptr<ThreadsBackend>& threads, std::shared_ptr<Hub> hub, size_t rank)
      : Link("threads", c10d::ProcessGroup::BackendType::CUSTOM, threads),
        threads_(threads),
        hub_(std::move(hub)),
        me_(rank) {}

  c10::intrusive_ptr<ThreadsBackend> threads_;
  std::shared_ptr<Hub> hub_;
  size_t me_;
};

}  // namespace

ThreadsWorld::ThreadsWorld(int64_t size) : hub_(std::make_shared<Hub>(all_ranks(size))) {}

std::shared_ptr<Link> ThreadsWorld::link(int64_t rank) const {
  return std::make_shared<ThreadsLink>(hub_, static_cast<size_t>(rank));
}

void ThreadsWorld::leave(int64_t rank, const std::string& why) const { hub_->leave(static_cast<size_t>(rank), why); }

}  // namespace accelerate::comm
