// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/hooks/power_sgd.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/gradient/hooks/low_rank.hpp"

namespace accelerate::gradient {
namespace {

void check_power_sgd_options(const PowerSgdOptions& options, std::string_view hook) {
  if (options.matrix_approximation_rank < 1) {
    base::fail(ErrorKind::usage, {}, hook, "matrix_approximation_rank is {}, must be at least 1",
               options.matrix_approximation_rank);
  }
  if (options.start_step < 0) {
    base::fail(ErrorKind::usage, {}, hook, "start_step is {}, must be at least 0", options.start_step);
  }
  if (!(options.min_compression_rate > 0)) {
    base::fail(ErrorKind::usage, {}, hook, "min_compression_rate is {}, must be more than 0",
               options.min_compression_rate);
  }
}

int64_t numbers_of_factors(int64_t rows, int64_t columns, int64_t rank) {
  return (rows + columns) * columns_of_factors(rows, columns, rank);
}

// True if a parameter of this shape is sent as factors.
bool is_compressed(at::IntArrayRef shape, const PowerSgdOptions& options) {
  const int64_t all = c10::multiply_integers(shape);
  if (shape.size() < 2 || all == 0) return false;
  const auto factors =
      static_cast<double>(numbers_of_factors(shape[0], all / shape[0], options.matrix_approximation_rank));
  return factors * options.min_compression_rate < static_cast<double>(all);
}

// Working memory for the reduction of one bucket.
struct BucketFactors {
  std::vector<LowRankMatrix> matrices;
  at::Tensor all_p, all_q;                                // all factors, contiguous
  at::Tensor rest;                                        // uncompressed gradients and counts
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // uncompressed gradients and their views of rest
  comm::Pending p_under_way, rest_under_way;
};

// Uses the view itself if it is a matrix in memory, otherwise a copy with this shape.
LowRankMatrix matrix_of(const at::Tensor& view) {
  const int64_t rows = view.size(0);
  if (view.is_contiguous()) return {.m = view.view({rows, -1})};
  const at::Tensor own = at::empty({rows, view.numel() / rows}, view.options());
  return {.m = own, .copies = {{view, own.view(view.sizes())}}};
}

LowRankMatrix square_of(const GradientBucket& bucket) {
  const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(bucket.gradients.numel()))));
  LowRankMatrix matrix{.m = at::zeros({side, side}, bucket.gradients.options())};
  for (const at::Tensor& view : bucket.views) matrix.copies.emplace_back(view, bucket.same_storage(view, matrix.m));
  return matrix;
}

// Takes consecutive parts of a flat tensor.
class FlatViewCursor {
 public:
  explicit FlatViewCursor(at::Tensor flat) : flat_(std::move(flat)) {}
  at::Tensor next(at::IntArrayRef shape) {
    const int64_t length = c10::multiply_integers(shape);
    at_ += length;
    return flat_.narrow(0, at_ - length, length).view(shape);
  }

 private:
  at::Tensor flat_;
  int64_t at_ = 0;
};

class PowerSgd final : public BucketReducer {
 public:
  PowerSgd(const PowerSgdOptions& options, bool batched, const comm::Group& group)
      : options_(options), batched_(batched), group_(group), plain_(group) {}

  void start(const GradientBucket& bucket, comm::Execution execution) override {
    if (!compresses(bucket)) return plain_.start(bucket, execution);
    BucketFactors& factors = factors_of(bucket);
    for (const auto& [outside, inside] : factors.copies) inside.copy_(outside, /*non_blocking=*/true);
    factors.rest_under_way = send(factors.rest);
    for (size_t i = 0; i < factors.matrices.size(); ++i) {
      LowRankMatrix& matrix = factors.matrices[i];
      matrix.load();
      if (matrix.error.defined()) {
        matrix.m.add_(matrix.error);
        matrix.error.copy_(matrix.m, /*non_blocking=*/true);
      }
      matrix.warm ? orthogonalise(matrix.q) : fill_at_random(matrix.q, seed_of(bucket.index, i));
      matrix.warm = options_.warm_start;
      at::mm_out(matrix.p, matrix.m, matrix.q);
    }
    factors.p_under_way = send(factors.all_p);
  }

