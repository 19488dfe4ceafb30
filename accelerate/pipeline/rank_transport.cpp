// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/rank_transport.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"

namespace accelerate::pipeline {
namespace {

/// Unfinished sends keep their tensors. More of them would only use memory while the receiver is busy.
constexpr size_t kMaxPendingSends = 4;

/// Sizes of inputs that the first stage remembers; afterwards the numbers are used again.
constexpr size_t kMaxKeys = 256;

constexpr int64_t kHeaderWords = 6;

bool is_activation(ActionKind kind) {
  return kind == ActionKind::send_activation || kind == ActionKind::receive_activation;
}

bool is_send(ActionKind kind) { return kind == ActionKind::send_activation || kind == ActionKind::send_gradient; }

/// The stage before the border that the transfer crosses.
int64_t lower_stage(const Action& action) {
  const bool above = action.kind == ActionKind::receive_activation || action.kind == ActionKind::send_gradient;
  return action.stage - (above ? 1 : 0);
}

}  // namespace

RankTransport::RankTransport(comm::Group group, int64_t stages, at::Device device)
    : group_(std::move(group)), stages_(stages), device_(device) {}

std::string RankTransport::text_of(const Action& action) const {
  const bool sends = is_send(action.kind), activation = is_activation(action.kind);
  const int64_t other = action.stage + (sends == activation ? 1 : -1);
  return fmt::format("stage {}, micro-batch {}: the {} is not {} stage {} on rank {}", action.stage, action.micro_batch,
                     activation ? "activation" : "gradient", sends ? "sent to" : "received from", other, action.peer);
}

template <typename Run>
auto RankTransport::in_context(const Action& action, const Run& run) const {
  return comm::with_operation_context(fmt::format("Pipeline.{}", call()), text_of(action), group_.place(), run);
}

void RankTransport::number_sizes(StepHeader& header, const at::Tensor& input) {
  // Autocast changes the dtypes of activations.
  const auto type = device_.type();
  const bool casts = at::autocast::is_autocast_enabled(type);
  const auto text = fmt::format("{} {} {} {}", describe_form(form_of(input)), header.micro_batches, header.training,
                                casts ? c10::toString(at::autocast::get_autocast_dtype(type)) : "no autocast");
  if (keys_.size() >= kMaxKeys && !keys_.contains(text)) keys_.clear();
  const auto [entry, is_new] = keys_.emplace(text, static_cast<int64_t>(keys_.size()));
  header.key = entry->second;
  header.is_new_key = is_new;
}

StepHeader RankTransport::begin(StepHeader own, const at::Tensor& input) {
  receives_.clear();
  sends_.clear();
  header_ = own;
  first_trainable_before_ = StepHeader::kNoStage;
  if (group_.rank() == 0) {
    number_sizes(header_, input);
  } else {
    receive_header(own);
  }
  if (group_.rank() + 1 < group_.size()) send_header();
  if (header_.is_new_key) forms_[header_.key].clear();
  return header_;
}

void RankTransport::receive_header(const StepHeader& own) {
  const int64_t previous = group_.rank() - 1;
  const at::Tensor message = at::empty({kHeaderWords}, at::kLong);
  comm::with_operation_context(fmt::format("Pipeline.{}", call()),
                               fmt::format("the start of the step is not received from rank {}", previous),
                               group_.place(), [&] { group_.recv(message, previous, kHeaderTag); });
  const auto* const words = message.const_data_ptr<int64_t>();
  header_ = {.training = words[0] != 0,
             .micro_batches = words[1],
             .rows = words[2],
             .first_trainable = std::min(words[3], own.first_trainable),
             .key = words[4],
             .is_new_key = words[5] != 0};
  first_trainable_before_ = words[3];
  if (header_.training == own.training) return;
  const auto name = [](bool training) { return training ? "train_step" : "forward"; };
  base::fail(ErrorKind::peer, group_.place(), fmt::format("Pipeline.{}", name(own.training)),
             "this rank calls {}, rank {} calls {}; all ranks must call the same functions in the same order.",
             name(own.training), previous, name(header_.training));
}

void RankTransport::send_header() {
  const at::Tensor message = at::tensor({int64_t{header_.training}, header_.micro_batches, header_.rows,
                                         header_.first_trainable, header_.key, int64_t{header_.is_new_key}},
                                        at::kLong);
  const int64_t next = group_.rank() + 1;
  comm::with_operation_context(fmt::format("Pipeline.{}", call()),
                               fmt::format("the start of the step is not sent to rank {}", next), group_.place(),
                               [&] { group_.send(message, next, kHeaderTag); });
}

/// Ranks know only about the first pass of the stages before them, so later passes always send gradients.
bool RankTransport::sends_gradient(int64_t stage, at::ScalarType dtype) const {
  if (stage == 0 || !header_.training) return false;
  if (!at::isFloatingType(dtype) && !at::isComplexType(dtype)) return false;
  const int64_t before = stage - 1;
  if (before >= group_.size() - 1) return true;
  return (before == group_.rank() ? header_.first_trainable : first_trainable_before_) <= before;
}

/// In the first step with these sizes the form is a message of its own; later it must be the same.
void RankTransport::exchange_form(const Action& action, const at::Tensor& tensor) {
  auto& forms = forms_[header_.key];
  const Border border{lower_stage(action), action.micro_batch};
  const int64_t tag = kFirstStageTag + 2 * stages_ + border.first;
  if (!is_send(action.kind)) {
    if (!header_.is_new_key) return;
    const at::Tensor message = at::empty({TensorForm::kWords}, at::kLong);
    group_.recv(message, action.peer, tag);
    forms[border] = decode_form(message);
    return;
  }
  const TensorForm form = form_of(tensor);
  if (header_.is_new_key) {
    forms[border] = form;
    start(action, encode(form), tag);
  } else if (const TensorForm& known = forms.at(border); known != form) {
    base::fail(
        ErrorKind::usage, group_.place(), fmt::format("Pipeline.{}", call()),
        "stage {}, micro-batch {}: the output is {}, was {} in an earlier step with the same sizes of the input; "
        "the shapes of activations must follow from the sizes of the input",
        action.stage, action.micro_batch, describe_form(form), describe_form(known));
  }
}

void RankTransport::start(const Action& action, const at::Tensor& tensor, int64_t tag) {
  if (sends_.size() >= kMaxPendingSends) wait_oldest_send();
  sends_.push_back({action, group_.send_async(tensor, action.peer, tag)});
}

void RankTransport::wait_oldest_send() {
  Send& oldest = sends_.front();
  in_context(oldest.action, [&] { oldest.pending.wait(); });
  sends_.pop_front();
}

void RankTransport::send(const Action& action, const at::Tensor& tensor) {
  const bool activation = is_activation(action.kind);
  if (!activation && !sends_gradient(action.stage, tensor.scalar_type())) return;
  in_context(action, [&] {
    if (activation) exchange_form(action, tensor);
    start(action, tensor.contiguous(), kFirstStageTag + 2 * lower_stage(action) + (activation ? 0 : 1));
  });
}

void RankTransport::start_receive(const Action& action) {
  const bool activation = is_activation(action.kind);
  in_context(action, [&] {
    if (activation) exchange_form(action, {});
    const Border border{lower_stage(action), action.micro_batch};
    const TensorForm& form = forms_.at(header_.key).at(border);
    if (!activation && !sends_gradient(action.stage + 1, form.dtype)) return;
    Receive receive{.action = action,
                    .tensor = at::empty(form.sizes, at::TensorOptions().dtype(form.dtype).device(device_))};
    receive.pending =
        group_.recv_async(receive.tensor, action.peer, kFirstStageTag + 2 * border.first + (activation ? 0 : 1));
    receives_[{action.kind, action.stage, action.micro_batch}] = std::move(receive);
  });
}

at::Tensor RankTransport::take(ActionKind kind, int64_t stage, int64_t micro_batch) {
  const auto found = receives_.find({kind, stage, micro_batch});
  if (found == receives_.end()) return {};
  Receive& receive = found->second;
  in_context(receive.action, [&] { receive.pending.wait(); });
  at::Tensor tensor = std::move(receive.tensor);
  receives_.erase(found);
  return tensor;
}

void RankTransport::finish() {
  while (!sends_.empty()) wait_oldest_send();
}

}  // namespace accelerate::pipeline
