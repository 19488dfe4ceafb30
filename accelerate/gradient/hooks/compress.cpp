// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/hooks/compress.hpp"

#include <ATen/ops/empty.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::gradient {
namespace {

// Creates a bucket of the same shape with its own memory.
GradientBucket twin(const GradientBucket& bucket, at::ScalarType dtype) {
  GradientBucket other{.index = bucket.index, .is_last = bucket.is_last, .members = bucket.members};
  other.flat = at::empty(bucket.flat.sizes(), bucket.flat.options().dtype(dtype));
  other.gradients = other.flat.narrow(0, 0, bucket.gradients.numel());
  for (const at::Tensor& view : bucket.views) other.views.push_back(bucket.same_storage(view, other.flat));
  if (bucket.counts.defined()) other.counts = other.flat.narrow(0, bucket.gradients.numel(), bucket.counts.numel());
  return other;
}

class Compressed final : public BucketReducer {
 public:
  Compressed(at::ScalarType dtype, std::unique_ptr<BucketReducer> inner) : dtype_(dtype), inner_(std::move(inner)) {}

  void start(const GradientBucket& bucket, comm::Execution execution) override {
    if (!compresses(bucket)) return inner_->start(bucket, execution);
    GradientBucket& small = twin_of(bucket);
    small.share = bucket.share;
    small.flat.copy_(bucket.flat, /*non_blocking=*/true);
    inner_->start(small, execution);
  }

  void finish(const GradientBucket& bucket) override {
    if (!compresses(bucket)) return inner_->finish(bucket);
    const GradientBucket& small = twin_of(bucket);
    inner_->finish(small);
    bucket.flat.copy_(small.flat, /*non_blocking=*/true);
  }

  void restore_gradient(const GradientBucket& bucket, size_t member) override {
    inner_->restore_gradient(compresses(bucket) ? twin_of(bucket) : bucket, member);
  }

  void forget() override {
    twins_.clear();
    ++forgotten_;
    inner_->forget();
  }

  [[nodiscard]] std::string not_capturable_reason() const override { return inner_->not_capturable_reason(); }
  [[nodiscard]] int64_t memory_version() const override { return forgotten_ + inner_->memory_version(); }

  [[nodiscard]] int64_t bytes_communicated() const override { return inner_->bytes_communicated(); }
  [[nodiscard]] ReducerState state() const override { return inner_->state(); }
  void load_state(const ReducerState& state) override { inner_->load_state(state); }

 private:
  static bool compresses(const GradientBucket& bucket) {
    return bucket.flat.is_floating_point() && bucket.flat.element_size() > 2;
  }

  GradientBucket& twin_of(const GradientBucket& bucket) {
    const auto at = static_cast<size_t>(bucket.index);
    if (at >= twins_.size()) twins_.resize(at + 1);
    if (!twins_[at]) twins_[at] = twin(bucket, dtype_);
    return *twins_[at];
  }

  at::ScalarType dtype_;
  std::unique_ptr<BucketReducer> inner_;
  std::vector<std::optional<GradientBucket>> twins_;  ///< by index
  int64_t forgotten_ = 0;
};

CommHook wrapper(at::ScalarType dtype, CommHook hook) {
  return CommHook([dtype, hook = std::move(hook)](const comm::Group& group) -> std::unique_ptr<BucketReducer> {
    return std::make_unique<Compressed>(dtype, hook.reducer(group));
  });
}

}  // namespace

CommHook fp16_compress_hook() { return fp16_compress_wrapper({}); }
CommHook bf16_compress_hook() { return bf16_compress_wrapper({}); }
CommHook fp16_compress_wrapper(CommHook hook) { return wrapper(at::kHalf, std::move(hook)); }
CommHook bf16_compress_wrapper(CommHook hook) { return wrapper(at::kBFloat16, std::move(hook)); }

}  // namespace accelerate::gradient
