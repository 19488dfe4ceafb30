// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/completable_work.hpp"

#include <ATen/record_function.h>

#include <exception>

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

c10::intrusive_ptr<c10::ivalue::Future> future_after_wait(c10d::Work& work, std::chrono::milliseconds timeout) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  try {
    work.wait(timeout);
    future->markCompleted(c10::IValue(work.result()));
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

}  // namespace accelerate::comm
