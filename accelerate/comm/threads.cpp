// SPDX-License-Identifier: Apache-2.0
// The threads backend: ranks are threads of one process. An operation is a slot that all ranks put their tensors in;
// whoever waits helps to carry it out, in tasks whose result does not depend on who does them.
#include "accelerate/comm/threads.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "accelerate/comm/group_impl.hpp"
#include "accelerate/comm/kernel.hpp"
#include "accelerate/comm/own_work.hpp"

namespace accelerate::comm {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using c10d::OpType;

namespace {

/// Below this many elements one task is quicker than one per rank.
constexpr int64_t kFewElements = 4096;

char* at_byte(const at::Tensor& tensor, int64_t byte) { return static_cast<char*>(tensor.mutable_data_ptr()) + byte; }
int64_t byte_count(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

void copy_bytes(const at::Tensor& to, int64_t to_byte, const at::Tensor& from, int64_t from_byte, int64_t count) {
  if (count > 0) std::memmove(at_byte(to, to_byte), at_byte(from, from_byte), static_cast<size_t>(count));
}

}  // namespace

/// What one rank brings to an operation.
struct Contribution {
  Tensors outputs{};
  Tensors inputs{};
  std::vector<int64_t> output_rows{};  ///< all-to-all
  std::vector<int64_t> input_rows{};
  std::optional<Header> header{};
};

struct Slot {
  OpType type = OpType::UNKNOWN;
  ReduceOp op = ReduceOp::sum;
  size_t root = 0;
  Agreement agreement = Agreement::operation_only;
  std::vector<std::optional<Contribution>> ranks;
  size_t arrived = 0;
  size_t tasks = 0;
  size_t begun = 0;
  size_t ended = 0;
  std::exception_ptr error;

  [[nodiscard]] bool complete() const { return arrived == ranks.size(); }
  [[nodiscard]] bool over() const { return error || (complete() && ended == tasks); }
  Contribution& of(size_t rank) { return *ranks[rank]; }

  /// All ranks came: do they fit together, and how many tasks is it?
  void plan(std::span<const int64_t> labels);
  void carry_out(size_t task);
  /// All is done: each tensor is its rank's alone again, before that rank goes on.
  void let_go();

 private:
  void reduce_chunk(size_t task);
  void reduce_rows(size_t rank);
  void exchange(size_t rank);
};

void Slot::plan(std::span<const int64_t> labels) {
  std::vector<Header> headers;
  for (const auto& each : ranks) {
    if (each->header) headers.push_back(*each->header);
  }
  if (headers.size() == ranks.size()) {
    for (size_t r = 0; r < headers.size(); ++r) {
      if (!disagreement(headers, r, agreement, labels)) continue;
      error = std::make_exception_ptr(HeadersDiffer(headers, agreement));
      return;
    }
  }
  const bool chunked = type == OpType::ALLREDUCE && of(0).outputs.at(0).numel() >= kFewElements;
  const bool whole = type == OpType::REDUCE || type == OpType::ALLREDUCE;
  tasks = type == OpType::BARRIER ? 0 : whole && !chunked ? 1 : ranks.size();
}

void Slot::let_go() {
  for (auto& each : ranks) {
    each->inputs.clear();
    each->outputs.clear();
  }
}

void Slot::carry_out(size_t task) {
  switch (type) {
    case OpType::ALLREDUCE:
    case OpType::REDUCE:
      return reduce_chunk(task);
    case OpType::_REDUCE_SCATTER_BASE:
      return reduce_rows(task);
    case OpType::BROADCAST:
      for (size_t i = 0; task != root && i < of(task).outputs.size(); ++i) {
        copy_bytes(of(task).outputs[i], 0, of(root).outputs[i], 0, byte_count(of(task).outputs[i]));
      }
      return;
    case OpType::_ALLGATHER_BASE:
      for (size_t r = 0; r < ranks.size(); ++r) {
        const auto& input = of(r).inputs[0];
        copy_bytes(of(task).outputs[0], static_cast<int64_t>(r) * byte_count(input), input, 0, byte_count(input));
      }
      return;
    case OpType::ALLGATHER:
      for (size_t r = 0; r < ranks.size(); ++r) {
        copy_bytes(of(task).outputs[r], 0, of(r).inputs[0], 0, byte_count(of(r).inputs[0]));
      }
      return;
    case OpType::ALLTOALL_BASE:
      return exchange(task);
    default:
      return;
  }
}

/// Chunk r of all tensors, summed in rank order whoever does it, so that every run gives the same bits.
void Slot::reduce_chunk(size_t task) {
  for (size_t i = 0; i < of(0).outputs.size(); ++i) {
    const auto& first = of(0).outputs[i];
    const auto item = static_cast<int64_t>(first.element_size());
    const int64_t begin = first.numel() * static_cast<int64_t>(task) / static_cast<int64_t>(tasks);
    const int64_t end = first.numel() * static_cast<int64_t>(task + 1) / static_cast<int64_t>(tasks);
    const int64_t bytes = (end - begin) * item;
    if (bytes == 0) continue;
    std::vector<char> sum(static_cast<size_t>(bytes));
    std::memcpy(sum.data(), at_byte(first, begin * item), sum.size());
    for (size_t r = 1; r < ranks.size(); ++r) {
      reduce_into(sum.data(), at_byte(of(r).outputs[i], begin * item), end - begin, first.scalar_type(), op);
    }
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (type == OpType::REDUCE && r != root) continue;
      std::memcpy(at_byte(of(r).outputs[i], begin * item), sum.data(), sum.size());
    }
  }
}

void Slot::reduce_rows(size_t rank) {
  const auto& output = of(rank).outputs[0];
  const int64_t begin = static_cast<int64_t>(rank) * byte_count(output);
  copy_bytes(output, 0, of(0).inputs[0], begin, byte_count(output));
  for (size_t r = 1; r < ranks.size(); ++r) {
    reduce_into(at_byte(output, 0), at_byte(of(r).inputs[0], begin), output.numel(), output.scalar_type(), op);
  }
}

void Slot::exchange(size_t rank) {
  const auto row_bytes = [](const at::Tensor& tensor) {
    return tensor.dim() == 0 || tensor.size(0) == 0 ? int64_t{0} : byte_count(tensor) / tensor.size(0);
  };
  const auto rows_for = [this](const Contribution& from, size_t to) {
    return from.input_rows.empty() ? from.inputs[0].size(0) / static_cast<int64_t>(ranks.size()) : from.input_rows[to];
  };
  int64_t into = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto& from = of(r);
    int64_t begin = 0;
    for (size_t before = 0; before < rank; ++before) begin += rows_for(from, before);
    const int64_t bytes = rows_for(from, rank) * row_bytes(from.inputs[0]);
    copy_bytes(of(rank).outputs[0], into, from.inputs[0], begin * row_bytes(from.inputs[0]), bytes);
    into += bytes;
  }
}

