// SPDX-License-Identifier: Apache-2.0
#include "accelerate/process_info.hpp"

#include <ATen/ops/full.h>

#include <cstdio>

#include "accelerate/comm/error_context.hpp"

namespace accelerate {

void ProcessInfo::wait_for_everyone() const {
  prepared::complete_steps(*accelerator_state_);
  job::barrier_for_call(accelerator_state_->mesh.world, "wait_for_everyone");
}

DistributedType ProcessInfo::distributed_type() const {
  if (num_processes() == 1) return DistributedType::no;
  if (accelerator_state_->sharding != sharding::ShardingStrategy::no_shard) return DistributedType::fsdp;
  return device().is_cpu() ? DistributedType::multi_cpu : DistributedType::multi_gpu;
}

bool ProcessInfo::check_trigger() {
  const auto set = at::full({1}, trigger_ ? 1 : 0, at::kLong);
  comm::with_operation_context("check_trigger", "it is unknown whether any rank set it", place(),
                               [&] { accelerator_state_->mesh.world.all_reduce(set, comm::ReduceOp::max); });
  trigger_ = false;
  return set.item<int64_t>() != 0;
}

std::vector<std::string> ProcessInfo::gather_object(std::string_view bytes) const {
  return comm::with_operation_context("gather_object", "the ranks' objects are not put together", place(),
                                      [&] { return accelerator_state_->mesh.world.all_gather_bytes(bytes); });
}

std::string ProcessInfo::broadcast_object(std::string_view bytes, int64_t from_process) const {
  return comm::with_operation_context("broadcast_object", "the object is not handed out", place(), [&] {
    return accelerator_state_->mesh.world.broadcast_bytes(bytes, from_process);
  });
}

std::vector<std::string> ProcessInfo::broadcast_object_list(std::vector<std::string> objects,
                                                            int64_t from_process) const {
  for (std::string& bytes : objects) bytes = broadcast_object(bytes, from_process);
  return objects;
}

void ProcessInfo::write_stdout(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace accelerate
