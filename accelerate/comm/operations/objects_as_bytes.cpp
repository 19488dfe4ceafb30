// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/operations/objects_as_bytes.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cstring>

#include "accelerate/comm/operations/data_movement.hpp"

namespace accelerate::comm {
namespace {

at::Tensor tensor_of(std::string_view bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string string_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.numel())};
}

std::vector<std::string> strings_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> strings;
  strings.reserve(tensors.size());
  for (const auto& tensor : tensors) strings.push_back(string_of(tensor));
  return strings;
}

}  // namespace

std::vector<std::string> all_gather_bytes(const GroupPtr& group, std::string_view bytes) {
  return strings_of(all_gather_list(group, tensor_of(bytes)));
}

std::vector<std::string> gather_bytes(const GroupPtr& group, std::string_view bytes, int64_t root) {
  return strings_of(gather(group, tensor_of(bytes), root));
}

std::string broadcast_bytes(const GroupPtr& group, std::string_view bytes, int64_t root) {
  group->check_rank(Operation::broadcast, "root", root);
  if (group->single()) return std::string(bytes);
  const bool sends = group->rank == root;
  const at::Tensor length = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
  broadcast(group, length, root);
  const at::Tensor content = sends ? tensor_of(bytes) : at::empty({*length.const_data_ptr<int64_t>()}, at::kByte);
  broadcast(group, content, root);
  return string_of(content);
}

}  // namespace accelerate::comm
