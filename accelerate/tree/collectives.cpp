// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tree/collectives.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string_view>

#include "accelerate/comm/error_context.hpp"

namespace accelerate::tree::detail {
namespace {

/// Returns the dimension as 0 to dim()-1, or nothing if the tensor has no such dimension.
std::optional<int64_t> dimension(const at::Tensor& tensor, int64_t dim) {
  if (dim < 0) dim += tensor.dim();
  if (dim < 0 || dim >= tensor.dim()) return std::nullopt;
  return dim;
}

constexpr std::string_view kLengthsUnknown = "the lengths of the other ranks are unknown";

[[noreturn]] void fail_on_ranks_that_differ(const at::Tensor& tensor, const comm::Group& group) {
  const auto mine = fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
  const auto shapes = comm::with_operation_context("pad_across_processes", kLengthsUnknown, group.place(),
                                                   [&] { return group.all_gather_bytes(mine); });
  std::string all;
  for (size_t r = 0; r < shapes.size(); ++r) all += fmt::format("{}rank {} {}", r == 0 ? "" : ", ", r, shapes[r]);
  base::fail(ErrorKind::peer, group.place(), "pad_across_processes",
             "the ranks' tensors have different numbers of dimensions: {}; give the same number on every rank", all);
}

/// Maximum size of every tensor's dimension over all ranks, in one exchange; the numbers of dimensions must be equal.
std::vector<int64_t> longest(const Tensors& tensors, const comm::Group& group, int64_t dim) {
  std::vector<int64_t> facts;
  for (const auto& tensor : tensors) {
    const auto d = dimension(tensor, dim);
    facts.insert(facts.end(), {d ? tensor.size(*d) : -1, tensor.dim(), -tensor.dim()});
  }
  const at::Tensor most = at::tensor(facts, at::TensorOptions().dtype(at::kLong));
  comm::with_operation_context("pad_across_processes", kLengthsUnknown, group.place(),
                               [&] { group.all_reduce(most, comm::ReduceOp::max); });
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto* fact = most.const_data_ptr<int64_t>() + 3 * i;
    if (fact[1] != -fact[2]) fail_on_ranks_that_differ(tensors[i], group);
    lengths.push_back(fact[0]);
  }
  return lengths;
}

/// Copies the tensor, because callers may write to the result, and the argument must not change for any number of
/// ranks.
at::Tensor own_copy(const at::Tensor& tensor) { return tensor.detach().clone(); }

at::Tensor padded(const at::Tensor& tensor, int64_t dim, int64_t length, const PadOptions& options) {
  auto shape = tensor.sizes().vec();
  const int64_t old = shape[static_cast<size_t>(dim)];
  shape[static_cast<size_t>(dim)] = length;
  auto out = at::full(shape, options.pad_index, tensor.options());
  out.narrow(dim, options.pad_first ? length - old : 0, old).copy_(tensor);
  return out;
}

}  // namespace

Tensors gather(const Tensors& tensors, const comm::Group& group, std::string_view call) {
  return comm::with_operation_context(call, "the ranks' values are not put together", group.place(), [&] {
    Tensors all;
    for (const auto& tensor : tensors) {
      all.push_back(group.size() == 1 ? own_copy(tensor) : group.all_gather(tensor.detach()));
    }
    return all;
  });
}

Tensors reduce(const Tensors& tensors, const comm::Group& group, comm::ReduceOp op, double scale) {
  return comm::with_operation_context("reduce", "the ranks' values are not reduced", group.place(), [&] {
    Tensors reduced;
    for (const auto& tensor : tensors) {
      auto result = own_copy(tensor);
      if (group.size() > 1) group.all_reduce(result, op);
      reduced.push_back(scale == 1.0 ? result : result.mul(scale));
    }
    return reduced;
  });
}

void broadcast(const Tensors& tensors, const comm::Group& group, int64_t root) {
  if (group.size() == 1) return;
  comm::with_operation_context("broadcast", "the value is not handed out", group.place(), [&] {
    // the detached tensor shares the storage
    for (const auto& tensor : tensors) group.broadcast(tensor.detach(), root);
  });
}

Tensors pad_across_processes(const Tensors& tensors, const comm::Group& group, const PadOptions& options) {
  if (tensors.empty()) return {};
  std::vector<int64_t> lengths(tensors.size(), 0);
  if (group.size() > 1) lengths = longest(tensors, group, options.dim);
  Tensors out;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto dim = dimension(tensors[i], options.dim);
    const bool short_of = dim && tensors[i].size(*dim) < lengths[i];
    out.push_back(short_of ? padded(tensors[i], *dim, lengths[i], options) : own_copy(tensors[i]));
  }
  return out;
}

at::Tensor pad_rows(const at::Tensor& tensor, int64_t multiple) {
  if (multiple < 1)
    base::fail(ErrorKind::usage, {}, "pad_input_tensors", "world_size is {}, must be at least 1", multiple);
  if (tensor.dim() == 0 || tensor.size(0) % multiple == 0) return tensor;
  return padded(tensor, 0, (tensor.size(0) / multiple + 1) * multiple, {});
}

}  // namespace accelerate::tree::detail

namespace accelerate::tree {
namespace {

/// Encodes dtype and sizes as bytes; empty for an undefined tensor.
std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  std::vector<int64_t> numbers{static_cast<int64_t>(tensor.scalar_type())};
  numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t)};
}

at::Tensor made_from(const std::string& description, at::Device device) {
  std::vector<int64_t> numbers(description.size() / sizeof(int64_t));
  std::memcpy(numbers.data(), description.data(), description.size());
  const auto dtype = static_cast<at::ScalarType>(numbers.front());
  return at::empty(at::IntArrayRef(numbers).slice(1), at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace

at::Tensor copy_tensor_to_devices(const at::Tensor& tensor, const comm::Group& group, int64_t root, at::Device device) {
  const bool mine = group.rank() == root;
  const std::string description = mine ? described(tensor) : std::string();
  const auto with_context = [&](const auto& collective) {
    return comm::with_operation_context("copy_tensor_to_devices", "the tensor is not handed out", group.place(),
                                        collective);
  };
  const std::string of_root =
      group.size() == 1 ? description : with_context([&] { return group.broadcast_bytes(description, root); });
  if (of_root.empty())
    base::fail(ErrorKind::usage, group.place(), "copy_tensor_to_devices",
               "the tensor of rank {} is undefined; the argument root selects the rank whose tensor is sent", root);
  if (group.size() == 1) return tensor;
  // All ranks must use one backend, that of the device, wherever root's tensor is.
  const at::Tensor sent = mine ? tensor.detach().to(device) : made_from(of_root, device);
  with_context([&] { group.broadcast(sent, root); });
  return mine ? tensor : sent;
}

}  // namespace accelerate::tree