  void finish(const GradientBucket& bucket) override {
    compresses(bucket) ? finish_factors(bucket) : plain_.finish(bucket);
    if (!bucket.is_last) return;
    compressed_last_ = step_ >= options_.start_step;
    ++step_;
  }

  // The dropped result was sent, so it is missing in the error; adds it back.
  void restore_gradient(const GradientBucket& bucket, size_t member) override {
    if (!compressed_last_ || !options_.use_error_feedback) return;
    const at::Tensor& view = bucket.views[member];
    for (const LowRankMatrix& matrix : factors_of(bucket).matrices) {
      if (batched_) {
        add_to_error(bucket.same_storage(view, matrix.error), bucket.same_storage(view, matrix.m), bucket.share);
      } else if (matrix.name == name_of(bucket, member)) {
        add_to_error(matrix.error, matrix.m, bucket.share);
      }
    }
  }

  void forget() override {
    plain_.forget();
    factors_.clear();
    loaded_.clear();
  }

  // The host counts reductions, which decides whether one is compressed, and replaces factors by new tensors.
  [[nodiscard]] std::string not_capturable_reason() const override {
    return "PowerSGD keeps count and factors from one reduction to the next, which a replay would not";
  }

  // For buckets that have not been reduced since loading, the loaded state.
  [[nodiscard]] ReducerState state() const override {
    ReducerState all{{"step", at::full({}, step_, at::kLong)}};
    for (const auto& factors : factors_) {
      if (!factors) continue;
      for (const LowRankMatrix& matrix : factors->matrices) {
        if (matrix.warm) all.push_back({"q of " + matrix.name, matrix.q});
        if (matrix.error.defined()) all.push_back({"error of " + matrix.name, matrix.error});
      }
    }
    for (const auto& [name, tensor] : loaded_) all.push_back({name, tensor});
    return all;
  }

  void load_state(const ReducerState& state) override {
    factors_.clear();
    loaded_.clear();
    compressed_last_ = false;
    for (const auto& [name, tensor] : state) loaded_.emplace(name, tensor.clone());
    if (const auto step = loaded_.extract("step")) step_ = step.mapped().item<int64_t>();
  }

  [[nodiscard]] int64_t bytes_communicated() const override {
    return plain_.bytes_communicated() + bytes_communicated_;
  }

 private:
  static std::string name_of(const GradientBucket& bucket, size_t member) {
    return fmt::format("{}", bucket.members[member]);
  }
  static void add_to_error(const at::Tensor& error, const at::Tensor& sent, double share) {
    error.add_(sent.nan_to_num(0, 0, 0), share);
  }

  [[nodiscard]] bool compresses(const GradientBucket& bucket) const {
    return step_ >= options_.start_step && bucket.gradients.is_floating_point() && !bucket.views.empty();
  }

  [[nodiscard]] uint64_t seed_of(int64_t bucket, size_t matrix) const {
    uint64_t seed = options_.random_seed;
    for (const uint64_t part : {static_cast<uint64_t>(step_), static_cast<uint64_t>(bucket), uint64_t{matrix}}) {
      seed = (seed ^ part) * 0x9E3779B97F4A7C15U + 1;  // Fibonacci hashing: different parts give different seeds
    }
    return seed;
  }

  comm::Pending send(const at::Tensor& tensor) {
    bytes_communicated_ += static_cast<int64_t>(tensor.nbytes());
    return group_.all_reduce_async(tensor);
  }

  BucketFactors& factors_of(const GradientBucket& bucket) {
    const auto at = static_cast<size_t>(bucket.index);
    if (at >= factors_.size()) factors_.resize(at + 1);
    if (!factors_[at]) factors_[at] = lay_out_factors(bucket);
    return *factors_[at];
  }

