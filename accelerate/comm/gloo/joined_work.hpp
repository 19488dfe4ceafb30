// SPDX-License-Identifier: Apache-2.0
// Private: one handle for an all-gather that several operations execute.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <tuple>
#include <utility>
#include <vector>

namespace accelerate::comm {

class JoinedWork final : public c10d::Work {
 public:
  using Parts = std::vector<c10::intrusive_ptr<c10d::Work>>;

  JoinedWork(int rank, Parts parts, at::Tensor output)
      : Work(rank, c10d::OpType::_ALLGATHER_BASE), parts_(std::move(parts)), output_(std::move(output)) {}

  bool isCompleted() override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part->isCompleted(); });
  }
  [[nodiscard]] bool isSuccess() const override {
    return std::ranges::all_of(parts_, [](const auto& part) { return part->isSuccess(); });
  }
  [[nodiscard]] std::exception_ptr exception() const override {
    for (const auto& part : parts_) {
      if (const auto error = part->exception()) return error;
    }
    return nullptr;
  }
  /// A timeout of 0 means that of the operations, as in c10d.
  bool wait(std::chrono::milliseconds timeout) override {
    using Milliseconds = std::chrono::milliseconds;
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (const auto& part : parts_) {
      const auto left = std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now());
      part->wait(timeout == kNoTimeout ? kNoTimeout : std::max(left, Milliseconds(1)));
    }
    return true;
  }
  std::vector<at::Tensor> result() override { return {output_}; }
  [[nodiscard]] uint64_t getSequencenumber() const override { return parts_.back()->getSequencenumber(); }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& part : parts_) futures.push_back(part->getFuture());
    const auto outputs = [output = output_](c10::ivalue::Future& all) {
      std::ignore = all.value();  // throws the error of an operation
      return c10::IValue(std::vector<at::Tensor>{output});
    };
    return c10::collectAll(futures)->then(outputs, c10::ListType::create(c10::TensorType::get()));
  }

 private:
  Parts parts_;
  at::Tensor output_;
};

}  // namespace accelerate::comm
