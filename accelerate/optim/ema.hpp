// SPDX-License-Identifier: Apache-2.0
// Exponential moving average of the weights of a model, for evaluation.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/state/parameter_shard.hpp"

namespace accelerate::optim {

/// Growth of the decay in the first updates, n = 1, 2, ...
enum class EmaWarmup {
  none,   ///< the first update copies, later ones use decay: torch.optim.swa_utils.AveragedModel
  ratio,  ///< min(decay, (1 + n) / (10 + n)): torch_ema, TensorFlow
  power,  ///< min(decay, 1 - (1 + (n - 1) / warmup_gamma)^-warmup_power): timm's ModelEmaV3, diffusers
};

struct EmaOptions {
  /// Factor of the old average in each update, from 0 to 1.
  double decay = 0.999;
  EmaWarmup warmup = EmaWarmup::none;
  /// Both must be above 0. With gamma 1, a power of 2/3 reaches 0.999 at update 31.6K, a power of 3/4 at 10K.
  double warmup_gamma = 1.0;
  double warmup_power = 2.0 / 3.0;
  /// If true, the buffers are averaged too (BatchNorm's statistics); integer and boolean ones, and every
  /// num_batches_tracked, are copied. If false, the model keeps its own buffers while averages are swapped in.
  bool use_buffers = false;
};

/// Factor of the weights in update n, from 1 on: one minus the decay.
[[nodiscard]] double ema_weight(const EmaOptions& options, int64_t n);

/// During its lifetime the model has the averages as weights; afterwards its own weights are restored from a copy,
/// independent of changes in between. The restored weights count as unchanged: within an accumulation window the next
/// backward accepts them. Not thread-safe.
class [[nodiscard]] AveragedWeights {
 public:
  struct SavedWeight {
    at::Tensor weight;
    at::Tensor value;
    std::optional<int64_t> version;  ///< version counter of the weight; unset for an inference tensor
  };
  /// \param before_restore  If set, it is called before the own weights are copied back. It waits for work that still
  ///                        reads the averages from the memory of the host.
  AveragedWeights(std::vector<SavedWeight> own, std::shared_ptr<bool> open, std::function<void()> before_restore = {})
      : own_(std::move(own)), open_(std::move(open)), before_restore_(std::move(before_restore)) {}
  AveragedWeights(AveragedWeights&&) = default;
  AveragedWeights& operator=(AveragedWeights&&) = delete;
  ~AveragedWeights();

 private:
  std::vector<SavedWeight> own_;
  std::shared_ptr<bool> open_;
  std::function<void()> before_restore_;
};

/// A moving average of each weight, stored beside the model and updated in one call per dtype and device.
///
///   optim::ExponentialMovingAverage ema(model, {.decay = 0.9999});
///   ... optimizer.step(); ema.update(optimizer.skip_flag());
///   { auto averaged = ema.average_parameters(); evaluate(model); }
///
/// Averages are float32 for half-precision weights, which could not represent the small updates. For a prepared model
/// with bfloat16 weights the float32 masters are averaged, and a swap leaves them unchanged. Averages follow weights to
/// another device. Weights are equal on all ranks, so averages are too. Not thread-safe.
class ExponentialMovingAverage {
 public:
  /// \param parameter_shards  Values to average, or their masters if there are any. Kept by reference, as tensors are.
  /// \param buffers           Averaged if options.use_buffers is set.
  /// \throws Error (usage) for a decay outside [0, 1], and warm-up numbers that are not above 0.
  explicit ExponentialMovingAverage(const std::vector<state::ParameterShard>& parameter_shards,
                                    const EmaOptions& options = {},
                                    const std::vector<state::ParameterShard>& buffers = {});
  /// \param model  A module, a module holder, a TorchScript module, or a prepared model, which is kept alive if it has
  ///               masters.
  template <typename Model>
  requires(
      requires(const Model& model) { model->named_parameters(); } ||
      requires(const Model& model) {
        model.named_parameters();
      }) explicit ExponentialMovingAverage(const Model& model, const EmaOptions& options = {})
      : ExponentialMovingAverage(shards_of_model(model), options, shards_of_tensors(module_of(model).named_buffers())) {
    if constexpr (has_parameter_shards<Model>) follow([model] { return model.parameter_shards(); });
  }

  ExponentialMovingAverage(ExponentialMovingAverage&&) = default;

  /// Call after an optimizer step; each call counts, also within an accumulation window.
  ///
  /// \param skip  Float32 scalar on the weights' device or the CPU. If it is 1, that step was skipped: averages and
  ///              the number of updates are unchanged. The host does not wait for it. With fp16 pass the prepared
  ///              optimizer's skip_flag().
  void update(const std::optional<at::Tensor>& skip = std::nullopt);

