// SPDX-License-Identifier: Apache-2.0
// TrainerBase::evaluate() and predict().
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "accelerate/trainer/best_metric.hpp"
#include "accelerate/trainer/memory_delta.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {
namespace {

constexpr int kFilling = -100;  // PyTorch's losses ignore this value by default

/// True if the dtype can represent kFilling. Bool and unsigned dtypes cannot, so they are padded as int64.
bool has_filling(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return !c10::isIntegralType(type, /*includeBool=*/true) || c10::isSignedType(type);
}

/// False for uint64 values above the maximum of int64.
bool fits_int64(const at::Tensor& tensor) {
  return tensor.scalar_type() != at::kUInt64 || tensor.numel() == 0 || tensor.to(at::kLong).min().item<int64_t>() >= 0;
}

[[noreturn]] void fail_too_large(const std::string& what, std::string_view operation, const RankContext& place) {
  base::fail(
      ErrorKind::usage, place, operation,
      "{} of different length are filled with {} as int64, and uint64 values above {} do not fit into int64; set "
      "another dtype, or the same length in all batches",
      what, kFilling, std::numeric_limits<int64_t>::max());
}

/// Concatenates the rows of batches. Second dimensions are padded to the longest.
at::Tensor joined(std::vector<at::Tensor> parts, const std::string& what, const std::string& prefix,
                  const RankContext& place) {
  if (parts.empty()) return {};
  const auto first = parts.front();
  for (const auto& part : parts) {
    const auto inner = [](const at::Tensor& one) { return one.sizes().slice(std::min<size_t>(one.sizes().size(), 2)); };
    if (part.dim() == first.dim() && inner(part) == inner(first)) continue;
    base::fail(ErrorKind::usage, place, prefix,
               "{} are {} of one batch, {} of another; only the first two dimensions may differ", what, first.sizes(),
               part.sizes());
  }
  if (first.dim() > 1) {
    int64_t longest = 0;
    for (const auto& part : parts) longest = std::max(longest, part.size(1));
    // gathered_step() converts a batch to int64 if its lengths differ between ranks.
    const bool filled = std::ranges::any_of(parts, [&](const at::Tensor& part) {
      return part.size(1) != longest || part.scalar_type() != first.scalar_type();
    });
    for (auto& part : parts) {
      if (filled && !has_filling(part)) {  // all parts: at::cat cannot promote uint16, uint32 and uint64
        if (!fits_int64(part)) fail_too_large(what, prefix, place);
        part = part.to(at::kLong);
      }
      if (part.size(1) == longest) continue;
      std::vector<int64_t> padding(static_cast<size_t>(2 * (part.dim() - 1)), 0);
      padding.back() = longest - part.size(1);  // pairs (before, after), starting with the last dimension
      part = at::constant_pad_nd(part, padding, kFilling);
    }
  }
  return at::cat(parts);
}

/// Requires one row per example, because other rows would be lost silently when rows are cut and joined.
void check_rows(const at::Tensor& tensor, int64_t examples, std::string_view operation, const std::string& what,
                const RankContext& place) {
  if (tensor.defined() && tensor.dim() > 0 && tensor.size(0) == examples) return;
  base::fail(ErrorKind::usage, place, operation,
             "{} {} in a batch of {} examples; compute_metrics and predict() need one row per example", what,
             tensor.defined() ? fmt::format("{}", tensor.sizes()) : "undefined", examples);
}

/// Returns [B, 2], so that ranks gather both columns at once: the loss for each example, and 1 if there is a loss. NaN
/// counts as a loss.
at::Tensor rows_of(const at::Tensor& loss, int64_t examples, const RankContext& place) {
  if (!loss.defined()) return at::zeros({examples, 2}, at::kDouble);
  if (loss.numel() != 1) {
    base::fail(ErrorKind::usage, place, "compute_loss",
               "the loss has {} elements, must have 1; take its mean() or sum() first", loss.numel());
  }
  const at::Tensor value = loss.to(at::kDouble).reshape({1});
  return at::cat({value, at::ones_like(value)}).repeat({examples, 1});
}

Metrics prefixed(const Metrics& metrics, const std::string& prefix) {
  Metrics named;
  for (const auto& [name, value] : metrics) {
    named[name.starts_with(prefix + "_") ? name : prefix + "_" + name] = value;
  }
  return named;
}

/// Joins the rows of the ranks that read different batches. Collective.
std::vector<at::Tensor> gathered_once(std::vector<at::Tensor> rows, const Accelerator& accelerator) {
  const comm::Group& group = accelerator.data_parallel_group();
  if (group.size() == accelerator.num_processes()) return accelerator.gather(rows);
  for (at::Tensor& tensor : rows) tensor = group.all_gather(tensor);
  return rows;
}

/// Number of rows of this rank's batch without padding. Collective for the last batch.
int64_t valid_rows(const state::BatchInfo& info, int64_t rows, const Accelerator& accelerator) {
  const comm::Group& group = accelerator.data_parallel_group();
  if (!info.last || info.remainder <= 0 || group.size() == 1) return rows;
  const int64_t rank = group.rank(), ranks = group.size();
  if (info.strided) return std::clamp<int64_t>((info.remainder - rank + ranks - 1) / ranks, 0, rows);
  // A user-defined sampler can give ranks batches of different sizes.
  const at::Tensor of_all = group.all_gather(at::full({1}, rows, at::kLong));
  const int64_t real = info.remainder - of_all.slice(0, 0, rank).sum().item<int64_t>();
  return std::clamp<int64_t>(real, 0, rows);
}

}  // namespace

