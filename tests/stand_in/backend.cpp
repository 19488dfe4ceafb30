// SPDX-License-Identifier: Apache-2.0
#include "tests/stand_in/backend.hpp"

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "tests/stand_in/graph.hpp"
#include "tests/stand_in/tensors.hpp"
#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

using c10d::OpType;

std::atomic<bool> on_callers_stream{false};

class SideWork final : public c10d::Work {
 public:
  SideWork(const c10::Stream& side, OpType type, std::vector<at::Tensor> outputs)
      : Work(-1, type), done_(kType), side_(side), outputs_(std::move(outputs)) {
    done_.record(side);
  }
  bool isCompleted() override { return done_.query(); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout != kNoTimeout || opType_ == OpType::BARRIER) {
      done_.synchronize();  // NCCL blocks the host for a wait with a deadline and for a barrier
    }
    done_.block(current_stream(side_.device_index()));
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const c10::StreamGuard guard(side_);  // the future records its events on the side stream
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                           std::vector<c10::Device>{side_.device()});
    future->markCompleted(c10::IValue(outputs_));
    return future;
  }

 private:
  c10::Event done_;
  c10::Stream side_;
  std::vector<at::Tensor> outputs_;
};

int64_t number_of_meeting(c10d::Store& store, const std::string& name, int rank, int size) {
  if (rank == 0) store.set("standin/" + name, std::to_string(open_meeting(size)));
  return std::stoll(store.get_to_str("standin/" + name));
}

std::chrono::milliseconds or_own(std::chrono::milliseconds requested, std::chrono::milliseconds own) {
  return requested == c10d::kUnsetTimeout ? own : requested;
}

/// The host's count of collectives, which each replay of a captured collective continues.
std::function<uint64_t()> numbers(c10::DeviceIndex device, const std::shared_ptr<std::atomic<uint64_t>>& count) {
  const auto capture = current_capture(device);
  if (capture == nullptr) return [number = ++*count] { return number; };
  struct Waiting {
    std::mutex mutex;
    std::deque<uint64_t> numbers;
  };
  const auto waiting = std::make_shared<Waiting>();
  capture->at_replay.emplace_back([waiting, count] {
    const std::lock_guard lock(waiting->mutex);
    waiting->numbers.push_back(++*count);
  });
  return [waiting] {
    const std::lock_guard lock(waiting->mutex);
    const uint64_t number = waiting->numbers.front();
    waiting->numbers.pop_front();
    return number;
  };
}

std::vector<at::Tensor> all_as_cpu(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> host;
  for (const auto& tensor : tensors) host.push_back(as_cpu(tensor));
  return host;
}

}  // namespace

void set_on_callers_stream(bool on) { on_callers_stream = on; }

Backend::Backend(c10d::Store& store, const std::string& name, int rank, int size, c10::Device device,
                 std::chrono::milliseconds timeout)
    : c10d::Backend(rank, size),
      meeting_(join_meeting(number_of_meeting(store, name, rank, size))),
      side_(take_owned_stream(device.index())),
      timeout_(timeout) {}

Backend::~Backend() { restore_gradient(side_); }

void Backend::drain() { queue_of(side_).wait(); }

Backend::WorkPtr Backend::run(const std::string& what, const Tensors& reads, const Tensors& writes, OpType type,
                              std::function<void()> job, bool asynchronous) {
  std::vector<Touch> touches;
  for (const auto& tensor : reads) touch(touches, tensor, false);
  for (const auto& tensor : writes) touch(touches, tensor, true);
  if (!asynchronous && on_callers_stream) {
    launch(current_stream(side_.device_index()), what, touches, std::move(job));
    return {};
  }
  c10::Event ready(kType);
  ready.record(current_stream(side_.device_index()));
  ready.block(side_);
  for (const auto* list : {&reads, &writes}) {
    for (const auto& tensor : *list) tensor.record_stream(side_);
  }
  launch(side_, what, touches, std::move(job));
  return c10::make_intrusive<SideWork>(side_, type, writes);
}

template <typename Asked>
Backend::WorkPtr Backend::start(Part part, const Asked& options) {
  const auto reads = part.inputs;
  const auto writes = part.outputs;
  const auto type = part.type;
  part.inputs = all_as_cpu(reads);
  part.outputs = all_as_cpu(writes);
  return run(
      c10d::opTypeToString(type), reads, writes, type,
      [meeting = meeting_, rank = getRank(), number = numbers(side_.device_index(), collectives_),
       part = std::move(part),
       limit = or_own(options.timeout, timeout_)] { meeting->meet(rank, number(), part, limit); },
      options.asyncOp);
}

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return start({.type = OpType::ALLREDUCE, .outputs = tensors, .op = options.reduceOp}, options);
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return start({.type = OpType::REDUCE, .outputs = tensors, .op = options.reduceOp, .root = options.rootRank}, options);
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return start({.type = OpType::BROADCAST, .outputs = tensors, .root = options.rootRank}, options);
}

Backend::WorkPtr Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  return start({.type = OpType::ALLGATHER, .outputs = outputs.at(0), .inputs = inputs}, options);
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  return start({.type = OpType::_ALLGATHER_BASE, .outputs = {output}, .inputs = {input}}, options);
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  return start({.type = OpType::_REDUCE_SCATTER_BASE, .outputs = {output}, .inputs = {input}, .op = options.reduceOp},
               options);
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions& options) {
  return start({.type = OpType::ALLTOALL_BASE,
                .outputs = {output},
                .inputs = {input},
                .output_rows = output_rows,
                .input_rows = input_rows},
               options);
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  return start({.type = OpType::BARRIER}, options);
}

Backend::WorkPtr Backend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor letter = as_cpu(tensors.at(0));
  return run("send", tensors, {}, OpType::SEND,
             [meeting = meeting_, from = getRank(), to, tag, letter] { meeting->send(from, to, tag, letter.clone()); });
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int from, int tag) {
  const at::Tensor into = as_cpu(tensors.at(0));
  return run("recv", {}, tensors, OpType::RECV,
             [meeting = meeting_, from, to = getRank(), tag, into, limit = timeout_] {
               meeting->receive(from, to, tag, into, limit);
             });
}

}  // namespace stand_in