  /// Makes the averages the model's weights during the lifetime of the result. Weights keep their memory. Do not call
  /// it within an autocast region, because its cache would keep the old weights.
  AveragedWeights average_parameters();

  /// Number of counted updates. Waits for the device if skip flags are on a device.
  [[nodiscard]] int64_t updates() const;
  /// The averages (no copies) in the order of the weights; buffers are last.
  [[nodiscard]] std::vector<at::Tensor> averages() const;

  /// Copies, named as in the state_dict() of AveragedModel: "n_averaged" and "module." before each name. With tensor
  /// parallel layers they are this rank's parts; save_state() joins them if the object is registered.
  /// \throws Error (usage) if parameters are sharded, because this rank has only a part of the averages. save_state()
  ///         writes the parts of all ranks.
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> state_dict() const;
  /// \throws Error (data) if names or shapes differ from this model's; nothing is changed then.
  /// \throws Error (usage) if parameters are sharded.
  void load_state_dict(const torch::OrderedDict<std::string, at::Tensor>& state);
  /// The parameters and buffers that are averaged, named as their averages in state_dict(). For sharded parameters they
  /// are this rank's parts.
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> state_parameters() const;
  /// The entries of state_dict(), also if parameters are sharded: `value` then has this rank's elements. It is the
  /// average itself and changes with the next update(). `key` is the TensorImpl of the parameter, or null if the
  /// parameter is not sharded.
  [[nodiscard]] std::vector<state::ParameterShard> state_shards() const;
  /// As load_state_dict(), but the tensors of sharded parameters have this rank's elements, as in state_shards().
  void load_state_shards(const torch::OrderedDict<std::string, at::Tensor>& state);

 private:
  template <typename Model>
  static constexpr bool has_parameter_shards = requires(const Model& model) {
    { model.parameter_shards() } -> std::same_as<std::vector<state::ParameterShard>>;
  };
  struct Item {
    std::string name;
    at::Tensor source;  // the averaged tensor: the master or the value
    at::Tensor value;   // the tensor into which the average is swapped
    at::Tensor average;
    bool is_copied;  // true for counts and masks, which are not averaged
    bool is_part;    // true if the weight is sharded
    // Shape of the whole weight, and this rank's range of its elements in memory order.
    std::vector<int64_t> sizes;
    int64_t begin, end;
    void* key;
  };

  template <typename Model>
  static const auto& module_of(const Model& model) {
    if constexpr (requires { model->named_parameters(); }) {
      return *model;
    } else {
      return model;
    }
  }
  template <typename List>
  static std::vector<state::ParameterShard> shards_of_tensors(const List& tensors) {
    std::vector<state::ParameterShard> parameter_shards;
    for (const auto& item : tensors) {
      if constexpr (requires { item.key(); }) {
        parameter_shards.push_back(state::whole_parameter(item.key(), item.value()));
      } else {  // a TorchScript module
        parameter_shards.push_back(state::whole_parameter(item.name, item.value));
      }
    }
    return parameter_shards;
  }
  template <typename Model>
  static std::vector<state::ParameterShard> shards_of_model(const Model& model) {
    if constexpr (has_parameter_shards<Model>) {
      return model.parameter_shards();
    } else {
      return shards_of_tensors(module_of(model).named_parameters());
    }
  }
  void follow(std::function<std::vector<state::ParameterShard>()> parameter_shards);
  void follow_masters();
  void add(const state::ParameterShard& param_shard);
  void check_whole(const char* operation) const;
  void load(const torch::OrderedDict<std::string, at::Tensor>& state, const char* operation);
  void follow_moved_weights();
  void average(const std::vector<size_t>& kind, const std::optional<at::Tensor>& skip);
  at::Tensor weight_on_device(const at::Tensor& like, const std::optional<at::Tensor>& skip) const;

  EmaOptions options_;
  std::vector<Item> items_;
  std::function<std::vector<state::ParameterShard>()> current_shards_;  // empty if no shard has a master
  std::vector<std::vector<size_t>> kinds_;  // items grouped by dtype and device of their averages
  int64_t calls_ = 0;                       // calls of update() without those that the host knows to be skipped
  at::Tensor cancelled_;                    // calls that a flag on a device cancelled; undefined if none
  std::shared_ptr<bool> averages_active_ = std::make_shared<bool>(false);
};

}  // namespace accelerate::optim
