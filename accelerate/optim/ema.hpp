// SPDX-License-Identifier: Apache-2.0
// An exponential moving average of a model's weights, to be evaluated in their place.
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

#include "accelerate/state/piece.hpp"

namespace accelerate::optim {

/// How the decay grows in the first updates, n = 1, 2, ...
enum class EmaWarmup {
  none,   ///< the first update copies, then decay: torch.optim.swa_utils.AveragedModel
  ratio,  ///< min(decay, (1 + n) / (10 + n)): torch_ema, TensorFlow
  power,  ///< min(decay, 1 - (1 + (n - 1) / warmup_gamma)^-warmup_power): timm's ModelEmaV3, diffusers
};

struct EmaOptions {
  /// Share of the average that stays in each update, from 0 to 1.
  double decay = 0.999;
  EmaWarmup warmup = EmaWarmup::none;
  /// Both above 0. A gamma of 1 with a power of 2/3 reaches 0.999 at update 31.6K, with 3/4 at 10K.
  double warmup_gamma = 1.0;
  double warmup_power = 2.0 / 3.0;
  /// If true, the buffers are averaged too (BatchNorm's statistics); integer and boolean ones, and every
  /// num_batches_tracked, are copied. If false, the model keeps its own buffers while averages are swapped in.
  bool use_buffers = false;
};

/// What the weights count for in update n, from 1 on: one minus the decay.
[[nodiscard]] double ema_weight(const EmaOptions& options, int64_t n);

/// While it lives the model has the averages as its weights; then its own again, whatever happened to them meanwhile.
/// It keeps a copy of the model's own. Restored they count as never changed: within an accumulation window the next
/// backward takes them as they were.
class [[nodiscard]] AveragedWeights {
 public:
  struct Own {
    at::Tensor weight;
    at::Tensor value;
    std::optional<int64_t> version;  ///< the weight's count of changes; unset: it has none (InferenceMode)
  };
  AveragedWeights(std::vector<Own> own, std::shared_ptr<bool> open) : own_(std::move(own)), open_(std::move(open)) {}
  AveragedWeights(AveragedWeights&&) = default;
  AveragedWeights& operator=(AveragedWeights&&) = delete;
  ~AveragedWeights();

 private:
  std::vector<Own> own_;
  std::shared_ptr<bool> open_;
};

/// A moving average of each weight, kept beside the model and updated in one call for each dtype and device.
///
///   optim::ExponentialMovingAverage ema(model, {.decay = 0.9999});
///   ... optimizer.step(); ema.update(optimizer.skip_flag());
///   { auto averaged = ema.average_parameters(); evaluate(model); }
///
/// Averages are float32 where weights are of half precision, because an update is less than such a number can tell.
/// Of a prepared model whose weights are stored in bfloat16 the float32 masters are averaged, and a swap leaves them as
/// they are. They follow weights that move to another device. On several ranks weights are equal, so averages are.
class ExponentialMovingAverage {
 public:
  /// pieces    what is averaged: values, or masters where there are any. They are held by reference, as tensors are.
  /// buffers   averaged where options.use_buffers says so
  /// Throws Error (usage) on a decay outside [0, 1], and numbers of the warm-up that are not above 0.
  explicit ExponentialMovingAverage(const std::vector<state::Piece>& pieces, const EmaOptions& options = {},
                                    const std::vector<state::Piece>& buffers = {});
  /// model   a module, a holder of one, TorchScript's, or a prepared model, of which it keeps a handle where there are
  ///         masters
  template <typename Model>
  requires(
      requires(const Model& model) { model->named_parameters(); } ||
      requires(const Model& model) {
        model.named_parameters();
      }) explicit ExponentialMovingAverage(const Model& model, const EmaOptions& options = {})
      : ExponentialMovingAverage(pieces_of_model(model), options, pieces_of(module_of(model).named_buffers())) {
    if constexpr (has_pieces<Model>) follow([model] { return model.pieces(); });
  }

  ExponentialMovingAverage(ExponentialMovingAverage&&) = default;

  /// After an optimizer step: within an accumulation window too each call counts.
  ///
  /// skip   float32 scalar, on the weights' device or the CPU: 1 where that step was skipped, then averages stay as
  ///        they are and the update does not count. The host does not wait for it. Of a prepared optimizer its
  ///        skip_flag(): with fp16 it belongs here.
  void update(const std::optional<at::Tensor>& skip = std::nullopt);

  /// The averages become the model's weights until the result dies. Weights keep their memory. Not within an autocast
  /// region: its cache would keep the old ones.
  AveragedWeights average_parameters();

  /// Updates that counted. Waits for the device where skip flags came from there.
  [[nodiscard]] int64_t updates() const;
  /// The averages themselves, in the order of the weights, buffers last.
  [[nodiscard]] std::vector<at::Tensor> averages() const;

  /// Copies, named as in the state_dict() of AveragedModel: "n_averaged" and "module." before each name.
  [[nodiscard]] torch::OrderedDict<std::string, at::Tensor> state_dict() const;
  /// Throws Error (data) on names or shapes that differ from this model's; then nothing is changed.
  void load_state_dict(const torch::OrderedDict<std::string, at::Tensor>& state);

 private:
  template <typename Model>
  static constexpr bool has_pieces = requires(const Model& model) {
    { model.pieces() } -> std::same_as<std::vector<state::Piece>>;
  };
  struct Item {
    std::string name;
    at::Tensor source;  // what is averaged: the master, or the value
    at::Tensor value;   // what the average is swapped into
    at::Tensor average;
    bool is_copied;  // not averaged: a count or a mask
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
  static std::vector<state::Piece> pieces_of(const List& tensors) {
    std::vector<state::Piece> pieces;
    for (const auto& item : tensors) {
      if constexpr (requires { item.key(); }) {
        pieces.push_back(state::whole_piece(item.key(), item.value()));
      } else {  // TorchScript's
        pieces.push_back(state::whole_piece(item.name, item.value));
      }
    }
    return pieces;
  }
  template <typename Model>
  static std::vector<state::Piece> pieces_of_model(const Model& model) {
    if constexpr (has_pieces<Model>) {
      return model.pieces();
    } else {
      return pieces_of(module_of(model).named_parameters());
    }
  }
  void follow(std::function<std::vector<state::Piece>()> pieces);
  void follow_masters();
  void add(const state::Piece& piece);
  void follow_moved();
  void average(const std::vector<size_t>& kind, const std::optional<at::Tensor>& skip);
  at::Tensor weight_on_device(const at::Tensor& like, const std::optional<at::Tensor>& skip) const;

  EmaOptions options_;
  std::vector<Item> items_;
  std::function<std::vector<state::Piece>()> pieces_now_;  // empty: no piece has a master that could be another one
  std::vector<std::vector<size_t>> kinds_;                 // items whose averages are of one dtype and device
  int64_t calls_ = 0;                                      // of update(), less those that the host knows to be skipped
  at::Tensor cancelled_;                                   // calls that a flag on a device cancelled; undefined: none
  std::shared_ptr<bool> swapped_in_ = std::make_shared<bool>(false);
};

}  // namespace accelerate::optim
