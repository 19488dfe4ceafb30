// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/ema.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/accumulate.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <tuple>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"

namespace accelerate::optim {
namespace {

constexpr const char* kEmaCall = "ExponentialMovingAverage";

void check_ema(const EmaOptions& options) {
  if (!(options.decay >= 0 && options.decay <= 1)) {
    base::fail(ErrorKind::usage, {}, kEmaCall, "decay is {}, must be from 0 to 1", options.decay);
  }
  if (!(options.warmup_gamma > 0)) {
    base::fail(ErrorKind::usage, {}, kEmaCall, "warmup_gamma is {}, must be above 0", options.warmup_gamma);
  }
  if (!(options.warmup_power > 0)) {
    base::fail(ErrorKind::usage, {}, kEmaCall, "warmup_power is {}, must be above 0", options.warmup_power);
  }
}

at::ScalarType averaged_in(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

std::optional<int64_t> version_of(const at::Tensor& weight) {
  if (weight.is_inference()) return {};
  return static_cast<int64_t>(weight._version());
}

void set_version(const at::Tensor& weight, int64_t version) {
  auto counter = weight.unsafeGetTensorImpl()->version_counter();  // a copy that shares the counter
  counter.set_version(version);
}

// Version for weights while averages are swapped in. Regular updates do not reach these numbers, and each swap has its
// own, so a graph or master from a swap is never mistaken for one of the model's own weights.
int64_t next_version_of_averages() {
  static std::atomic<uint32_t> swaps = 0;
  constexpr uint32_t apart = 1 << 12, half = uint32_t{1} << 31;  // the counter has 32 bits
  return half + ++swaps % (half / apart) * apart;
}

// LibTorch's Module::to(dtype) converts BatchNorm's count to floating point.
bool is_copied(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.is_floating_point() && !tensor.is_complex()) return true;
  return name == "num_batches_tracked" || name.ends_with(".num_batches_tracked");
}

// The host waits for a copy to its memory.
at::Tensor moved_to(at::Device device, const at::Tensor& scalar) {
  return scalar.to(device, scalar.scalar_type(), /*non_blocking=*/!device.is_cpu());
}

// The part of a sharded parameter is a tensor of its own, even if this rank has all elements.
bool is_part(const state::ParameterShard& param_shard) {
  if (param_shard.value.numel() != c10::multiply_integers(param_shard.sizes)) return true;
  return param_shard.key != nullptr && param_shard.key != param_shard.value.unsafeGetTensorImpl();
}

at::Tensor start_of(const at::Tensor& weight) { return weight.detach().to(averaged_in(weight.scalar_type())).clone(); }

}  // namespace

double ema_weight(const EmaOptions& options, int64_t n) {
  const double least = 1 - options.decay;
  const auto update = static_cast<double>(n);
  switch (options.warmup) {
    case EmaWarmup::ratio:
      return std::max(least, 9 / (10 + update));  // 1 - (1 + n) / (10 + n)
    case EmaWarmup::power:
      return std::max(least, std::pow(1 + (update - 1) / options.warmup_gamma, -options.warmup_power));
    case EmaWarmup::none:
      break;
  }
  return n == 1 ? 1.0 : least;
}

AveragedWeights::~AveragedWeights() {
  if (!open_) return;  // this object was moved from
  const at::NoGradGuard no_grad;
  try {
    if (before_restore_) before_restore_();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the model is not sharded any more
  }
  try {
    for (const auto& [weight, value, version] : own_) {
      weight.copy_(value, /*non_blocking=*/true);
      if (version && !weight.is_inference()) set_version(weight, *version);
    }
  } catch (const std::exception& error) {
    base::log(base::LogLevel::error, {}, "average_parameters: the model's own weights are not restored: {}",
              error.what());
  }
  *open_ = false;
}

ExponentialMovingAverage::ExponentialMovingAverage(const std::vector<state::ParameterShard>& parameter_shards,
                                                   const EmaOptions& options,
                                                   const std::vector<state::ParameterShard>& buffers)
    : options_(options) {
  check_ema(options);
  const at::NoGradGuard no_grad;
  for (const state::ParameterShard& param_shard : parameter_shards) add(param_shard);
  if (options.use_buffers) {
    for (const state::ParameterShard& buffer : buffers) add(buffer);
  }
}

void ExponentialMovingAverage::add(const state::ParameterShard& param_shard) {
  const at::Tensor& source = param_shard.master.defined() ? param_shard.master : param_shard.value;
  items_.push_back({param_shard.name, source, param_shard.value, start_of(source), is_copied(param_shard.name, source),
                    is_part(param_shard), param_shard.sizes, param_shard.begin, param_shard.end, param_shard.key});
}

void ExponentialMovingAverage::follow(std::function<std::vector<state::ParameterShard>()> parameter_shards) {
  const auto may_change = [](const Item& item) { return !item.source.is_same(item.value) || item.is_part; };
  if (std::any_of(items_.begin(), items_.end(), may_change)) current_shards_ = std::move(parameter_shards);
}

// Gets the current masters, because the model may have been loaded, moved or prepared again.
void ExponentialMovingAverage::follow_masters() {
  if (!current_shards_) return;
  size_t i = 0;
  for (const state::ParameterShard& param_shard : current_shards_()) {
    Item& item = items_[i++];
    if (param_shard.begin != item.begin || param_shard.end != item.end) {
      base::fail(
          ErrorKind::usage, {}, kEmaCall,
          "{} has the elements {} to {} on this rank, had {} to {} when the averages began: its model was sharded in "
          "another way, or free_memory() was called; make new averages",
          item.name, param_shard.begin, param_shard.end, item.begin, item.end);
    }
    item.source = param_shard.master.defined() ? param_shard.master : param_shard.value;
    if (item.is_part) item.value = param_shard.value;
  }
}

// Moves averages to the device and dtype of their weights, and rebuilds the lists for the multi-tensor calls.
void ExponentialMovingAverage::follow_moved_weights() {
  bool moved = kinds_.empty();
  for (Item& item : items_) {
    const auto dtype = averaged_in(item.source.scalar_type());
    if (item.average.device() == item.source.device() && item.average.scalar_type() == dtype) continue;
    item.average = item.average.to(item.source.device(), dtype);
    moved = true;
  }
  if (!moved) return;
  kinds_.clear();
  for (size_t i = 0; i < items_.size(); ++i) {
    const auto same_kind = [&](const std::vector<size_t>& kind) {
      const at::Tensor& first = items_[kind.front()].average;
      return first.device() == items_[i].average.device() && first.scalar_type() == items_[i].average.scalar_type() &&
             items_[kind.front()].is_copied == items_[i].is_copied;
    };
    const auto found = std::find_if(kinds_.begin(), kinds_.end(), same_kind);
    found == kinds_.end() ? kinds_.push_back({i}) : found->push_back(i);
  }
}

void ExponentialMovingAverage::update(const std::optional<at::Tensor>& skip) {
  if (*averages_active_) {
    base::fail(ErrorKind::usage, {}, "ExponentialMovingAverage.update",
               "the averages are swapped in, so the model's weights are the {} averages themselves; end "
               "average_parameters() first",
               items_.size());
  }
  const bool host_knows = !skip || skip->is_cpu();
  if (skip && host_knows && skip->item<float>() != 0) return;
  const at::NoGradGuard no_grad;
  follow_masters();
  ++calls_;
  if (!host_knows) {
    const at::Tensor cancels = skip->ne(0).to(at::kFloat);
    cancelled_ = cancelled_.defined() ? cancelled_.to(cancels.device(), true) + cancels : cancels;
  }
  follow_moved_weights();
  for (const auto& kind : kinds_) average(kind, host_knows ? std::nullopt : skip);
}

// Like ema_weight(), but the update count is on the device. The result is 0 if the step was skipped.
at::Tensor ExponentialMovingAverage::weight_on_device(const at::Tensor& like,
                                                      const std::optional<at::Tensor>& skip) const {
  const auto dtype = like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor n = (static_cast<double>(calls_) - moved_to(like.device(), cancelled_).to(dtype));
  const double least = 1 - options_.decay;
  const auto number = [&](double value) { return at::scalar_tensor(value, n.options()); };
  at::Tensor weight;
  switch (options_.warmup) {
    case EmaWarmup::ratio:
      weight = (9 / (10 + n)).clamp_min(least);
      break;
    case EmaWarmup::power:
      weight = (1 + (n - 1) / options_.warmup_gamma).pow(-options_.warmup_power).clamp_min(least);
      break;
    case EmaWarmup::none:
      weight = at::where(n.eq(1), number(1), number(least));
      break;
  }
  return skip ? at::where(moved_to(like.device(), *skip).ne(0), number(0), weight) : weight;
}

void ExponentialMovingAverage::average(const std::vector<size_t>& kind, const std::optional<at::Tensor>& skip) {
  std::vector<at::Tensor> averages, weights;
  for (const size_t i : kind) {
    averages.push_back(items_[i].average);
    weights.push_back(items_[i].source.detach().to(items_[i].average.scalar_type()));
  }
  if (items_[kind.front()].is_copied) {
    const at::Tensor skips = skip ? moved_to(averages.front().device(), *skip).ne(0) : at::Tensor();
    for (size_t i = 0; i < averages.size(); ++i) {
      averages[i].copy_(skip ? at::where(skips, averages[i], weights[i]) : weights[i], true);
    }
    return;
  }
  if (!cancelled_.defined()) return at::_foreach_lerp_(averages, weights, ema_weight(options_, calls_));
  const at::Tensor share = weight_on_device(averages.front(), skip).to(averages.front().scalar_type());
  at::_foreach_lerp_(averages, weights, std::vector<at::Tensor>(averages.size(), share));
}

AveragedWeights ExponentialMovingAverage::average_parameters() {
  if (*averages_active_) {
    base::fail(ErrorKind::usage, {}, "ExponentialMovingAverage.average_parameters",
               "the {} averages are swapped in already; end the first average_parameters() before the next",
               items_.size());
  }
  const at::NoGradGuard no_grad;
  follow_masters();
  std::vector<AveragedWeights::SavedWeight> own;
  const auto keep = [&](const at::Tensor& tensor) {
    own.push_back({tensor, tensor.detach().clone(), version_of(tensor)});
  };
  for (const Item& item : items_) {
    keep(item.value);
    // Saving in between reads the masters, which makes them follow the averages.
    if (!item.source.is_same(item.value)) keep(item.source);
  }
  // From here on the guard restores the weights if a copy throws.
  *averages_active_ = true;
  std::function<void()> before_restore;
  if (current_shards_ && std::ranges::any_of(items_, &Item::is_part)) {  // the device may still read a part on the host
    before_restore = [shards = current_shards_] { std::ignore = shards(); };
  }
  AveragedWeights guard(std::move(own), averages_active_, std::move(before_restore));
  const int64_t version = next_version_of_averages();
  for (const Item& item : items_) {
    item.value.copy_(item.average, /*non_blocking=*/true);
    if (!item.value.is_inference()) set_version(item.value, version);
  }
  return guard;
}

int64_t ExponentialMovingAverage::updates() const {
  return cancelled_.defined() ? calls_ - cancelled_.item().toLong() : calls_;
}

std::vector<at::Tensor> ExponentialMovingAverage::averages() const {
  std::vector<at::Tensor> list;
  for (const Item& item : items_) list.push_back(item.average);
  return list;
}

void ExponentialMovingAverage::check_whole(const char* operation) const {
  const auto part = std::ranges::find_if(items_, &Item::is_part);
  if (part == items_.end()) return;
  base::fail(ErrorKind::usage, {}, operation,
             "{} is sharded, so this rank has {} of the {} elements of its average; give the averages to "
             "register_for_checkpointing(), so that save_state() writes the elements of all ranks, or call "
             "average_parameters(), and save the model with save_model() while the averages are its weights",
             part->name, part->average.numel(), c10::multiply_integers(part->sizes));
}

torch::OrderedDict<std::string, at::Tensor> ExponentialMovingAverage::state_dict() const {
  check_whole("ExponentialMovingAverage.state_dict");
  torch::OrderedDict<std::string, at::Tensor> state("Average");
  for (const state::ParameterShard& shard : state_shards()) state.insert(shard.name, shard.value.clone());
  return state;
}

std::vector<state::ParameterShard> ExponentialMovingAverage::state_shards() const {
  std::vector<state::ParameterShard> shards{
      state::whole_parameter("n_averaged", at::scalar_tensor(updates(), at::kLong))};
  shards.front().key = nullptr;
  for (const Item& item : items_) {
    shards.push_back({.name = "module." + item.name,
                      .sizes = item.sizes,
                      .begin = item.begin,
                      .end = item.end,
                      .key = item.is_part ? item.key : nullptr,
                      .value = item.average});
  }
  return shards;
}

torch::OrderedDict<std::string, at::Tensor> ExponentialMovingAverage::state_parameters() const {
  torch::OrderedDict<std::string, at::Tensor> parameters("Parameter");
  for (const Item& item : items_) parameters.insert("module." + item.name, item.value);
  return parameters;
}

void ExponentialMovingAverage::load_state_dict(const torch::OrderedDict<std::string, at::Tensor>& state) {
  check_whole("ExponentialMovingAverage.load_state_dict");
  load(state, "ExponentialMovingAverage.load_state_dict");
}

void ExponentialMovingAverage::load_state_shards(const torch::OrderedDict<std::string, at::Tensor>& state) {
  load(state, "ExponentialMovingAverage.load_state_shards");
}

void ExponentialMovingAverage::load(const torch::OrderedDict<std::string, at::Tensor>& state, const char* operation) {
  const auto refuse = [operation](const std::string& message) {
    base::fail(ErrorKind::data, {}, operation, "{}", message);
  };
  if (!state.contains("n_averaged"))
    refuse("n_averaged is missing among the " + std::to_string(state.size()) + " entries");
  for (const Item& item : items_) {
    const at::Tensor* found = state.find("module." + item.name);
    if (found == nullptr) refuse(fmt::format("module.{} is missing", item.name));
    if (found->sizes() != item.average.sizes()) {
      refuse(fmt::format("module.{} is [{}], {} is [{}] here", item.name, fmt::join(found->sizes(), ", "), item.name,
                         fmt::join(item.average.sizes(), ", ")));
    }
  }
  if (state.size() != items_.size() + 1) {
    refuse(fmt::format("there are {} entries, {} are expected (use_buffers is {})", state.size(), items_.size() + 1,
                       options_.use_buffers));
  }
  const at::NoGradGuard no_grad;
  for (Item& item : items_) item.average.copy_(state["module." + item.name]);
  calls_ = state["n_averaged"].item<int64_t>();
  cancelled_.reset();
}

}  // namespace accelerate::optim
