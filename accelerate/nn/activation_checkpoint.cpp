// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/activation_checkpoint.hpp"

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>

#include "accelerate/base/error.hpp"
#include "accelerate/nn/recompute_state.hpp"
#include "accelerate/nn/segment_graph.hpp"

namespace accelerate::nn::detail {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

std::string shape_and_dtype(const at::Tensor& tensor) {
  return fmt::format("[{}] {}{}", c10::Join(", ", tensor.sizes()), c10::toString(tensor.scalar_type()),
                     tensor.requires_grad() ? "" : " without gradient");
}

template <typename... Values>
[[noreturn]] void throw_misuse(fmt::format_string<Values...> text, Values&&... values) {
  base::fail(ErrorKind::usage, {}, "checkpoint", text, std::forward<Values>(values)...);
}

/// Graph node that represents the whole function.
struct CheckpointNode : torch::autograd::Node {
  RecomputeCall again;
  ForwardState state;
  std::vector<SavedVariable> inputs;
  std::vector<std::string> described;  ///< every output of the function
  std::vector<size_t> outputs;         ///< outputs with a gradient, which are this node's inputs
  /// Original next edges of the node; another checkpoint may redirect the actual ones.
  edge_list border;
  std::vector<int64_t> versions;  ///< versions of the leaves on the border, otherwise 0
  bool released = false;

  CheckpointNode() = default;
  ~CheckpointNode() override;
  std::string name() const override { return "accelerate::nn::checkpoint"; }
  void release_variables() override;

 protected:
  variable_list apply(variable_list&& gradients) override;

 private:
  std::vector<at::Tensor> run_again();
  [[nodiscard]] size_t index_of(const Edge& edge) const;
  void check_leaves() const;
};

int64_t version_of(const Edge& edge) {
  const at::Tensor leaf = leaf_of(edge);
  return leaf.defined() ? leaf._version() : 0;
}

std::vector<int64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> versions;
  for (const at::Tensor& tensor : tensors) versions.push_back(tensor.is_inference() ? 0 : tensor._version());
  return versions;
}

void CheckpointNode::release_variables() {
  const std::lock_guard lock(mutex_);
  released = true;
  again = nullptr;
  inputs.clear();
  border.clear();
  state = {};
}

// Releases the chain iteratively: recursion through thousands of nodes would overflow the stack. LibTorch's own nodes
// use deleteNode for this.
CheckpointNode::~CheckpointNode() {
  border.clear();
  edge_list open = std::move(next_edges());
  while (!open.empty()) {
    const Edge edge = std::move(open.back());
    open.pop_back();
    auto* next = dynamic_cast<CheckpointNode*>(edge.function.get());
    if (next == nullptr || edge.function.use_count() > 1) continue;
    next->border.clear();
    std::move(next->next_edges().begin(), next->next_edges().end(), std::back_inserter(open));
    next->next_edges().clear();
  }
}

// LibTorch checks the versions of saved tensors. This node saves none, so it checks the versions itself.
void CheckpointNode::check_leaves() const {
  for (size_t i = 0; i < border.size(); ++i) {
    if (version_of(border[i]) == versions[i]) continue;
    throw_misuse(
        "a leaf {} that the function uses was changed in place between forward and backward, so it cannot run "
        "again as it did; step the optimizer after backward",
        shape_and_dtype(leaf_of(border[i])));
  }
}

std::vector<at::Tensor> CheckpointNode::run_again() {
  TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
  check_leaves();
  std::vector<at::Tensor> given;
  for (const SavedVariable& input : inputs) given.push_back(input.unpack());
  std::vector<at::Tensor> made;
  {
    const at::AutoGradMode grad(true);
    const RecomputeScope second(state);
    made = again(given);
  }
  for (size_t i = 0; i < std::max(made.size(), described.size()); ++i) {
    const std::string now = i < made.size() ? shape_and_dtype(made[i]) : "missing";
    const std::string first = i < described.size() ? described[i] : "missing";
    if (now == first) continue;
    throw_misuse(
        "output {} of the function was {} in forward and is {} in its second run, in backward; it must compute the "
        "same from the same inputs",
        i, first, now);
  }
  return made;
}

