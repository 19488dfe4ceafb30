// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/group.hpp"

#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/operations/data_movement.hpp"
#include "accelerate/comm/operations/objects_as_bytes.hpp"
#include "accelerate/comm/operations/point_to_point.hpp"
#include "accelerate/comm/operations/reductions.hpp"
#include "accelerate/comm/operations/subgroups.hpp"

namespace accelerate::comm {

Group::Group() : core_(std::make_shared<GroupCore>()) {}
Group::Group(std::shared_ptr<GroupCore> core) : core_(std::move(core)) {}

int64_t Group::rank() const { return core_->rank; }
int64_t Group::size() const { return core_->size; }
const std::string& Group::backend() const { return core_->backend_name; }
const RankContext& Group::place() const { return core_->place; }
std::chrono::milliseconds Group::timeout() const { return core_->timeout; }
std::optional<at::Device> Group::device() const { return core_->device; }
c10::intrusive_ptr<c10d::ProcessGroup> Group::process_group() const { return core_->process_group; }
void Group::check(std::string_view operation) const { core_->check(operation); }

void Group::all_reduce(const at::Tensor& tensor, ReduceOp op) const { comm::all_reduce(core_, tensor, op); }
Pending Group::all_reduce_async(const at::Tensor& tensor, ReduceOp op, Execution execution) const {
  return Pending(comm::all_reduce_async(core_, tensor, op, execution));
}
void Group::reduce(const at::Tensor& tensor, ReduceOp op, int64_t root) const { comm::reduce(core_, tensor, op, root); }
at::Tensor Group::reduce_scatter(const at::Tensor& input, ReduceOp op) const {
  return comm::reduce_scatter(core_, input, op);
}
Pending Group::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
  return Pending(comm::reduce_scatter_async(core_, output, input, op));
}

void Group::broadcast(const at::Tensor& tensor, int64_t root) const { comm::broadcast(core_, tensor, root); }
Pending Group::broadcast_async(const at::Tensor& tensor, int64_t root) const {
  return Pending(comm::broadcast_async(core_, tensor, root));
}
at::Tensor Group::all_gather(const at::Tensor& tensor) const { return comm::all_gather(core_, tensor); }
std::vector<at::Tensor> Group::all_gather_list(const at::Tensor& tensor) const {
  return comm::all_gather_list(core_, tensor);
}
Pending Group::all_gather_async(const at::Tensor& output, const at::Tensor& input) const {
  return Pending(comm::all_gather_async(core_, output, input));
}
std::vector<at::Tensor> Group::gather(const at::Tensor& tensor, int64_t root) const {
  return comm::gather(core_, tensor, root);
}
at::Tensor Group::scatter(const std::vector<at::Tensor>& tensors, int64_t root) const {
  return comm::scatter(core_, tensors, root);
}
std::vector<at::Tensor> Group::all_to_all(const std::vector<at::Tensor>& tensors) const {
  return comm::all_to_all(core_, tensors);
}

void Group::send(const at::Tensor& tensor, int64_t to, int64_t tag) const { comm::send(core_, tensor, to, tag); }
void Group::recv(const at::Tensor& tensor, int64_t from, int64_t tag) const { comm::recv(core_, tensor, from, tag); }
Pending Group::send_async(const at::Tensor& tensor, int64_t to, int64_t tag) const {
  return Pending(comm::send_async(core_, tensor, to, tag));
}
Pending Group::recv_async(const at::Tensor& tensor, int64_t from, int64_t tag) const {
  return Pending(comm::recv_async(core_, tensor, from, tag));
}
void Group::barrier() const { comm::barrier(core_); }

std::vector<std::string> Group::all_gather_bytes(std::string_view bytes) const {
  return comm::all_gather_bytes(core_, bytes);
}
std::vector<std::string> Group::gather_bytes(std::string_view bytes, int64_t root) const {
  return comm::gather_bytes(core_, bytes, root);
}
std::string Group::broadcast_bytes(std::string_view bytes, int64_t root) const {
  return comm::broadcast_bytes(core_, bytes, root);
}

Group Group::split(int64_t color, std::string_view ranks_name) const {
  return Group(comm::split(core_, color, ranks_name));
}
Group Group::duplicate() const { return Group(comm::duplicate(core_)); }

bool Pending::done() const {
  return !operation_ || operation_->finished || (operation_->work && operation_->work->isCompleted());
}

void Pending::wait() {
  if (operation_ && !operation_->finished) operation_->wait(operation_->group->timeout);
}

void Pending::wait(std::chrono::milliseconds timeout) {
  if (operation_) operation_->wait(timeout);
}

}  // namespace accelerate::comm
