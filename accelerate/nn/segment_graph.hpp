// SPDX-License-Identifier: Apache-2.0
// Private: the part of the autograd graph that one function created, and its border.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace accelerate::nn {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using NodePtr = decltype(Edge::function);  ///< LibTorch's smart pointer type changes after 2.11

template <typename Node, typename... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
  }
}

/// A point in time on this thread: nodes that this thread creates later belong to the function.
class GraphMark {
 public:
  /// \param inputs  Edges of the function's inputs, which existed before their creators ran.
  explicit GraphMark(edge_list inputs = {});
  [[nodiscard]] bool created_later(const Edge& edge) const;

 private:
  edge_list inputs_;
  uint64_t first_;
  uint64_t thread_;
};

/// Returns the edges at which the graph of the outputs leaves nodes created after the mark: gradient accumulators and
/// earlier results, each once, in order of discovery from the first output.
edge_list border_of(const edge_list& outputs, const GraphMark& mark);

/// Inserts a node on every edge that leads to the border. The node passes gradients on, so the result is unchanged; a
/// backward can end there without running hooks beyond it.
///
/// \param outputs  The roots; roots on the border are replaced too.
/// \returns the nodes' edges in the order of border.
edge_list fence(edge_list& outputs, const edge_list& border, const GraphMark& mark);

/// The edges of tensors that need a gradient.
edge_list edges_of(const std::vector<at::Tensor>& tensors);

/// Returns the leaf of this accumulator, or an undefined tensor.
at::Tensor leaf_of(const Edge& edge);

}  // namespace accelerate::nn
