// SPDX-License-Identifier: Apache-2.0
// Private: the part of autograd's graph that one function made, and where it ends.
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
using NodePtr = decltype(Edge::function);  ///< LibTorch changes its smart pointer after 2.11

template <typename Node, typename... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<Node>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
  }
}

/// A moment on this thread: nodes made here after it are the function's.
class GraphMark {
 public:
  /// inputs   edges of the function's inputs, which were there before whoever made them
  explicit GraphMark(edge_list inputs = {});
  [[nodiscard]] bool made_later(const Edge& edge) const;

 private:
  edge_list inputs_;
  uint64_t first_;
  uint64_t thread_;
};

/// Where the graph of outputs leaves what was made after the mark: gradient accumulators, and results from before. Each
/// once, in the order met from the first output on.
edge_list border_of(const edge_list& outputs, const GraphMark& mark);

/// Puts one node on every edge that leads to the border. It passes gradients on, so the graph computes the same; and it
/// is where a backward can end without the hooks of what lies beyond.
///
/// outputs   the roots; those that are on the border themselves are exchanged too
/// returns   the nodes' edges, in border's order
edge_list fence(edge_list& outputs, const edge_list& border, const GraphMark& mark);

/// The edges of tensors that need a gradient.
edge_list edges_of(const std::vector<at::Tensor>& tensors);

/// The leaf whose accumulator this is, else undefined.
at::Tensor leaf_of(const Edge& edge);

}  // namespace accelerate::nn
