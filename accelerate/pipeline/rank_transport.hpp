// SPDX-License-Identifier: Apache-2.0
// Transfers between stages on several ranks, by asynchronous messages. Private.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "accelerate/comm/group.hpp"
#include "accelerate/pipeline/tensor_form.hpp"
#include "accelerate/pipeline/transport.hpp"

namespace accelerate::pipeline {

/// The first stage numbers the sizes of its inputs. With a new number the shapes of all activations are sent before
/// their data, afterwards both ranks know them. Gradients have the shapes of their activations.
class RankTransport final : public Transport {
 public:
  /// Messages of other users of the group must not have these tags: pass Group::duplicate().
  enum Tag : int64_t { kHeaderTag, kTiedTag, kFirstStageTag };

  RankTransport(comm::Group group, int64_t stages, at::Device device);

  StepHeader begin(StepHeader own, const at::Tensor& input) override;
  [[nodiscard]] bool sends_gradient(int64_t stage, at::ScalarType dtype) const override;
  void send(const Action& action, const at::Tensor& tensor) override;
  void start_receive(const Action& action) override;
  at::Tensor take(ActionKind kind, int64_t stage, int64_t micro_batch) override;
  void finish() override;

 private:
  struct Receive {
    Action action{};
    at::Tensor tensor{};
    comm::Pending pending{};
  };
  struct Send {
    Action action{};
    comm::Pending pending{};
  };
  /// (stage, micro-batch) of the stage that computed the activation.
  using Border = std::pair<int64_t, int64_t>;

  [[nodiscard]] std::string_view call() const { return header_.training ? "train_step" : "forward"; }
  [[nodiscard]] std::string text_of(const Action& action) const;
  void number_sizes(StepHeader& header, const at::Tensor& input);
  void receive_header(const StepHeader& own);
  void send_header();
  void exchange_form(const Action& action, const at::Tensor& tensor);
  void start(const Action& action, const at::Tensor& tensor, int64_t tag);
  void wait_oldest_send();
  template <typename Run>
  auto in_context(const Action& action, const Run& run) const;

  comm::Group group_;
  int64_t stages_;
  at::Device device_;
  StepHeader header_{};
  int64_t first_trainable_before_ = StepHeader::kNoStage;  ///< among the ranks before this one
  std::map<std::string, int64_t> keys_;                    ///< only on the rank of the first stage
  std::map<int64_t, std::map<Border, TensorForm>> forms_;  ///< by key
  std::map<std::tuple<ActionKind, int64_t, int64_t>, Receive> receives_;
  std::deque<Send> sends_;
};

}  // namespace accelerate::pipeline
