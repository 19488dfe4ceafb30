// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/model.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "accelerate/comm/user_call.hpp"
#include "accelerate/gradient/clip.hpp"
#include "accelerate/gradient/same_everywhere.hpp"
#include "accelerate/nn/synchronized.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/prepared/optimizer.hpp"

namespace accelerate::prepared {
namespace {

// If one of these properties of a parameter changes, prepare() makes a new core.
std::string describe(const gradient::NamedTensor& parameter) {
  return fmt::format("{} on {}", gradient::describe(parameter, "parameter"), parameter.tensor.device().str());
}

}  // namespace

ModelCore::ModelCore(Shared& shared, const void* identity, std::vector<gradient::NamedTensor> parameters,
                     std::vector<gradient::NamedTensor> buffers, const ModelOptions& options)
    : Entry(entry_kind, identity),
      shared_(&shared),
      parameters_(std::move(parameters)),
      buffers_(std::move(buffers)),
      options_(options) {
  check_dtypes();
  for (const auto& parameter : parameters_) described_.push_back(describe(parameter));
  if (shared_->group.size() == 1 && shared_->group.backend() == "single") return;
  if (options.evaluation_mode) return;
  const std::string first = parameters_.empty() ? "no parameters" : parameters_.front().name;
  comm::in_user_call("prepare",
                     fmt::format("the model ({}) is not made equal", comm::first_and_more(first, parameters_.size())),
                     shared_->place, [&] { meet(); });
}

void ModelCore::check_dtypes() const {
  if (!shared_->policy.scales_loss() || options_.evaluation_mode) return;
  for (const auto& parameter : parameters_) {
    if (parameter.tensor.scalar_type() != at::kHalf || !parameter.tensor.requires_grad()) continue;
    base::fail(ErrorKind::usage, shared_->place, "prepare",
               "parameter {} is float16, with mixed_precision fp16 it must be float32: fp16 computes in float16 by "
               "itself, and the gradients of float16 parameters cannot be unscaled; model->to(torch::kFloat) first",
               parameter.name);
  }
}

std::optional<precision::AutocastRegion> ModelCore::autocast() const {
  if (!shared_->policy.compute) return std::nullopt;
  return precision::AutocastRegion{.device = shared_->device.type(), .dtype = *shared_->policy.compute};
}

void ModelCore::meet() {
  // A separate group, because another rank may fill the buckets of two models in another order.
  const comm::Group group = shared_->group.duplicate();
  if (options_.broadcast_buffers) {
    buffer_broadcast_ = std::make_unique<gradient::BufferBroadcast>(group, buffers_);
    buffer_broadcast_->run();
    if (buffers_.empty()) buffer_broadcast_.reset();
  }
  gradient::require_same(group, "parameter", parameters_);
  std::vector<gradient::NamedTensor> own = own_parameters();
  find_partners();
  const bool learns =
      std::any_of(own.begin(), own.end(), [](const auto& parameter) { return parameter.tensor.requires_grad(); });
  // Tensors that no reducer of this core broadcasts. A reducer broadcasts its frozen parameters, too.
  std::vector<at::Tensor> rest = elsewhere_;
  for (const auto& parameter : own) {
    if (!learns) rest.push_back(parameter.tensor);
  }
  gradient::broadcast_tensors(group, rest, 0, options_.engine.buckets.cap_bytes);
  if (learns) engine_ = std::make_unique<gradient::Engine>(group, own, options_.engine);
  forward_broadcasts_ = engine_ || !elsewhere_.empty();
}

std::vector<gradient::NamedTensor> ModelCore::own_parameters() {
  std::vector<gradient::NamedTensor> own;
  for (const auto& parameter : parameters_) {
    const bool taken = std::ranges::any_of(shared_->registry.of<ModelCore>(), [&](const ModelCore& other) {
      return other.engine() != nullptr && other.engine()->manages(parameter.tensor);
    });
    if (taken) {
      elsewhere_.push_back(parameter.tensor);
    } else {
      own.push_back(parameter);
    }
  }
  return own;
}

void ModelCore::find_partners() {
  if (elsewhere_.empty() || seen_registry_ == shared_->registry.version()) return;
  seen_registry_ = shared_->registry.version();
  partners_.clear();
  for (const auto& other : shared_->registry.list<ModelCore>()) {
    if (other.get() == this || other->engine() == nullptr) continue;
    const auto theirs = [&](const at::Tensor& parameter) { return other->engine()->manages(parameter); };
    if (std::any_of(elsewhere_.begin(), elsewhere_.end(), theirs)) partners_.push_back(other);
  }
}

void ModelCore::retire() {
  retired_ = true;
  partners_.clear();
  elsewhere_.clear();
  if (engine_) engine_->retire();
}

std::vector<gradient::Engine*> ModelCore::engines() {
  find_partners();
  std::vector<gradient::Engine*> list;
  if (engine() != nullptr) list.push_back(engine());
  for (const auto& partner : partners_) {
    if (partner->engine() != nullptr) list.push_back(partner->engine());
  }
  return list;
}

std::vector<state::Piece> ModelCore::pieces() const {
  std::vector<state::Piece> pieces;
  for (const auto& [name, parameter] : parameters_) pieces.push_back(state::whole_piece(name, parameter));
  shared_->masters.lend(pieces);
  return pieces;
}

// The masters of ranks that ran out early differ from the others, although both may round to the same parameters.
gradient::BufferBroadcast* ModelCore::masters_for_join() {
  std::vector<gradient::NamedTensor> masters;
  for (const state::Piece& piece : pieces()) {
    if (piece.master.defined()) masters.push_back({"master of " + piece.name, piece.master});
  }
  if (retired_ || masters.empty() || shared_->group.size() == 1) return nullptr;
  masters_for_join_ = std::make_unique<gradient::BufferBroadcast>(shared_->group, masters);
  return masters_for_join_.get();
}

void ModelCore::follow_buffers() const {
  if (!buffers_now_) return;
  auto now = buffers_now_();
  if (std::ranges::equal(now, buffers_, [](const auto& a, const auto& b) { return a.tensor.is_same(b.tensor); }))
    return;
  buffers_ = std::move(now);
}

void ModelCore::exchanges_buffers(std::function<std::vector<gradient::NamedTensor>()> now) {
  if (buffer_broadcast_) buffer_broadcast_->exchanges(now);
  buffers_now_ = std::move(now);
}

void ModelCore::after_forward() noexcept {
  try {
    shared_->watch.forward_done();
    if (engine() != nullptr) engine_->forward_ended();
  } catch (...) {  // the device failed; the next operation on it throws the error
    shared_->watch.release_all();
  }
}

void ModelCore::before_forward() {
  notify_of_forward();
  shared_->watch.begin_forward();  // not before: if the lines above throw, after_forward() is not called
}

void ModelCore::notify_of_forward() {
  if (engine() != nullptr) engine_->forward_begins();
  if (retired_ || (!engine_ && elsewhere_.empty())) return;
  const bool learns = at::GradMode::is_enabled();
  const bool sync = synchronises();
  if (buffer_broadcast_) buffer_broadcast_->before_forward(learns && sync);
  if (!learns) return;
  if (engine_) engine_->forward(sync);
  if (!sync) return;
  find_partners();
  for (const auto& partner : partners_) partner->engine_->forward(true);
}

std::vector<gradient::BufferBroadcast::WithRoot> ModelCore::buffers_with_rank_0() {
  if (!buffer_broadcast_) return {};
  const auto what = fmt::format("the buffers of the model ({}) are not compared with rank 0's",
                                comm::first_and_more(buffers_.front().name, buffers_.size()));
  return comm::in_user_call("save_state", what, place(), [&] { return buffer_broadcast_->with_root(); });
}

void ModelCore::resume_buffers(bool next_forward_broadcasts) {
  if (buffer_broadcast_) buffer_broadcast_->resume(next_forward_broadcasts);
}

void ModelCore::check_synchronized(std::string_view when) const {
  std::vector<nn::CheckedTensor> all;
  for (const auto& parameter : parameters_) all.push_back({"parameter " + parameter.name, parameter.tensor});
  if (buffer_broadcast() == nullptr || !buffer_broadcast_->due()) {
    for (const auto& buffer : buffers()) all.push_back({"buffer " + buffer.name, buffer.tensor});
  }
  nn::check_synchronized(shared_->group, all, when);
}

void ModelCore::open_no_sync() {
  ++no_sync_;
  if (engine() != nullptr) engine_->open_no_sync();
}

void ModelCore::close_no_sync() {
  if (--no_sync_ == 0 && engine() != nullptr) engine_->close_no_sync();
}

void ModelCore::open_window(bool sync) {
  window_ = sync;
  if (engine() != nullptr) engine_->open_window(synchronises());
}

void ModelCore::synchronise_partners() {
  if (!synchronises()) return;
  find_partners();
  for (const auto& partner : partners_) partner->open_window(true);
}

void ModelCore::close_window() {
  window_.reset();
  if (engine() != nullptr) engine_->close_window();
}

void ModelCore::zero_grad(bool set_to_none) {
  std::unordered_set<const void*> rest;
  for (const auto& parameter : parameters_) rest.insert(parameter.tensor.unsafeGetTensorImpl());
  const auto all_of_model = rest;
  int64_t spent = 0;
  for (const auto& optimizer : shared_->registry.list<OptimizerCore>()) {
    if (!optimizer->has_any_of(all_of_model)) continue;
    spent += optimizer->times_spent();
    const auto keys = optim::keys_of(optim::parameters_of(optimizer->optimizer()));
    if (!std::ranges::all_of(keys, [&](const void* key) { return all_of_model.contains(key); })) continue;
    optimizer->zero_grad(set_to_none);
    for (const void* key : keys) rest.erase(key);
  }
  if (rest.empty() || (shared_->window.awaits_backward() && spent == spent_when_zeroed_)) return;
  spent_when_zeroed_ = spent;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : parameters_) {
    if (rest.contains(parameter.unsafeGetTensorImpl())) tensors.push_back(parameter);
  }
  for (gradient::Engine* engine : engines()) {
    engine->zero(tensors, set_to_none);
    std::erase_if(tensors, [&](const at::Tensor& parameter) { return engine->manages(parameter); });
  }
  zero_plain(tensors, set_to_none);
}