struct TrainerBase::Evaluated {
  EvalPrediction prediction{};
  Metrics metrics{};
};

/// Puts the model into evaluation mode for the lifetime of this object. Afterwards each layer has its previous mode, so
/// layers that the program froze with eval() stay frozen.
class TrainerBase::EvaluationMode {
 public:
  explicit EvaluationMode(TrainerBase& trainer)
      : trainer_(trainer), put_layers_back_(trainer.kept_modes()), before_(trainer.set_training(false)) {}
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode() {
    trainer_.set_training(before_);  // sets all layers, so their own modes follow
    put_layers_back_();
  }

 private:
  TrainerBase& trainer_;
  std::function<void()> put_layers_back_;
  bool before_;
};

/// Returns the label_names in the batch.
/// \param all  If true, a missing label is an error.
std::vector<std::string> TrainerBase::labels_of(const Inputs& inputs, bool all) const {
  std::vector<std::string> labels;
  for (const auto& name : arguments_.label_names) {
    if (all && !inputs.contains(name)) {
      base::fail(ErrorKind::usage, accelerator_.place(), "label_names",
                 "there is no \"{}\" in the batch, the collate function returned {}; compute_metrics needs label_names",
                 name, quoted_names(inputs.names()));
    }
    if (inputs.contains(name)) labels.push_back(name);
  }
  return labels;
}

/// \param real  Rows without padding. If 0, the model still runs, because other ranks wait for this rank's forward.
/// \returns rows_of() the loss, then the tensors to keep: of all ranks, without padding, on the CPU.
std::vector<at::Tensor> TrainerBase::gathered_step(const Inputs& inputs, int64_t real, Keep keep,
                                                   const std::vector<std::string>& labels) {
  const RankContext& place = accelerator_.place();
  auto [loss, outputs] = using_inputs_at(place, [&] { return predict_on(inputs); });
  const int64_t examples = inputs.examples();
  std::vector<at::Tensor> mine{rows_of(loss, examples, place)};
  if (keep != Keep::losses) {
    if (!outputs.defined()) {
      base::fail(ErrorKind::usage, place, "compute_loss",
                 "the outputs are undefined; compute_metrics and predict() need them: return {{loss, outputs}}");
    }
    check_rows(outputs, examples, "compute_loss", "the outputs are", place);
    mine.push_back(outputs);
    for (const auto& name : labels) {
      mine.push_back(using_inputs_at(place, [&] { return inputs[name]; }));
      check_rows(mine.back(), examples, "label_names", fmt::format("\"{}\" is", name), place);
    }
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    auto& tensor = mine[i];
    tensor = tensor.narrow(0, 0, std::min(real, tensor.size(0)));
    if (i > 0 && tensor.dim() > 1 && accelerator_.use_distributed()) {  // the loss always has 2 columns
      if (!has_filling(tensor)) {
        const auto lengths = accelerator_.gather(at::full({1}, tensor.size(1), tensor.options().dtype(at::kLong)));
        if (!lengths.eq(lengths[0]).all().item<bool>()) {
          const auto fits = at::full({1}, fits_int64(tensor) ? 1 : 0, lengths.options());
          if (!accelerator_.gather(fits).all().item<bool>()) {  // refused on all ranks if any rank has one
            if (i == 1) fail_too_large("the outputs", "compute_loss", place);
            fail_too_large(fmt::format("\"{}\"", labels[i - 2]), "label_names", place);
          }
          tensor = tensor.to(at::kLong);
        }
      }
      tensor = accelerator_.pad_across_processes(tensor, {.dim = 1, .pad_index = kFilling});
    }
  }
  auto all = gathered_once(mine, accelerator_);
  for (auto& tensor : all) tensor = tensor.cpu();
  return all;
}