/// What the ranks of one group share.
struct Hub {
  explicit Hub(std::vector<int64_t> job_ranks)
      : size(job_ranks.size()), labels(std::move(job_ranks)), left(size), next(size, 0) {}

  const size_t size;
  const std::vector<int64_t> labels;  ///< the ranks' numbers in the job, for messages
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::optional<std::string>> left;  ///< why a rank will come to no operation any more
  std::vector<uint64_t> next;                    ///< the operation that each rank begins next
  std::map<uint64_t, std::shared_ptr<Slot>> slots;
  std::map<std::tuple<size_t, size_t, int>, std::deque<at::Tensor>> mail;  ///< from, to, tag
  std::map<std::string, std::shared_ptr<Hub>> parts;
  std::map<std::string, std::vector<int64_t>> members_of_parts;

  void leave(size_t rank, const std::string& why);
  std::shared_ptr<Slot> put(size_t rank, OpType type, ReduceOp op, size_t root, Agreement agreement, Contribution mine);
  /// Until the slot is over, helping. Throws as c10d::Work does.
  void finish(Slot& slot, size_t rank, std::chrono::milliseconds timeout);
  bool help(Slot& slot);

 private:
  void give_up_when_someone_left(Slot& slot, size_t rank) const;
};

void Hub::leave(size_t rank, const std::string& why) {
  std::vector<std::pair<std::shared_ptr<Hub>, size_t>> below;
  {
    const std::lock_guard lock(mutex);
    if (!left[rank]) left[rank] = why;
    for (const auto& [name, part] : parts) {
      const auto& members = members_of_parts[name];
      const auto at = std::find(members.begin(), members.end(), static_cast<int64_t>(rank));
      if (at != members.end()) below.emplace_back(part, static_cast<size_t>(at - members.begin()));
    }
    changed.notify_all();
  }
  for (const auto& [part, part_rank] : below) part->leave(part_rank, why);
}

std::shared_ptr<Slot> Hub::put(size_t rank, OpType type, ReduceOp op, size_t root, Agreement agreement,
                               Contribution mine) {
  const std::lock_guard lock(mutex);
  const uint64_t number = next[rank]++;
  auto& slot = slots[number];
  if (!slot) {
    slot = std::make_shared<Slot>();
    slot->type = type;
    slot->op = op;
    slot->root = root;
    slot->agreement = agreement;
    slot->ranks.resize(size);
  }
  if (slot->type != type && !slot->error) {
    slot->error = std::make_exception_ptr(PeerLost(fmt::format(
        "another rank calls {} here, this one {}", c10d::opTypeToString(slot->type), opTypeToString(type))));
  }
  slot->ranks[rank] = std::move(mine);
  auto kept = slot;
  if (++slot->arrived == size) {
    kept->plan(labels);
    slots.erase(number);
  }
  changed.notify_all();
  return kept;
}

bool Hub::help(Slot& slot) {
  std::unique_lock lock(mutex);
  while (slot.complete() && !slot.error && slot.begun < slot.tasks) {
    const size_t task = slot.begun++;
    lock.unlock();
    slot.carry_out(task);
    lock.lock();
    if (++slot.ended < slot.tasks) continue;
    slot.let_go();
    changed.notify_all();
  }
  return slot.over();
}

void Hub::give_up_when_someone_left(Slot& slot, size_t rank) const {
  for (size_t r = 0; r < size; ++r) {
    if (r == rank || slot.ranks[r] || !left[r]) continue;
    throw PeerLost(fmt::format("rank {} {}", labels[r], *left[r]));
  }
}

void Hub::finish(Slot& slot, size_t rank, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  {
    std::unique_lock lock(mutex);
    while (!slot.complete() && !slot.error) {
      give_up_when_someone_left(slot, rank);
      const bool bounded = timeout > std::chrono::milliseconds(0);
      if (!bounded) {
        changed.wait(lock);
      } else if (changed.wait_until(lock, deadline) == std::cv_status::timeout && !slot.complete() && !slot.error) {
        std::vector<int64_t> missing;
        for (size_t r = 0; r < size; ++r) {
          if (!slot.ranks[r]) missing.push_back(static_cast<int64_t>(r));
        }
        throw DeadlinePassed(std::move(missing));
      }
    }
  }
  help(slot);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return slot.over(); });
  if (slot.error) std::rethrow_exception(slot.error);
}

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
  void announce(Header header, Agreement agreement) {
    header_ = std::move(header);
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