bool ModelCore::is(const void* identity, const std::vector<gradient::NamedTensor>& parameters,
                   const ModelOptions& options) const {
  if (identity != this->identity() || options != options_ || parameters.size() != parameters_.size()) return false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].tensor.is_same(parameters_[i].tensor) || describe(parameters[i]) != described_[i]) return false;
  }
  return true;
}

std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const void*> seen;
  std::vector<at::Tensor> list;
  for (const at::Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) list.push_back(parameter);
  }
  return list;
}

std::vector<at::Tensor> flat_gradients(const std::vector<std::shared_ptr<ModelCore>>& models,
                                       const std::vector<at::Tensor>& parameters) {
  for (const auto& model : models) {
    if (model->engine() != nullptr && model->engine()->manages_exactly(parameters)) return model->engine()->gradients();
  }
  const auto distinct = each_once(parameters);
  if (distinct.size() < parameters.size()) return flat_gradients(models, distinct);
  return gradient::dense_gradients(parameters);
}

std::vector<state::Piece> named_pieces(const std::vector<std::shared_ptr<ModelCore>>& models,
                                       const std::vector<at::Tensor>& parameters) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& model : models) {
    for (const auto& parameter : model->parameters()) {
      names.try_emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
    }
  }
  std::vector<state::Piece> pieces;
  for (const at::Tensor& parameter : each_once(parameters)) {
    const auto found = names.find(parameter.unsafeGetTensorImpl());
    const auto name = found != names.end() ? found->second : fmt::format("parameter {}", pieces.size());
    pieces.push_back(state::whole_piece(name, parameter));
  }
  return pieces;
}

std::vector<gradient::JoinModel> join_models(const std::vector<std::shared_ptr<ModelCore>>& models) {
  std::vector<gradient::JoinModel> list;
  std::unordered_set<const gradient::Engine*> listed;
  for (const auto& model : models) {
    if (model->engine() == nullptr && model->buffer_broadcast() == nullptr) continue;
    list.push_back({model->engine(), model->buffer_broadcast()});
    listed.insert(model->engine());
  }
  for (const auto& model : models) {
    for (gradient::Engine* engine : model->engines()) {
      if (listed.insert(engine).second) list.push_back({engine, nullptr});
    }
  }
  for (const auto& model : models) {
    if (gradient::BufferBroadcast* masters = model->masters_for_join()) list.push_back({nullptr, masters});
  }
  return list;
}

}  // namespace accelerate::prepared