TrainerBase::Evaluated TrainerBase::run_evaluation(const Dataset& dataset, const std::string& prefix, Keep keep) {
  // Within train(), a new measurement would reset the peaks of the training's own.
  std::optional<MemoryDelta> memory;
  if (!arguments_.skip_memory_metrics && !training_) memory.emplace(accelerator_);
  prepare_model();
  const auto loader = accelerator_.prepare(get_eval_dataloader(dataset));
  const at::NoGradGuard no_grad;
  const EvaluationMode mode(*this);
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::vector<at::Tensor>> columns;  // losses, outputs, labels
  std::vector<std::string> labels;
  int64_t steps = 0;
  state_.prediction_steps = loader.size();
  for (const Inputs& inputs : loader) {
    if (columns.empty() && keep != Keep::losses) labels = labels_of(inputs, /*all=*/keep == Keep::labelled);
    // Padding is cut off before the step, because it would count in the mean of the loss.
    const int64_t real = valid_rows(loader.info(), inputs.examples(), accelerator_);
    auto gathered = gathered_step(real > 0 ? inputs.first(real) : inputs, real, keep, labels);
    columns.resize(gathered.size());
    for (size_t i = 0; i < gathered.size(); ++i) columns[i].push_back(std::move(gathered[i]));
    ++steps;
    fire(&TrainerCallback::on_prediction_step);
  }
  if (columns.empty()) {
    base::fail(ErrorKind::usage, accelerator_.place(), prefix, "the data set has no examples");
  }
  Evaluated result;
  const RankContext& place = accelerator_.place();
  const at::Tensor losses = joined(std::move(columns[0]), "the losses", prefix, place);
  if (keep != Keep::losses) {
    result.prediction.predictions = joined(std::move(columns[1]), "the outputs", prefix, place);
    for (size_t i = 0; i < labels.size(); ++i) {
      result.prediction.label_ids.emplace(
          labels[i], joined(std::move(columns[i + 2]), fmt::format("\"{}\"", labels[i]), prefix, place));
    }
    const bool labelled = labels.size() == arguments_.label_names.size();
    if (parts_.compute_metrics && labelled)
      result.metrics = prefixed(parts_.compute_metrics(result.prediction), prefix);
  }
  const at::Tensor known = losses.select(1, 1).to(at::kBool);
  if (known.any().item<bool>()) {
    result.metrics[prefix + "_loss"] = losses.select(1, 0).masked_select(known).mean().item<double>();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  result.metrics.merge(speed_metrics(prefix, seconds.count(), losses.size(0), steps));
  if (memory) result.metrics.merge(memory->metrics(prefix));
  return result;
}

Metrics TrainerBase::evaluate(const Dataset& dataset, const std::string& prefix) {
  const Dataset& chosen = dataset ? dataset : parts_.eval_dataset;
  if (chosen == nullptr) {
    base::fail(ErrorKind::usage, accelerator_.place(), "evaluate",
               "eval_dataset is not set; set it in TrainerParts, or pass one to evaluate()");
  }
  auto metrics = run_evaluation(chosen, prefix, parts_.compute_metrics ? Keep::labelled : Keep::losses).metrics;
  const bool for_best = training_ && chosen == parts_.eval_dataset && prefix == "eval";
  if (for_best) decide_by_rank_0(metrics);
  log(metrics);
  if (for_best) note_best(metrics);
  fire(&TrainerCallback::on_evaluate, metrics, for_best);
  metrics["epoch"] = state_.epoch;
  return metrics;
}

PredictionOutput TrainerBase::predict(const Dataset& dataset, const std::string& prefix) {
  if (dataset == nullptr) base::fail(ErrorKind::usage, accelerator_.place(), "predict", "the data set is null");
  auto [prediction, metrics] = run_evaluation(dataset, prefix, Keep::outputs);
  fire(&TrainerCallback::on_predict, metrics);
  return {std::move(prediction.predictions), std::move(prediction.label_ids), std::move(metrics)};
}

}  // namespace accelerate::trainer
