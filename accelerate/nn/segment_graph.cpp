// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/segment_graph.hpp"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace accelerate::nn {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

struct Pass : Node {
  explicit Pass(const Edge& beyond) : Node(edge_list{beyond}) {
    const auto& metadata = beyond.function->input_metadata(beyond.input_nr);
    if (metadata.was_default_constructed()) {
      add_input_metadata(undefined_input());
    } else {
      add_input_metadata(metadata.options(), metadata.shape_as_dim_vector(), metadata.is_tensor_subclass(),
                         metadata.is_nested_tensor(), metadata.grad_dtype());
    }
  }
  std::string name() const override { return "accelerate::nn::checkpoint's input"; }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
};

/// Calls visit(edge) for every edge of the graph that was created after the mark, beginning at the roots.
template <typename Visit>
void walk(edge_list& roots, const GraphMark& mark, const Visit& visit) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> open;
  const auto meet = [&](Edge& edge) {
    if (!edge.is_valid()) return;
    Node* node = edge.function.get();
    const bool inside = mark.created_later(edge);
    visit(edge, inside);
    if (inside && seen.insert(node).second) open.push_back(node);
  };
  for (Edge& root : roots) meet(root);
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    for (Edge& edge : node->next_edges()) meet(edge);
  }
}

}  // namespace

GraphMark::GraphMark(edge_list inputs)
    : inputs_(std::move(inputs)), first_(at::sequence_number::peek()), thread_(at::RecordFunction::currentThreadId()) {}

bool GraphMark::created_later(const Edge& edge) const {
  const Node& node = *edge.function;
  if (node.thread_id() != thread_ || node.sequence_nr() < first_) return false;
  if (dynamic_cast<const AccumulateGrad*>(&node) != nullptr) return false;
  return std::find(inputs_.begin(), inputs_.end(), edge) == inputs_.end();
}

edge_list border_of(const edge_list& outputs, const GraphMark& mark) {
  edge_list roots = outputs;
  edge_list border;
  std::unordered_set<Edge> known;
  walk(roots, mark, [&](const Edge& edge, bool inside) {
    if (!inside && known.insert(edge).second) border.push_back(edge);
  });
  return border;
}

edge_list fence(edge_list& outputs, const edge_list& border, const GraphMark& mark) {
  std::unordered_map<Edge, size_t> index;
  edge_list fences;
  for (const Edge& edge : border) {
    index.emplace(edge, fences.size());
    fences.emplace_back(make_node<Pass>(edge), 0U);
  }
  walk(outputs, mark, [&](Edge& edge, bool inside) {
    const auto found = inside ? index.end() : index.find(edge);
    if (found != index.end()) edge = fences[found->second];
  });
  return fences;
}

edge_list edges_of(const std::vector<at::Tensor>& tensors) {
  edge_list edges;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  }
  return edges;
}

at::Tensor leaf_of(const Edge& edge) {
  const auto* accumulator = dynamic_cast<const AccumulateGrad*>(edge.function.get());
  return accumulator == nullptr ? at::Tensor() : accumulator->variable;
}

}  // namespace accelerate::nn