size_t CheckpointNode::index_of(const Edge& edge) const {
  const auto found = std::find(border.begin(), border.end(), edge);
  if (found != border.end()) return static_cast<size_t>(found - border.begin());
  const at::Tensor leaf = leaf_of(edge);
  throw_misuse(
      "in its second run, in backward, the function used {} that it had not used in forward; it must compute the "
      "same from the same inputs, on this thread (of a DataParallel checkpoint the parts of its module)",
      leaf.defined() ? "a leaf " + shape_and_dtype(leaf) : "a result of " + edge.function->name());
}

variable_list CheckpointNode::apply(variable_list&& gradients) {
  edge_list inputs_before;
  for (const SavedVariable& input : inputs) {
    const edge_list edge = edges_of({input.unpack()});
    inputs_before.insert(inputs_before.end(), edge.begin(), edge.end());
  }
  const GraphMark mark(inputs_before);
  const std::vector<at::Tensor> made = run_again();

  edge_list roots;
  variable_list seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined()) continue;
    roots.push_back(torch::autograd::impl::gradient_edge(made[outputs[i]]));
    seeds.push_back(gradients[i]);
  }
  const edge_list reached = border_of(roots, mark);
  const edge_list fences = fence(roots, reached, mark);
  edge_list wanted;
  std::vector<size_t> places;
  for (size_t i = 0; i < reached.size(); ++i) {
    const size_t place = index_of(reached[i]);
    if (!task_should_compute_output(place)) continue;
    wanted.push_back(fences[i]);
    places.push_back(place);
  }
  variable_list results(border.size());
  if (wanted.empty()) return results;
  const bool twice = at::GradMode::is_enabled();
  const variable_list found = torch::autograd::Engine::get_default_engine().execute(
      roots, seeds, /*keep_graph=*/twice, /*create_graph=*/twice, /*accumulate_grad=*/false, wanted);
  for (size_t i = 0; i < found.size(); ++i) results[places[i]] = found[i];
  return results;
}

}  // namespace

struct Segment::State {
  std::vector<at::Tensor> inputs;
  ForwardState forward;
  GraphMark mark;
  std::vector<int64_t> versions;  ///< versions of the inputs
  NoAutocastCache no_cache{};
};

void Segment::check_inputs() const {
  const auto now = versions_of(state_->inputs);
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] == state_->versions[i]) continue;
    throw_misuse(
        "the function changed its input {} in place ({}), so it cannot be recomputed from its inputs; let it work "
        "on a copy",
        i, shape_and_dtype(state_->inputs[i]));
  }
}

Segment::Segment(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs)
    : state_(new State{inputs, ForwardState::now(inputs, options.preserve_rng_state), GraphMark(edges_of(inputs)),
                       versions_of(inputs)}) {}

Segment::~Segment() = default;

const std::vector<at::Tensor>& Segment::inputs() const { return state_->inputs; }

void Segment::close(std::vector<at::Tensor>& outputs, RecomputeCall again) {
  edge_list border = border_of(edges_of(outputs), state_->mark);
  if (border.empty()) return;
  check_inputs();
  const NodePtr node = make_node<CheckpointNode>();
  auto& checkpoint = static_cast<CheckpointNode&>(*node);
  checkpoint.again = std::move(again);
  checkpoint.state = std::move(state_->forward);
  for (const at::Tensor& input : state_->inputs) checkpoint.inputs.emplace_back(input, /*is_output=*/false);
  for (const Edge& edge : border) checkpoint.versions.push_back(version_of(edge));
  checkpoint.border = border;
  node->set_next_edges(std::move(border));
  for (size_t i = 0; i < outputs.size(); ++i) {
    checkpoint.described.push_back(shape_and_dtype(outputs[i]));
    if (!outputs[i].requires_grad()) continue;
    at::Tensor bare = outputs[i].detach();
    torch::autograd::impl::set_gradient_edge(bare, {node, node->add_input_metadata(bare)});
    checkpoint.outputs.push_back(i);
    outputs[i] = bare;
  }
}

}  // namespace accelerate::nn::detail