  BucketFactors lay_out_factors(const GradientBucket& bucket) {
    BucketFactors factors;
    std::vector<at::Tensor> as_it_is;
    if (batched_) {
      factors.matrices.push_back(square_of(bucket));
      factors.matrices.back().name = fmt::format("{}", fmt::join(bucket.members, ","));
    }
    for (size_t i = 0; i < bucket.views.size() && !batched_; ++i) {
      const at::Tensor& view = bucket.views[i];
      if (is_compressed(view.sizes(), options_)) {
        factors.matrices.push_back(matrix_of(view));
        factors.matrices.back().name = name_of(bucket, i);
      } else {
        as_it_is.push_back(view);
      }
    }
    if (bucket.counts.defined()) as_it_is.push_back(bucket.counts);
    int64_t rest = 0, p = 0, q = 0;
    for (const at::Tensor& tensor : as_it_is) rest += tensor.numel();
    for (const LowRankMatrix& matrix : factors.matrices) {
      p += matrix.m.size(0) * columns(matrix);
      q += matrix.m.size(1) * columns(matrix);
    }
    const auto options = bucket.gradients.options();
    factors.rest = at::empty({rest}, options);
    factors.all_p = at::empty({p}, options);
    factors.all_q = at::empty({q}, options);
    FlatViewCursor of_rest(factors.rest), of_p(factors.all_p), of_q(factors.all_q);
    for (const at::Tensor& tensor : as_it_is) factors.copies.emplace_back(tensor, of_rest.next(tensor.sizes()));
    for (LowRankMatrix& matrix : factors.matrices) {
      matrix.p = of_p.next({matrix.m.size(0), columns(matrix)});
      matrix.q = of_q.next({matrix.m.size(1), columns(matrix)});
      if (options_.use_error_feedback) matrix.error = at::zeros_like(matrix.m);
      matrix.warm = use_loaded_state("q of " + matrix.name, matrix.q) && options_.warm_start;
      use_loaded_state("error of " + matrix.name, matrix.error);
    }
    return factors;
  }

  bool use_loaded_state(const std::string& name, const at::Tensor& into) {
    const auto found = loaded_.extract(name);
    if (!found || !into.defined() || found.mapped().sizes() != into.sizes()) return false;
    into.copy_(found.mapped());
    return true;
  }

  [[nodiscard]] int64_t columns(const LowRankMatrix& matrix) const {
    return columns_of_factors(matrix.m.size(0), matrix.m.size(1), options_.matrix_approximation_rank);
  }

  void finish_factors(const GradientBucket& bucket) {
    BucketFactors& factors = factors_of(bucket);
    factors.rest_under_way.wait();
    for (const auto& [outside, inside] : factors.copies) outside.copy_(inside, /*non_blocking=*/true);
    factors.p_under_way.wait();
    for (LowRankMatrix& matrix : factors.matrices) {
      orthogonalise(matrix.p);
      at::mm_out(matrix.q, matrix.m.t(), matrix.p);
    }
    send(factors.all_q).wait();
    for (LowRankMatrix& matrix : factors.matrices) {
      at::mm_out(matrix.m, matrix.p, matrix.q.t());
      if (matrix.error.defined()) matrix.error.sub_(matrix.m, bucket.share);
      matrix.store();
      // The gradients show an overflow once; in the factor it would persist.
      matrix.q.nan_to_num_(0, 0, 0);
      if (matrix.error.defined()) matrix.error.nan_to_num_(0, 0, 0);
    }
  }

  PowerSgdOptions options_;
  bool batched_;
  comm::Group group_;
  AllReduce plain_;
  std::vector<std::optional<BucketFactors>> factors_;  // by bucket index
  std::map<std::string, at::Tensor> loaded_;           // loaded state that no bucket has used yet
  int64_t step_ = 0;
  bool compressed_last_ = false;  // true if the last reduction was compressed
  int64_t bytes_communicated_ = 0;
};

CommHook make_hook(const PowerSgdOptions& options, bool batched) {
  check_power_sgd_options(options, batched ? "batched_power_sgd_hook" : "power_sgd_hook");
  return CommHook([options, batched](const comm::Group& group) -> std::unique_ptr<BucketReducer> {
    return std::make_unique<PowerSgd>(options, batched, group);
  });
}

}  // namespace

CommHook power_sgd_hook(const PowerSgdOptions& options) { return make_hook(options, false); }
CommHook batched_power_sgd_hook(const PowerSgdOptions& options) { return make_hook(options, true); }

int64_t power_sgd_numbers(at::ArrayRef<at::IntArrayRef> shapes, const PowerSgdOptions& options) {
  int64_t numbers = 0;
  for (const at::IntArrayRef shape : shapes) {
    const int64_t all = c10::multiply_integers(shape);
    numbers += is_compressed(shape, options)
                   ? numbers_of_factors(shape[0], all / shape[0], options.matrix_approximation_rank)
                   : all;
  }
  return numbers;
}

}  // namespace accelerate::gradient
