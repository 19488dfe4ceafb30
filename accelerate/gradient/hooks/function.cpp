// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/hooks/function.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>

namespace accelerate::gradient {
namespace {

std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return fmt::format("[{}] {} on {}", fmt::join(tensor.sizes().vec(), ", "), c10::toString(tensor.scalar_type()),
                     tensor.device().str());
}

void check_result(const at::Tensor& result, const GradientBucket& bucket, const RankContext& place) {
  const at::Tensor& gradients = bucket.gradients;
  if (result.defined() && result.sizes() == gradients.sizes() && result.scalar_type() == gradients.scalar_type() &&
      result.device() == gradients.device()) {
    return;
  }
  base::fail(ErrorKind::usage, place, "backward",
             "the communication hook returned {} for bucket {}, which is {}; return a tensor like bucket.gradients",
             described(result), bucket.index, described(gradients));
}

class FunctionReducer final : public BucketReducer {
 public:
  FunctionReducer(std::shared_ptr<const ReduceFunction> reduce, comm::Group group)
      : reduce_(std::move(reduce)), group_(std::move(group)) {}

  void start(const GradientBucket& bucket, comm::Execution) override {
    const at::Tensor result = (*reduce_)(bucket, group_);
    check_result(result, bucket, group_.place());
    const at::Tensor flat = result.contiguous();
    for (const at::Tensor& view : bucket.views) view.copy_(bucket.same_storage(view, flat), true);
    if (bucket.counts.defined()) group_.all_reduce(bucket.counts);
    bytes_communicated_ += static_cast<int64_t>(bucket.flat.nbytes());
  }
  void finish(const GradientBucket&) override {}
  void forget() override {}
  [[nodiscard]] int64_t bytes_communicated() const override { return bytes_communicated_; }
  [[nodiscard]] std::string not_capturable_reason() const override {
    return "comm_hook's function runs on the host in each reduction; write a BucketReducer for one that may be "
           "captured";
  }

 private:
  std::shared_ptr<const ReduceFunction> reduce_;
  comm::Group group_;
  int64_t bytes_communicated_ = 0;
};

}  // namespace

CommHook comm_hook(ReduceFunction reduce) {
  if (!reduce) base::fail(ErrorKind::usage, {}, "comm_hook", "the function is empty, must reduce a bucket");
  return CommHook([shared = std::make_shared<const ReduceFunction>(std::move(reduce))](const comm::Group& group)
                      -> std::unique_ptr<BucketReducer> { return std::make_unique<FunctionReducer>(shared, group); });
}

}  // namespace accelerate::gradient
