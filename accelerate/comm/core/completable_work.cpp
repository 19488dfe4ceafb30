// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/completable_work.hpp"

#include <ATen/record_function.h>

namespace accelerate::comm {

const char* title_of(c10d::OpType type) {
  using c10d::OpType;
  if (!at::hasCallbacks()) return nullptr;  // c10d allocates if a title is given, even without a profiler
  switch (type) {
    case OpType::ALLREDUCE:
      return "comm:all_reduce";
    case OpType::BROADCAST:
      return "comm:broadcast";
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
      return "comm:all_gather";
    case OpType::REDUCE:
      return "comm:reduce";
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
      return "comm:reduce_scatter";
    case OpType::GATHER:
      return "comm:gather";
    case OpType::SCATTER:
      return "comm:scatter";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return "comm:all_to_all";
    case OpType::BARRIER:
      return "comm:barrier";
    default:
      return "comm:message";
  }
}

}  // namespace accelerate::comm
